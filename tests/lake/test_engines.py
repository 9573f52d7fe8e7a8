"""Every engine of Python reads the same rows, each once: sealed files and the live tail, with and without filters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from lake.journals import START_NS, rows, segment

from sbuslib.errors import CorruptJournalError, JournalError
from sbuslib.lake import engines
from sbuslib.lake.pieces import pieces
from sbuslib.lake.rows import Filter
from sbuslib.lake.sealing import seal
from sbuslib.segments.directory import DirectoryLock

READERS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "arrow": lambda found: found.to_pylist(),
    "pandas": lambda found: found.to_dict("records"),
    "polars": lambda found: found.collect().to_dicts(),
    "duckdb": lambda found: [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()],
}
ENGINES = pytest.mark.parametrize("engine", READERS)
COLUMNS = ["sequence", "key", "payload", "time_ns"]


def read(engine: str, *places: Path, **wanted: Any) -> list[tuple[Any, ...]]:
    """The rows that an engine reads, as tuples in the order of their numbers."""
    options = {name: wanted.pop(name) for name in ("durable_only", "on_corrupt") if name in wanted}
    found = getattr(engines, f"read_{engine}")([*map(str, places)], Filter(**wanted), columns=COLUMNS, **options)
    return sorted(tuple(row[name] for name in COLUMNS) for row in READERS[engine](found))


def expected(numbers: Any) -> list[tuple[Any, ...]]:
    return [(n, row.key, row.payload, row.time_ns) for n in numbers for row in rows(1, n)]


@pytest.fixture
def recorded(journal: Path) -> Path:
    """A journal of 30 rows, of which 20 are sealed."""
    segment(journal, 1, rows(10))
    segment(journal, 11, rows(10, 11))
    seal(journal, keep_segments=0)
    segment(journal, 21, rows(10, 21))
    return journal


@ENGINES
def test_all_rows_are_read_once(engine: str, recorded: Path) -> None:
    assert read(engine, recorded) == expected(range(1, 31))
    seal(recorded, keep_segments=0)
    assert read(engine, recorded) == expected(range(1, 31))
    assert read(engine, recorded / "sealed") == expected(range(1, 31))


@ENGINES
def test_rows_are_chosen_by_time_and_pattern(engine: str, recorded: Path) -> None:
    chosen = {"start_ns": START_NS + 5_000_000_000, "end_ns": START_NS + 26_000_000_000, "pattern": b"room/3/*"}
    assert read(engine, recorded, **chosen) == expected(n for n in range(5, 26) if n % 7 == 3)
    assert read(engine, recorded, pattern=b"*/4/temp") == expected(n for n in range(1, 31) if n % 7 == 4)
    assert read(engine, recorded, pattern=b"nothing/") == []


@ENGINES
def test_gaps_are_never_left_out_by_key(engine: str, journal: Path) -> None:
    segment(journal, 1, rows(3), (START_NS, "overflow", 4))
    segment(journal, 5, (START_NS, "overflow", 4))
    for _ in range(2):
        assert [row[0] for row in read(engine, journal, pattern=b"other") if row[1] is None] == [4, 5]
        seal(journal)


@ENGINES
def test_only_durable_rows_are_read_if_asked_for(engine: str, recorded: Path) -> None:
    segment(recorded, 31, rows(5, 31), rows(5, 36), sealed=False)
    lock = DirectoryLock(recorded)
    lock.tell(35)
    assert len(read(engine, recorded)) == 40
    assert read(engine, recorded, durable_only=True) == expected(range(1, 36))
    lock.release()
    with pytest.raises(CorruptJournalError, match="no end mark"):
        read(engine, recorded)


@pytest.mark.parametrize("engine", ["arrow", "pandas"])
def test_damage_is_an_error_that_names_the_sealed_file(engine: str, recorded: Path) -> None:
    (path,) = (recorded / "sealed").glob("*.parquet")
    data = bytearray(path.read_bytes())
    metadata = pyarrow.parquet.read_metadata(path)
    column = metadata.row_group(0).column(metadata.schema.names.index("payload"))
    data[column.data_page_offset + column.total_compressed_size - 60] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptJournalError, match=path.name):
        read(engine, recorded)


@ENGINES
def test_reading_begins_again_where_a_file_vanished(
    engine: str, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sealer replaces the last segment while it is about to be read."""
    done: list[int] = []

    def late(*arguments: Any) -> Any:
        planned = pieces(*arguments)
        if not done:
            segment(recorded, 31, rows(1, 31))
            segment(recorded, 32, rows(1, 32))
            done.append(seal(recorded, keep_segments=0))
        return planned

    monkeypatch.setattr(engines, "pieces", late)
    assert read(engine, recorded)[:30] == expected(range(1, 31))
    assert done == [1]


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no such directory"):
        read("arrow", tmp_path / "nothing")
