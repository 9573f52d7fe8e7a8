"""Every engine of Python reads the same rows, each once: sealed files and the live tail, with and without filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from journal.format.journals import READERS, START_NS, rows, segment

import sbuslib
from sbuslib.journal.format.directory import DirectoryLock
from sbuslib.journal.read import arrow_batches, readers, units
from sbuslib.journal.read.readers import Wish
from sbuslib.journal.read.sealing import seal
from sbuslib.journal.read.selection import Selection
from sbuslib.reading import Engine

ENGINES = pytest.mark.parametrize("engine", READERS)
COLUMNS = ["sequence", "key", "payload", "time_ns"]


def read_by(engine: Engine, *places: Path, **wanted: Any) -> list[tuple[Any, ...]]:
    """The rows that an engine reads, as tuples in the order of their numbers."""
    options = {name: wanted.pop(name) for name in ("durable_only", "on_corrupt") if name in wanted}
    wish = Wish([*map(str, places)], Selection(**wanted), COLUMNS, **options)
    found = getattr(readers, f"read_{engine}")(wish)
    return sorted(tuple(row[name] for name in COLUMNS) for row in READERS[engine](found))


def read(*places: Path, **wanted: Any) -> list[tuple[Any, ...]]:
    """What every engine reads alike."""
    first, *others = [read_by(engine, *places, **wanted) for engine in READERS]
    assert others == [first] * len(others)
    return first


def expected(numbers: Any) -> list[tuple[Any, ...]]:
    return [(n, row.key, row.payload, row.time_ns) for n in numbers for row in rows(1, n)]


@pytest.fixture
def recorded(journal: Path) -> Path:
    """A journal of 30 rows, of which 20 are sealed."""
    segment(journal, 1, rows(10))
    segment(journal, 11, rows(10, 11))
    seal(journal)
    segment(journal, 21, rows(10, 21))
    return journal


@ENGINES
def test_rows_come_in_the_order_of_their_numbers(
    journal: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    for first in range(1, 6_000, 1_000):
        segment(journal, first, rows(1_000, first))
    seal(journal)
    segment(journal, 6_001, rows(1_000, 6_001))
    wish = Wish(
        [str(journal)], Selection(start_ns=START_NS + 500 * 10**9, end_ns=START_NS + 6_500 * 10**9), ["sequence"]
    )
    found = READERS[engine](getattr(readers, f"read_{engine}")(wish))
    assert [row["sequence"] for row in found] == [*range(500, 6_500)]


def test_rows_are_chosen_by_time_and_pattern(recorded: Path) -> None:
    chosen = {"start_ns": START_NS + 5_000_000_000, "end_ns": START_NS + 26_000_000_000, "patterns": (b"room/3/*",)}
    assert read(recorded, start_ns=START_NS + 5 * 10**9, end_ns=START_NS + 8 * 10**9) == expected(range(5, 8)), "sealed"
    for places in ((recorded,), (recorded, recorded / "sealed")):
        assert read(*places) == expected(range(1, 31))
        assert read(*places, **chosen) == expected(n for n in range(5, 26) if n % 7 == 3)
        assert read(*places, patterns=(b"*/4/temp",)) == expected(n for n in range(1, 31) if n % 7 == 4)
        assert read(*places, patterns=(b"nothing/",)) == []
        seal(recorded)


def test_gaps_are_never_left_out_by_key(journal: Path) -> None:
    segment(journal, 1, rows(3), (START_NS, "overflow", 4))
    segment(journal, 5, (START_NS, "overflow", 4))
    for _ in range(2):
        assert [row[0] for row in read(journal, patterns=(b"other",))] == [4, 5]
        seal(journal)


def test_only_durable_rows_are_read_if_asked_for(recorded: Path) -> None:
    segment(recorded, 31, rows(5, 31), rows(5, 36), sealed=False)
    lock = DirectoryLock(recorded)
    lock.write_note(b"%020d" % 35)
    assert len(read(recorded)) == 40
    assert read(recorded, durable_only=True) == expected(range(1, 36))
    lock.close()


@ENGINES
def test_files_that_vanish_are_looked_for_again(
    engine: Engine, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sealer replaces the last segment when it is about to be read."""
    planned = Wish.row_ranges

    def late(wish: Wish) -> Any:
        found = planned(wish)
        segment(recorded, 31, rows(1, 31))
        segment(recorded, 32, rows(1, 32))
        seal(recorded)
        return found

    monkeypatch.setattr(Wish, "row_ranges", late)
    assert read_by(engine, recorded) == expected(range(1, 31))


@ENGINES
def test_a_long_tail_is_read_in_pieces(engine: Engine, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an engine that is lazy counts its rows, at most a few batches of them are there."""
    monkeypatch.setattr(arrow_batches.Decoder.__init__, "__defaults__", (100, arrow_batches.BATCH_BYTES))
    segment(journal, 1, *(rows(50, 1 + 50 * number) for number in range(100)))
    there = peak = 0
    real = arrow_batches.batches

    def counted(*arguments: Any) -> Any:
        nonlocal there, peak
        for batch in real(*arguments):
            there = pyarrow.total_allocated_bytes()
            peak = max(peak, there)
            yield batch

    monkeypatch.setattr(readers, "batches", counted)
    whole = readers.read_arrow(Wish([str(journal)], Selection())).nbytes
    found = getattr(readers, f"read_{engine}")(Wish([str(journal)], Selection()))
    if engine in ("polars", "duckdb"):
        before, peak = pyarrow.total_allocated_bytes(), 0
        for _ in range(2):
            count = found.select(found.collect_schema().names()[0]).collect() if engine == "polars" else found
            assert len(count if engine == "polars" else count.aggregate("count(*)").fetchall()) in (5000, 1)
        assert peak - before < whole / 4
    else:
        assert len(READERS[engine](found)) == 5000


@pytest.mark.parametrize("name", ["a[b]", "a{b,c}", "a*", "a?", "a\\b", "[!a]", "'q\"", "#x"])
@pytest.mark.parametrize("engine", READERS)
def test_a_folder_may_have_any_name(tmp_path: Path, engine: Engine, name: str) -> None:
    """Engines take some characters for patterns, and would read other folders, or none."""
    for folder, first in ((name, 1), ("ab", 101), ("ac", 201), ("a-b", 301)):
        segment(tmp_path / folder, first, rows(10, first))
        segment(tmp_path / folder, first + 10, rows(2, first + 10))
        seal(tmp_path / folder)
    frame = sbuslib.read(tmp_path / name, engine, columns=["sequence"])
    assert sorted(row["sequence"] for row in READERS[engine](frame)) == [*range(1, 13)]


@pytest.mark.parametrize("engine", ["polars", "duckdb"])
def test_only_files_of_this_machine_are_read_whole_to_check_them(
    recorded: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine fetches of a remote file what it needs."""
    checked: list[str] = []
    monkeypatch.setattr(readers, "checked", lambda file: checked.append(file.path))
    lake = recorded / "sealed"
    for place, is_checked in ((str(lake), True), (f"file://{lake}", False)):
        checked.clear()
        sbuslib.read(place, engine)
        assert bool(checked) == is_checked
