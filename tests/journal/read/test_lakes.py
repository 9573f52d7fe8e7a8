"""Whatever is taken into a lake, deleted, damaged and taken in again: readers give each row that it has, once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal.format.journals import flip, rows, segment
from journal.read.test_verify import told

from sbuslib.errors import CorruptJournalError
from sbuslib.journal.consume import consume
from sbuslib.journal.read.blocks import read_records
from sbuslib.journal.read.journal_files import list_sealed
from sbuslib.journal.read.sealing import ingest, seal
from sbuslib.journal.summary import summarize
from sbuslib.journal.verify import verify

ROWS = st.integers(1, 40)
PARTS = st.lists(st.tuples(ROWS, st.integers(1, 12)), min_size=1, max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("ingest"), PARTS),
    st.tuples(st.just("seal first"), PARTS),
    st.tuples(st.just("damaged"), PARTS),
    st.tuples(st.just("delete"), st.integers(0, 9)),
)


def apart(parts: list[tuple[int, int]]) -> list[range]:
    """Ranges of rows in order, of which none overlaps another; some adjoin."""
    found: list[range] = []
    for first, count in sorted(parts):
        first = max(first, found[-1].stop) if found else first
        found.append(range(first, first + count))
    return found


def in_files(lake: Path) -> tuple[set[int], set[int]]:
    """The messages that stand in any file of a lake, and the rows that any tells as damaged: as any program reads."""
    there, damaged = set[int](), set[int]()
    for path in lake.glob("*.parquet"):
        for row in pyarrow.parquet.read_table(path, columns=["sequence", "kind", "cause", "lost"]).to_pylist():
            if row["kind"] == "message":
                there.add(row["sequence"])
            elif row["cause"] == "damaged":
                damaged.update(range(row["sequence"] - row["lost"] + 1, row["sequence"] + 1))
    return there, damaged


def check(lake: Path) -> None:
    """All readers give each row of a lake once, and all that is missing between them as gap rows."""
    there, damaged = in_files(lake)
    numbers, gaps = told(lake)
    assert len({*numbers}) == len(numbers)
    assert there - damaged <= {*numbers} <= there
    records = list(read_records(lake))
    assert [row.sequence for row in records if row.key is not None] == numbers
    assert [row.sequence for row in records] == sorted(row.sequence for row in records)
    assert verify(lake).messages == len(numbers)
    if not records:
        return

    # All numbers from the first one on are accounted for, also for a consumer and in a summary.
    (summary,) = summarize(lake)
    said = sum(lost or 0 for _, _, lost in gaps)
    assert len(numbers) + said == records[-1].sequence - summary.files[0].first_row + 1
    assert sum(one.rows for one in summary.files) == len(records) - sum(row.cause == "deleted" for row in records)
    with (
        tempfile.TemporaryDirectory() as positions,
        consume("one", [b""], lake, follow=False, positions=positions) as consumer,
    ):
        assert list(consumer) == records


def take_in(lake: Path, kind: str, parts: list[range], place: Path) -> None:
    """One step of the history of a lake."""
    before, known = in_files(lake)
    paths = [segment(place, part[0], rows(len(part), part[0])) for part in parts]
    damaged = set[int]()
    if kind == "damaged":
        flip(paths[0], 112 + 40)
        damaged.update(parts[0])
        if not damaged <= before | known:
            with pytest.raises(CorruptJournalError):
                ingest([place], lake)
        ingest([place], lake, on_corrupt="skip")
    else:
        if kind == "seal first":
            seal(place)
        ingest([place], lake)
    there, told_damaged = in_files(lake)
    assert before | ({row for part in parts for row in part} - damaged - told_damaged) <= there

    # Once more: nothing is new.
    files = list_sealed(str(lake))
    ingest([place], lake, on_corrupt="skip" if damaged else "error")
    assert list_sealed(str(lake)) == files


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=6))
def test_each_row_that_a_lake_has_is_read_once_whatever_came_before(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder, "lake")
        lake.mkdir()
        for number, (kind, what) in enumerate(steps):
            if kind == "delete":
                files = sorted(lake.glob("*.parquet"))
                if files:
                    files[what % len(files)].unlink()
            else:
                take_in(lake, kind, apart(what), Path(folder, str(number)))
        if list(lake.glob("*.parquet")):
            check(lake)
