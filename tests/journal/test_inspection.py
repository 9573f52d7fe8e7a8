"""Summaries, rows and checks of journals that are whole, damaged, or being written."""

from __future__ import annotations

import os

import pytest
from segments.journals import EXAMPLE, write

from sbuslib.errors import CorruptJournalError, JournalError
from sbuslib.journal.inspection import Check, rows, summarize, verify
from sbuslib.journal.replay import Selection
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
    found = summarize(journal)
    assert (found.separator, found.recorded) == ("/", False)
    assert [(one.first_row, one.rows, one.sealed, one.damage) for one in found.segments] == [
        (1, 3, True, None),
        (4, 6, True, None),
    ]
    assert sum(one.bytes for one in found.segments) == sum(
        os.path.getsize(os.path.join(journal, name)) for name in os.listdir(journal)
    )
    assert found.segments[1].latest == EXAMPLE[1][2][-1].time_ns


def test_a_damaged_header_is_told_with_its_segment(journal: str) -> None:
    flip(journal, 1, 50)
    first, second = summarize(journal).segments
    assert first.damage is None
    assert (second.rows, second.damage) == (0, "the segment's header is damaged")


def test_a_segment_whose_last_block_is_damaged_tells_no_latest_time(journal: str) -> None:
    flip(journal, 0, 250)
    assert summarize(journal).segments[0].latest is None


def test_what_is_no_journal_is_an_error(folder: str) -> None:
    for look in (summarize, lambda place: list(rows(place, Selection())), damages):
        with pytest.raises(JournalError, match="there is no segment of a journal here"):
            look(folder)
        with pytest.raises(FileNotFoundError):
            look(f"{folder}/none")


def test_rows_are_selected(journal: str) -> None:
    assert [row.sequence for row in rows(journal, Selection())] == [*range(1, 10)]
    assert [row.sequence for row in rows(journal, Selection([b"room/2/"]))] == [4, 5, 6, 7, 8], "gaps are for all"
    moments = [row.time_ns for row in rows(journal, Selection())]
    late = [row.sequence for row in rows(journal, Selection(start=moments[-1]))]
    assert late == [number for number, moment in enumerate(moments, 1) if moment >= moments[-1]]


def test_damage_is_an_error_or_skipped(journal: str) -> None:
    flip(journal, 0, 250)
    with pytest.raises(CorruptJournalError):
        list(rows(journal, Selection()))
    skipped: list[object] = []
    found = rows(journal, Selection(), on_corrupt="skip", on_skip=skipped.append)
    assert [row.sequence for row in found] == [4, 5, 6, 7, 8, 9]
    assert len(skipped) == 1


def test_a_whole_journal_is_verified(journal: str) -> None:
    check, found = damages(journal)
    assert found == []
    assert (check.segments, check.rows, check.messages, check.lost, check.damages) == (2, 9, 6, 8, 0)


@pytest.mark.parametrize(("segment", "position"), [(0, 20), (0, 250), (0, -1), (1, 300), (1, -1)])
def test_every_damaged_byte_is_found(journal: str, segment: int, position: int) -> None:
    path = flip(journal, segment, position)
    check, found = damages(journal)
    assert check.damages == len(found) >= 1
    assert found[0][0] == path


def test_a_missing_segment_is_found(journal: str, folder: str) -> None:
    write(f"{folder}/journal", [[EXAMPLE[1][2][-1]._replace(sequence=99)]])
    (_, skipped), *rest = damages(journal)[1]
    assert rest == []
    assert "rows 10 to 98 are missing between this segment and the next" in skipped.reason
