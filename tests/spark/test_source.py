"""The data source: its options and columns, and how journals are divided among tasks. No Spark is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from segments.journals import START_NS, rows, segment
from support import python

from sbuslib.errors import UsageError
from sbuslib.lake.pieces import Piece
from sbuslib.lake.rows import SCHEMA
from sbuslib.segments.directory import Segment
from sbuslib.spark.reader import JournalReader, Options, arrow_schema, group, read_partition
from sbuslib.spark.source import JournalSource


def test_spark_finds_the_source() -> None:
    from pyspark_sbus import DefaultSource

    assert DefaultSource is JournalSource
    assert DefaultSource.name() == "sbus"


def reader(*journals: Path, **options: str) -> JournalReader:
    """The reader that Spark makes of these journals and options."""
    chosen = Options.read({"paths": json.dumps([str(journal) for journal in journals]), **options})
    return JournalReader(chosen, from_arrow_schema(SCHEMA))


def values(column: str, *journals: Path, **options: str) -> list[Any]:
    """A column of all rows of some journals."""
    whole = reader(*journals, **options)
    return [
        value
        for partition in whole.partitions()
        for batch in whole.read(partition)
        for value in batch.column(column).to_pylist()
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-06-15T15:06:40", START_NS),
        ("2025-06-15 17:06:40.000001+02:00", START_NS + 1_000),
        (str(START_NS + 7), START_NS + 7),
        ("1969-12-31T23:59:59", -1_000_000_000),
    ],
)
def test_time_options_are_iso_8601_or_nanoseconds(text: str, expected: int) -> None:
    assert Options.read({"path": "j", "startTime": text}).wanted.start_ns == expected


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "which journal"),
        ({"path": "j", "startime": "1"}, "no such option: startime; there are startTime"),
        ({"path": "j", "endTime": "noon"}, "endTime is a time such as"),
        ({"path": "j", "onCorrupt": "ignore"}, "onCorrupt is 'error' or 'skip', not 'ignore'"),
        ({"path": "j", "maxRecordsPerBatch": "0"}, "a positive whole number"),
        ({"path": "j", "maxRecordsPerBatch": "many"}, "a positive whole number"),
        ({"path": "j", "durableOnly": "yes"}, "durableOnly is 'true' or 'false', not 'yes'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Options.read(options)


@pytest.mark.parametrize(
    ("name", "kind", "match"), [("sizes", "long", "no column 'sizes'"), ("key", "string", "of type binary")]
)
def test_wrong_columns_are_refused(name: str, kind: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        arrow_schema(StructType().add(name, kind))


def test_reading_does_not_load_pandas(journal: Path) -> None:
    segment(journal, 1, rows(10), (START_NS + 7, "overflow", 41), [rows(1, 12)[0]._replace(sender=None)])
    code = f"""
import sys
from sbuslib.lake.rows import SCHEMA
from sbuslib.lake.pieces import plan
from sbuslib.spark.reader import Options, group, read_partition
(pieces,) = plan([{str(journal)!r}]).values()
(task,) = group(pieces)
chosen = Options.read({{"path": {str(journal)!r}, "pattern": "room/1/"}})
rows = [row for batch in read_partition(task, SCHEMA, chosen) for row in batch.column("sequence").to_pylist()]
print(rows, "pandas" in sys.modules)
"""
    assert python("-c", code) == "[1, 8, 11] False\n"


def test_pieces_are_divided_among_tasks_by_size() -> None:
    sizes = enumerate([10, 20, 30, 500, 1, 1])
    pieces = [Piece(None, "p", n, n + 1, Segment(f"{n}", n, size)) for n, size in sizes]
    tasks = group(pieces, 60)
    assert [[piece.first for piece in task.value] for task in tasks] == [[0, 1, 2], [3], [4, 5]]
    assert group([]) == []
    assert list(read_partition(InputPartition(None), SCHEMA, Options.read({"path": "/"}))) == []
