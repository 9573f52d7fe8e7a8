"""``sbuslib.read``: its arguments, and that it names what is missing. The engines have tests of their own."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from journal.format.journals import START_NS, rows, segment
from support import python

import sbuslib
from sbuslib.errors import UsageError


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    segment(tmp_path, 1, rows(10))
    return tmp_path


@pytest.mark.parametrize(
    "start",
    [START_NS + 4_000_000_000, "2025-06-15T15:06:44", datetime.datetime(2025, 6, 15, 15, 6, 44, tzinfo=datetime.UTC)],
)
def test_times_are_numbers_or_text_or_datetimes(journal: Path, start: int | str | datetime.datetime) -> None:
    table = sbuslib.read(journal, start=start, end="2025-06-15T17:06:47+02:00", columns=["sequence"])
    assert table.to_pydict() == {"sequence": [4, 5, 6]}


def test_a_path_and_several_paths_are_read(journal: Path) -> None:
    assert sbuslib.read(str(journal)).equals(sbuslib.read([journal, str(journal)]))
    assert sbuslib.read(journal, "pandas", pattern="room/3/temp")["sequence"].tolist() == [3, 10]


def test_wrong_arguments_are_refused(journal: Path) -> None:
    with pytest.raises(UsageError, match="engine is one of arrow, pandas, polars, duckdb, spark, not 'excel'"):
        sbuslib.read(journal, "excel")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no column 'user'"):
        sbuslib.read(journal, columns=["user"])
    with pytest.raises(UsageError, match="start is a time such as"):
        sbuslib.read(journal, start="noon")


def test_what_is_missing_is_named(journal: Path) -> None:
    code = f"""
import sbuslib, sys
for engine, library in (("polars", "polars"), ("duckdb", "duckdb"), ("spark", "pyspark")):
    sys.modules[library] = None
    try:
        sbuslib.read({str(journal)!r}, engine)
    except sbuslib.errors.StateError as error:
        print(error)
"""
    said = python("-c", code).splitlines()
    for line, library, extra in zip(said, ("polars", "duckdb", "pyspark"), ("query", "query", "spark"), strict=True):
        assert f"{library} is missing: pip install 'sbuslib[{extra}]'" in line
