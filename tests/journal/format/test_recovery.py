"""The end of a journal is repaired after a crash."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from journal.format.journals import EXAMPLE, block, flip, message, records_of, write

from sbuslib.errors import CorruptJournalError
from sbuslib.journal.format.directory import boot_id
from sbuslib.journal.format.layout import SEGMENT_HEADER_BYTES, segment_name
from sbuslib.journal.format.recovery import NUMBERS_LEFT_OUT, recover

ROWS = [record for blocks in EXAMPLE for rows in blocks for record in rows]
IDENTITY = "0123456789abcdef"
END_BYTES = 32
"""Of an end mark."""


def test_a_journal_that_was_closed_is_left_as_it_is(journal: str) -> None:
    paths = write(journal, *EXAMPLE)
    before = [Path(path).read_bytes() for path in paths]
    since = os.stat(paths[-1]).st_mtime_ns
    assert recover(journal) == (IDENTITY, 10, since)
    assert [Path(path).read_bytes() for path in paths] == before


def test_an_empty_directory_gets_an_identity(folder: str) -> None:
    identity, first, since = recover(folder)
    assert (len(identity), first, since) == (16, 1, None)
    assert recover(folder)[0] != identity


@pytest.mark.parametrize("torn", [0, 1, 23, 24, 100])
def test_what_follows_the_last_whole_block_is_cut_off(
    journal: str, torn: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(write(journal, *EXAMPLE, boot=boot_id())[-1])
    data = path.read_bytes()
    path.write_bytes(data[:-END_BYTES] + data[SEGMENT_HEADER_BYTES : SEGMENT_HEADER_BYTES + torn])
    with caplog.at_level(logging.WARNING, "sbuslib"):
        assert recover(journal)[:2] == (IDENTITY, 11)
    assert (f"cut {torn} bytes at {len(data) - END_BYTES}" in caplog.text) is (torn > 0)
    assert path.read_bytes().startswith(data[:-END_BYTES])
    *before, gap = records_of(journal)
    assert before == ROWS
    assert (gap.sequence, gap.kind, gap.cause, gap.lost, gap.time_ns) == (10, "gap", "cut", None, ROWS[-1].time_ns)
    assert recover(journal)[:2] == (IDENTITY, 11), "a second time there is nothing to repair"


def test_after_a_crash_of_the_machine_no_number_is_used_twice(journal: str) -> None:
    """Somebody may have read rows 4 to 9, of which the crash left row 4 only."""
    path = Path(write(journal, *EXAMPLE, boot=b"before the crash")[-1])
    whole = path.read_bytes()
    path.write_bytes(whole[: SEGMENT_HEADER_BYTES + len(block(EXAMPLE[1][0]))])
    assert recover(journal)[:2] == (IDENTITY, 6 + NUMBERS_LEFT_OUT)
    assert [(one.sequence, one.cause) for one in records_of(journal)[3:]] == [(4, None), (5, "cut")]
    assert recover(journal)[:2] == (IDENTITY, 6 + NUMBERS_LEFT_OUT)
    later = [message(6 + NUMBERS_LEFT_OUT, b"k", b"")]
    write(journal, [later])
    assert records_of(journal)[-1:] == later


@pytest.mark.parametrize("size", [0, 50, SEGMENT_HEADER_BYTES])
def test_a_segment_without_rows_becomes_a_gap(journal: str, size: int) -> None:
    path = Path(write(journal, *EXAMPLE, boot=boot_id())[-1])
    path.write_bytes(path.read_bytes()[:size])
    assert recover(journal)[:2] == (IDENTITY, 5)
    assert [(one.sequence, one.cause) for one in records_of(journal)] == [(1, None), (2, None), (3, None), (4, "cut")]


def test_segments_of_zeros_become_a_gap_and_their_numbers_are_not_used_again(journal: str) -> None:
    path = Path(write(journal, *EXAMPLE, boot=b"before the crash")[-1])
    path.write_bytes(bytes(path.stat().st_size))
    Path(journal, segment_name(10)).write_bytes(bytes(4096))
    assert recover(journal)[:2] == (IDENTITY, 5 + NUMBERS_LEFT_OUT)
    assert len(os.listdir(journal)) == 1
    assert records_of(journal)[3].cause == "cut"


def test_a_journal_of_nothing_but_an_empty_file_is_a_new_one(journal: str) -> None:
    os.mkdir(journal)
    Path(journal, segment_name(1)).touch()
    assert recover(journal)[1:] == (1, None)
    assert os.listdir(journal) == []


def test_damage_before_the_end_is_left_as_it_is(journal: str, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(write(journal, *EXAMPLE, boot=boot_id())[-1])
    data = bytearray(path.read_bytes()[:-END_BYTES])
    data[SEGMENT_HEADER_BYTES + 18] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "sbuslib"):
        assert recover(journal)[:2] == (IDENTITY, 11)
    assert f"damaged bytes at {SEGMENT_HEADER_BYTES}" in caplog.text
    assert path.read_bytes().startswith(data)


def test_a_damaged_header_of_the_last_segment_is_an_error(journal: str) -> None:
    path = Path(write(journal, *EXAMPLE)[-1])
    data = flip(path, 20)
    with pytest.raises(CorruptJournalError, match=str(path)):
        recover(journal)
    assert path.read_bytes() == data
