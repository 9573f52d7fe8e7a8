"""The account of a journal's rows: each is in one range, wherever it lies."""

from __future__ import annotations

import shutil
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal.format.journals import START_NS, message_block, rows, segment

from sbuslib.journal.format.decoding import walk
from sbuslib.journal.format.layout import SEGMENT_HEADER_BYTES
from sbuslib.journal.read import segment_rows
from sbuslib.journal.read.arrow_batches import batches
from sbuslib.journal.read.blocks import blocks
from sbuslib.journal.read.journal_files import ListedSegment, Sealed
from sbuslib.journal.read.read_plan import RowRange, _ordered, instead, measure, plan
from sbuslib.journal.read.schema import SCHEMA
from sbuslib.journal.read.sealing import ingest, seal
from sbuslib.journal.read.selection import Selection

JOURNAL = "0123456789abcdef"


def row_ranges(place: Path, first: int | None = None, **options: Any) -> list[RowRange]:
    """What there is to read of a journal."""
    wanted = {JOURNAL: first} if first is not None else None
    return [row_range for found in plan([str(place)], first=wanted, **options).values() for row_range in found]


def sequences(some: list[RowRange], **wanted: Any) -> list[int]:
    """The numbers of the rows in some ranges, which are the same as batches and as blocks."""
    selection = Selection(**wanted)
    found = [n for batch in batches(some, SCHEMA, selection) for n in batch.column("sequence").to_pylist()]
    blocked = [
        row.sequence
        for rows in blocks(some, selection)
        for row in rows.block.records()
        if selection.has(row.time_ns) and (row.key is None or selection.wants(row.key, b"/"))
    ]
    assert found == blocked
    return found


def bounds(some: list[RowRange]) -> list[tuple[str, int, int | None]]:
    """What each range is, and its rows."""
    kinds = {ListedSegment: "segment", Sealed: "sealed", type(None): "missing"}
    return [(kinds[type(row_range.file)], row_range.first, row_range.before) for row_range in some]


def sealed_and_open(journal: Path) -> None:
    """A journal of 30 rows: 20 are sealed, of which 10 are still in a segment, too."""
    segment(journal, 1, rows(10))
    segment(journal, 11, rows(10, 11))
    seal(journal)
    segment(journal, 21, rows(10, 21))


def test_sealed_files_and_segments_are_read_each_row_once(journal: Path) -> None:
    sealed_and_open(journal)
    assert bounds(row_ranges(journal)) == [("sealed", 1, 21), ("segment", 21, 31)]
    assert sequences(row_ranges(journal)) == [*range(1, 31)]
    assert sequences(row_ranges(journal, 21)) == [*range(21, 31)]
    assert sequences(row_ranges(journal, 15)) == [*range(15, 31)]
    assert sequences(row_ranges(journal, 28)) == [28, 29, 30]
    assert sequences(row_ranges(journal), patterns=(b"room/3/",)) == [n for n in range(1, 31) if n % 7 == 3]
    between = {"start_ns": START_NS + 9_000_000_000, "end_ns": START_NS + 23_000_000_000}
    assert sequences(row_ranges(journal), **between) == [*range(9, 23)]
    seal(journal)
    assert bounds(row_ranges(journal)) == [("sealed", 1, 21), ("sealed", 21, 31)]


