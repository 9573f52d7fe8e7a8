"""Directories of segments: the order, positions, what grows, and the lock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from segments.journals import EXAMPLE, message, records_of, segment, write
from support import python

from sbuslib.errors import CorruptJournalError, JournalError, JournalInUseError
from sbuslib.segments import directory
from sbuslib.segments.directory import (
    DirectoryLock,
    Position,
    durable_sequence,
    end_of,
    is_recorded,
    list_segments,
    read_header,
    read_journal,
    read_segment,
)
from sbuslib.segments.layout import SEGMENT_HEADER_BYTES, Block, Skipped

ENDS = [264, 520, 728, 760]
"""Where the blocks of the second segment end: three, and the mark."""
ROWS = [record for blocks in EXAMPLE for rows in blocks for record in rows]


def test_segments_are_listed_in_order_without_other_files(journal: str) -> None:
    write(journal, *reversed(EXAMPLE))
    Path(journal, "notes.txt").write_text("mine")
    assert [one.first_sequence for one in list_segments(journal)] == [1, 4]
    assert records_of(journal) == ROWS
    assert [read_header(one.path).first_sequence for one in list_segments(journal)] == [1, 4]


def test_a_journal_is_read_from_any_position(journal: str) -> None:
    write(journal, *EXAMPLE)
    pieces = list(read_journal(journal))
    for number, piece in enumerate(pieces, 1):
        assert isinstance(piece.block, Block)
        rest = list(read_journal(journal, Position(piece.segment.name, piece.block.end)))
        assert [one.block for one in rest] == [one.block for one in pieces[number:]]


def test_only_durable_rows_are_read_if_asked_for(journal: str) -> None:
    """An open segment has three blocks, which end with rows 4, 7 and 9; the recorder tells how far it has synced."""
    path = Path(write(journal, *EXAMPLE)[-1])
    path.write_bytes(path.read_bytes()[:-32])
    lock = DirectoryLock(journal)
    try:
        for told, last in ((0, 3), (3, 3), (4, 4), (6, 4), (7, 7), (9, 9)):
            lock.tell(told)
            assert durable_sequence(journal) == told
            blocks = [piece.block for piece in read_journal(journal, durable_only=True)]
            rows = [row for block in blocks if isinstance(block, Block) for row in block.records()]
            assert [row.sequence for row in rows] == [*range(1, last + 1)]
        lock.tell(0)
        assert records_of(journal) == ROWS, "else all rows that are written are read"
    finally:
        lock.release()


def test_what_was_read_is_not_walked_through_again(journal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(write(journal, EXAMPLE[1])[0]).write_bytes(segment(EXAMPLE[1], ended=False))
    walked: list[int] = []
    monkeypatch.setattr(directory, "walk", lambda read_at, size, at: iter(walked.append(at) or ()))  # type: ignore[func-returns-value]
    place = Position(list_segments(journal)[0].name, ENDS[1])
    assert len(list(read_journal(journal, place, growing=True, durable_only=True))) == 0
    assert walked == [ENDS[1]]


def test_a_position_in_a_deleted_segment_is_an_error(journal: str) -> None:
    first, second = write(journal, *EXAMPLE)
    os.unlink(first)
    with pytest.raises(JournalError, match=os.path.basename(first)):
        list(read_journal(journal, Position(os.path.basename(first), SEGMENT_HEADER_BYTES)))
    assert records_of(journal) == ROWS[3:]
    os.unlink(second)
    assert records_of(journal) == []


def test_a_segment_whose_header_is_about_to_be_written_has_no_rows_yet(journal: str) -> None:
    write(journal, *EXAMPLE)
    Path(journal, "00000000000000000010.sbj").touch()
    assert records_of(journal, growing=True) == ROWS
    with pytest.raises(CorruptJournalError, match="header is cut"):
        records_of(journal)


def test_a_growing_segment_is_read_up_to_its_last_whole_block(journal: str) -> None:
    os.makedirs(journal)
    data = segment(EXAMPLE[1])
    path = Path(journal, "00000000000000000004.sbj")
    ends = []
    for size in range(SEGMENT_HEADER_BYTES, len(data) + 1):
        path.write_bytes(data[:size])
        (one,) = list_segments(journal)
        end, sealed = end_of(one)
        assert sealed is (size == len(data))
        assert end_of(one, end) == (end, False)
        ends.append(end)
        got = [record for piece in read_journal(journal, growing=True) for record in _rows(piece.block)]
        assert got == ROWS[3 : 3 + len(got)]
        assert (got == ROWS[3:]) is (end >= len(data) - 32)
    assert sorted(set(ends)) == [SEGMENT_HEADER_BYTES, *ENDS]


def _rows(block: Block | Skipped) -> list[object]:
    assert isinstance(block, Block)
    return [*block.records()]


def test_a_journal_counts_as_growing_while_it_is_recorded(journal: str) -> None:
    (path,) = write(journal, [[message(1, b"a", b"b")]])
    Path(path).write_bytes(Path(path).read_bytes()[:-32])
    lock = DirectoryLock(journal)
    assert len(records_of(journal)) == 1
    lock.release()
    with pytest.raises(CorruptJournalError, match="no end mark"):
        records_of(journal)
    assert len(records_of(journal, growing=True)) == 1


def test_one_segment_is_read_alone(journal: str) -> None:
    _, second = write(journal, *EXAMPLE)
    blocks = list(read_segment(second))
    assert [block.end for block in blocks if not isinstance(block, Skipped)] == ENDS
    assert list(read_segment(second, ENDS[1])) == blocks[2:]
    Path(second).write_bytes(Path(second).read_bytes()[: ENDS[1] + 2])
    with pytest.raises(CorruptJournalError, match=f"{second}: byte {ENDS[1]}: a block is cut"):
        list(read_segment(second))


def test_the_last_durable_row_stays_known_while_the_next_recorder_starts(folder: str) -> None:
    lock = DirectoryLock(folder)
    assert durable_sequence(folder) == 0
    lock.tell(12)
    lock.release()
    lock = DirectoryLock(folder)
    assert durable_sequence(folder) == 12
    lock.release()


def test_a_directory_has_one_recorder(folder: str) -> None:
    lock = DirectoryLock(folder)
    assert is_recorded(folder)
    for _ in range(2):
        with pytest.raises(JournalInUseError, match=f"already by process {os.getpid()}$"):
            DirectoryLock(folder)
    code = f"""
from sbuslib.segments.directory import DirectoryLock, is_recorded
print(is_recorded({folder!r}))
try:
    DirectoryLock({folder!r})
except Exception as error:
    print(type(error).__name__)
"""
    assert python("-c", code).split() == ["True", "JournalInUseError"]
    lock.release()
    lock.release()
    assert not is_recorded(folder)
    DirectoryLock(folder).release()
    assert (os.stat(os.path.join(folder, "recorder.lock")).st_mode & 0o777) == 0o600
