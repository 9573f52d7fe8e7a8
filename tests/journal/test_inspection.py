"""Summaries, rows and checks of journals that are whole, damaged, or being written."""

from __future__ import annotations

import os

import pytest
from segments.journals import EXAMPLE, write

from sbuslib.errors import CorruptJournalError, JournalError
from sbuslib.journal.account import Check, verify
from sbuslib.journal.inspection import summarize
from sbuslib.lake.blocks import read_records
from sbuslib.lake.sealing import seal
from sbuslib.lake.selection import Selection
from sbuslib.segments.layout import Skipped


@pytest.fixture
def journal(folder: str) -> str:
    write(f"{folder}/journal", *EXAMPLE)
    return f"{folder}/journal"


def flip(journal: str, segment: int, position: int) -> str:
    path = os.path.join(journal, sorted(os.listdir(journal))[segment])
    with open(path, "r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    return path


def damages(journal: str) -> tuple[Check, list[tuple[str, Skipped]]]:
    found: list[tuple[str, Skipped]] = []
    return verify(journal, lambda path, skipped: found.append((path, skipped))), found


def test_a_journal_is_told_by_its_headers(journal: str) -> None:
    (found,) = summarize(journal)
    assert (found.separator, found.recorded, found.missing) == ("/", False, 0)
    assert [(one.first_row, one.rows, one.state) for one in found.files] == [(1, 3, "ended"), (4, 6, "ended")]
    assert sum(one.bytes for one in found.files) == sum(
        os.path.getsize(os.path.join(journal, name)) for name in os.listdir(journal)
    )
    assert found.files[1].latest == EXAMPLE[1][2][-1].time_ns


def test_sealed_files_are_told_by_their_names(journal: str) -> None:
    seal(journal)
    (found,) = summarize(journal)
    assert [(one.first_row, one.rows, one.state) for one in found.files] == [(1, 9, "sealed")]


def test_a_damaged_header_is_told_with_its_segment(journal: str) -> None:
    flip(journal, 1, 50)
    first, second = summarize(journal)[0].files
    assert first.state == "ended"
    assert (second.rows, second.state) == (0, "the segment's header is damaged")


def test_a_segment_whose_last_block_is_damaged_tells_no_latest_time(journal: str) -> None:
    flip(journal, 0, 250)
    assert summarize(journal)[0].files[0].latest is None


def test_what_is_no_journal_is_an_error(folder: str) -> None:
    for look in (summarize, lambda place: list(read_records(place)), damages):
        with pytest.raises(JournalError, match="there is no journal and no lake here"):
            look(folder)
        with pytest.raises(JournalError, match="no such directory"):
            look(f"{folder}/none")


def test_rows_are_selected(journal: str) -> None:
    assert [row.sequence for row in read_records(journal)] == [*range(1, 10)]
    chosen = read_records(journal, Selection(patterns=(b"room/2/",)))
    assert [row.sequence for row in chosen] == [4, 5, 6, 7, 8], "gaps are for all"
    moments = [row.time_ns for row in read_records(journal)]
    late = [row.sequence for row in read_records(journal, Selection(start_ns=moments[-1]))]
    assert late == [number for number, moment in enumerate(moments, 1) if moment >= moments[-1]]


def test_damage_is_an_error_or_skipped(journal: str) -> None:
    path = flip(journal, 0, 250)
    with pytest.raises(CorruptJournalError):
        list(read_records(journal))
    skipped: list[str] = []
    found = list(read_records(journal, on_corrupt="skip", on_skip=lambda path, one: skipped.append(path)))
    assert [(row.sequence, row.cause, row.lost) for row in found[:1]] == [(3, "damaged", 3)]
    assert [row.sequence for row in found] == [3, 4, 5, 6, 7, 8, 9]
    assert skipped == [path]


def test_a_whole_journal_is_verified(journal: str) -> None:
    for _ in range(2):
        check, found = damages(journal)
        assert found == []
        assert (check.messages, check.gaps, check.lost.total(), check.damages, check.is_whole) == (6, 3, 8, 0, True)
        seal(journal)


@pytest.mark.parametrize(("segment", "position"), [(0, 20), (0, 250), (0, -1), (1, 300)])
def test_every_damaged_byte_is_found(journal: str, segment: int, position: int) -> None:
    path = flip(journal, segment, position)
    check, found = damages(journal)
    assert check.damages == len(found) >= 1
    assert found[0][0] == path


def test_a_missing_segment_is_found(journal: str, folder: str) -> None:
    write(f"{folder}/journal", [[EXAMPLE[1][2][-1]._replace(sequence=99)]])
    check, found = damages(journal)
    assert (check.lost["deleted"], check.is_whole, found) == (89, False, [])