def test_an_open_segment_is_read_on_from_a_known_block(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = segment(journal, 1, rows(5), rows(5, 6), rows(5, 11), sealed=False)
    (row_range,) = row_ranges(journal)
    assert bounds(instead(row_range)) == bounds([row_range])
    row, at = measure(row_range, 7)
    assert (row, at) == (6, 112 + len(message_block(1, rows(5))))
    assert measure(row_range) == (16, path.stat().st_size)
    walked: list[int] = []

    def walking(read_at: Any, size: int, row: int, at: int) -> Any:
        walked.append(at)
        return walk(read_at, size, row, at)

    monkeypatch.setattr(segment_rows, "walk", walking)
    found = row_ranges(journal, 6, known={str(path): (row, at)})
    assert sequences([row_range._replace(is_killed=False) for row_range in found]) == [*range(6, 16)]
    assert {*walked} == {at}
    found = row_ranges(journal, 4, known={str(path): (row, at)})
    assert sequences([row_range._replace(is_killed=False) for row_range in found]) == [*range(4, 16)], (
        "it begins too late"
    )


def test_a_segment_that_vanished_is_read_from_the_sealed_file(journal: Path) -> None:
    for number in range(4):
        segment(journal, 1 + 10 * number, rows(10, 1 + 10 * number))
    planned = row_ranges(journal, 5)
    assert [kind for kind, _, _ in bounds(planned)] == ["segment"] * 4
    assert [bounds(instead(one)) for one in planned] == [bounds([one]) for one in planned], "no other file is opened"
    seal(journal)
    assert sequences(planned) == [*range(5, 41)]
    shutil.rmtree(journal / "sealed")
    assert sequences(planned) == [10, 20, 30, *range(31, 41)], "gaps, and what is left"


def test_rows_in_several_places_are_read_once(journal: Path, tmp_path: Path) -> None:
    sealed_and_open(journal)
    copy = tmp_path / "copy"
    shutil.copytree(journal, copy)
    segment(journal, 31, rows(10, 31))
    ingest([journal], tmp_path / "lake")
    segment(journal, 41, rows(10, 41))
    everywhere = [str(copy), str(journal), str(tmp_path / "lake")]
    for places in permutations(everywhere):
        (found,) = plan([*places]).values()
        assert sequences(found) == [*range(1, 51)]


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.booleans()), min_size=1, max_size=8),
    st.none() | st.integers(1, 45),
)
def test_a_plan_has_each_row_once_and_no_hole(files: list[tuple[int, int, bool]], first: int | None) -> None:
    spans = [
        RowRange(
            JOURNAL,
            "p",
            start,
            start + size,
            Sealed("", JOURNAL, start, start + size - 1, 0, 1, 0, 1) if is_sealed else ListedSegment("", start, 1),
            99,
        )
        for start, size, is_sealed in files
    ]
    there = {row for row_range in spans for row in range(row_range.first, row_range.before or 0)}
    least = min(there) if first is None else first
    expected = [*range(least, max(there) + 1)]
    found = _ordered(spans, first)
    assert [row for row_range in found for row in range(row_range.first, row_range.before or 0)] == expected
    missing = [
        row for row_range in found if row_range.file is None for row in range(row_range.first, row_range.before or 0)
    ]
    assert missing == [row for row in expected if row not in there]


def test_an_older_copy_of_a_journal_that_has_grown_ends_where_the_other_goes_on(tmp_path: Path, journal: Path) -> None:
    segment(journal, 1, rows(5), sealed=False)
    copy = Path(shutil.copytree(journal, tmp_path / "copy"))
    segment(journal, 1, rows(5), rows(5, 6), sealed=False)
    for places in permutations([str(journal), str(copy)]):
        found = [row for row_range in blocks(plan(places)[JOURNAL]) for row in row_range.block.records()]
        assert [row.sequence for row in found if row.kind == "message"] == [*range(1, 11)]
        assert [row.cause for row in found if row.kind == "gap"] == ["cut"], "as no recorder is at work, at the end"


def test_a_recorder_that_was_killed_before_its_first_row_leaves_a_gap(journal: Path) -> None:
    segment(journal, 1, rows(5))
    begun = segment(journal, 6, rows(5, 6), sealed=False)
    begun.write_bytes(begun.read_bytes()[: SEGMENT_HEADER_BYTES + 3])
    found = [row for part in blocks(plan([str(journal)])[JOURNAL]) for row in part.block.records()]
    assert [(row.kind, row.cause) for row in found] == [*[("message", None)] * 5, ("gap", "cut")]
