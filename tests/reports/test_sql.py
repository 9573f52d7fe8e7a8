"""Rows in DuckDB: which engine is used, which rows count, and what goes wrong. ``tests/spark`` has Spark beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from journal.format.journals import START_NS, rows, segment

from sbuslib.errors import JournalError, StateError
from sbuslib.journal.read.sealing import seal
from sbuslib.reports.sql import Choice, default_engine, in_duckdb

COUNT = "SELECT COUNT(*) FROM sbus_recorded"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of 20 sealed messages, one a second, and 10 that are not sealed."""
    place = tmp_path / "journal"
    segment(place, 1, rows(20))
    seal(place)
    segment(place, 21, rows(10, 21), hub="hub-2")
    return place


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        (Choice(), 30),
        (Choice(hub="hub-2"), 10),
        (Choice(hub="' OR 1 = 1 --"), 0),
        (Choice(start_ns=START_NS + 5_000_000_000), 26),
        (Choice(end_ns=START_NS + 5_000_000_000), 4),
        (Choice("hub-1", START_NS + 5_000_000_000, START_NS + 25_000_000_000), 16),
    ],
)
def test_only_the_rows_that_are_asked_for_count(journal: Path, choice: Choice, count: int) -> None:
    with in_duckdb(journal, choice) as recorded:
        assert recorded.query(COUNT) == [(count,)]
        assert recorded.query(COUNT) == [(count,)], "also when it is asked again"


def test_a_file_that_is_gone_is_an_error_of_one_line(journal: Path) -> None:
    with in_duckdb(journal) as recorded:
        for path in (journal / "sealed").iterdir():
            path.unlink()
        with pytest.raises(JournalError, match=r"\A[^\n]+\.parquet[^\n]*\Z"):
            recorded.query("SELECT SUM(size) FROM sbus_recorded")


def test_nothing_is_written_where_the_user_is(journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB would put there what does not fit into memory."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with in_duckdb(journal) as recorded:
        assert not recorded.query("SELECT 1 FROM duckdb_settings() WHERE name = 'temp_directory' AND value = '.tmp'")
        recorded.query(COUNT)
    assert list(here.iterdir()) == []


def test_duckdb_counts_what_is_on_this_machine_and_spark_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (default_engine("/var/lib/sbus"), default_engine(Path("x")), default_engine("s3://bucket/lake")) == (
        "duckdb",
        "duckdb",
        "spark",
    )
    monkeypatch.setattr("sbuslib.reports.sql.find_spec", lambda name: name == "pyspark" or None)
    assert default_engine("/var/lib/sbus") == "spark"
    monkeypatch.setattr("sbuslib.reports.sql.find_spec", lambda name: None)
    assert default_engine("/var/lib/sbus") == "duckdb", "its extra is the smaller one"


@pytest.mark.parametrize("name", ["duckdb", "pyarrow"])
def test_a_missing_library_is_named(journal: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(StateError, match=rf"{name} is missing: pip install 'sbuslib\[report\]'"), in_duckdb(journal):
        pass
