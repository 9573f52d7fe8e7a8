"""Retention: which sealed files and segments are deleted, by size and by age."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from journal.format.journals import START_NS, rows, segment

from sbuslib.journal.format.directory import list_segments
from sbuslib.journal.read import read_plan, retention, units
from sbuslib.journal.read.journal_files import list_sealed
from sbuslib.journal.read.retention import retain
from sbuslib.journal.read.sealing import seal


def names(place: Path) -> list[tuple[int, int]]:
    """The first and last rows of the sealed files in a directory."""
    return [(one.first, one.last) for one in list_sealed(str(place))]


def test_the_oldest_files_are_deleted_by_size_and_by_age(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    for number in range(5):
        segment(journal, 1 + 3 * number, rows(3, 1 + 3 * number))
    seal(journal)
    sizes = [one.size for one in list_sealed(str(journal / "sealed"))] + [one.size for one in list_segments(journal)]
    retain(str(journal), sum(sizes[2:]), None)
    assert names(journal / "sealed") == [(7, 9), (10, 12), (13, 15)]
    retain(str(journal), None, time.time() - START_NS / 1e9 - 11)
    assert names(journal / "sealed") == [(10, 12), (13, 15)], "the rows of the first were older"
    retain(str(journal), None, 1)
    assert names(journal / "sealed") == [(13, 15)], "its segment is still there: it would be sealed again"
    assert seal(journal) == 0


def test_a_clock_that_was_ahead_keeps_no_file_for_ever(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    segment(journal, 1, [row._replace(time_ns=row.time_ns + 10**18) for row in rows(3)])
    os.utime(segment(journal, 4, rows(3, 4)), (START_NS / 1e9, START_NS / 1e9))
    seal(journal)
    ahead = segment(journal, 7, rows(3, 7))
    os.utime(ahead, (2**33, 2**33))
    segment(journal, 10, rows(3, 10))
    retain(str(journal), None, time.time() - START_NS / 1e9 - 3)
    assert names(journal / "sealed") == [(1, 3), (4, 6)], "what follows is not so old"
    retain(str(journal), None, 3_600)
    assert names(journal / "sealed") == []
    assert [one.first_sequence for one in list_segments(journal)] == [7, 10], "nothing says that it is old"


def test_a_segment_that_vanishes_does_not_make_those_before_it_old(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sealer deletes it after the listing; the clock of the file before it was ahead."""
    first = segment(journal, 1, [row._replace(time_ns=row.time_ns + 10**18) for row in rows(3)])
    seal(journal)
    first.unlink()
    vanishing = segment(journal, 4, rows(3, 4))
    segment(journal, 7, rows(3, 7))
    segment(journal, 10, rows(3, 10))

    def contents(place: str) -> read_plan.Contents:
        found = read_plan.contents(place)
        vanishing.unlink()
        return found

    monkeypatch.setattr(retention, "contents", contents)
    retain(str(journal), None, 3_600)
    assert names(journal / "sealed") == [(1, 3)]
    assert [one.first_sequence for one in list_segments(journal)] == [7, 10]


def test_segments_that_are_not_sealed_are_deleted_as_well(journal: Path) -> None:
    paths = [segment(journal, 1 + 3 * number, rows(3, 1 + 3 * number)) for number in range(3)]
    (journal / f"{10:020d}.sbj").touch()  # a recorder is about to begin one, or was killed then
    retain(str(journal), 1, None)
    assert [one.path for one in list_segments(journal)] == [str(paths[2]), f"{journal}/{10:020d}.sbj"]
    segment(journal, 10, rows(3, 10))
    retain(str(journal), None, 0.0)
    assert [one.first_sequence for one in list_segments(journal)] == [10]
