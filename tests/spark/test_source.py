"""The data source and sink: options, columns, and the work of a task. No Spark is started."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from journal.format.journals import START_NS, rows, segment
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from support import PATIENCE, HubThread, python

from sbuslib.blocking import Client
from sbuslib.errors import UsageError
from sbuslib.journal.read.journal_files import ListedSegment
from sbuslib.journal.read.read_plan import RowRange
from sbuslib.journal.read.schema import SCHEMA
from sbuslib.spark.reader import Options, arrow_schema, group, read_partition, settle_once
from sbuslib.spark.sink import BusWriter, Target
from sbuslib.spark.source import JournalSource


def test_spark_finds_the_source() -> None:
    from pyspark_sbus import DefaultSource

    assert DefaultSource is JournalSource
    assert DefaultSource.name() == "sbus"


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
def test_wrong_options_of_a_source_are_refused(options: dict[str, str], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Options.read(options)


def columns(text: str) -> StructType:
    """A schema of columns such as ``"key binary, payload binary"``. Spark's own parser needs a session."""
    schema = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        schema.add(name, kind)
    return schema


@pytest.mark.parametrize(
    ("options", "schema", "match"),
    [
        ({"adress": "/tmp/bus"}, "key binary, payload binary", "no such option: adress; there are address"),
        ({"timeout": "soon"}, "key binary, payload binary", "timeout is a positive number"),
        ({"timeout": "0"}, "key binary, payload binary", "timeout is a positive number"),
        ({}, "key binary", "here payload is missing"),
        ({}, "key date, payload binary", "the column key is binary or string, not date"),
    ],
)
def test_wrong_options_and_columns_of_a_sink_are_refused(options: dict[str, str], schema: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Target.read(options, columns(schema))


def test_a_task_publishes_bytes_and_text_under_keys(address: str) -> None:
    def write(*rows: dict[str, Any]) -> None:
        target = Target.read({"address": address}, columns("key binary, payload string"))
        BusWriter(target).write(iter([pyarrow.RecordBatch.from_pylist([row]) for row in rows]))

    with HubThread(address), Client(address) as client:
        client.subscribe(b"")
        write({"key": b"a", "payload": "x"}, {"key": b"b", "payload": None})
        found = [client.receive(timeout=PATIENCE) for _ in range(2)]
        assert [(message.key, message.payload) for message in found] == [(b"a", b"x"), (b"b", b"")]
        with pytest.raises(UsageError, match="a row has no key"):
            write({"key": None, "payload": ""})


def test_wrong_columns_of_a_source_are_refused() -> None:
    for schema, match in (("sizes long", "no column 'sizes'"), ("key string", "of type binary")):
        with pytest.raises(UsageError, match=match):
            arrow_schema(columns(schema))


def test_reading_does_not_load_pandas(journal: Path) -> None:
    segment(journal, 1, rows(10), (START_NS + 7, "overflow", 41), [rows(1, 12)[0]._replace(sender=None)])
    code = f"""
import sys
from sbuslib.journal.read.schema import SCHEMA
from sbuslib.journal.read.read_plan import plan
from sbuslib.spark.reader import Options, group, read_partition
(ranges,) = plan([{str(journal)!r}]).values()
(task,) = group(ranges)
chosen = Options.read({{"path": {str(journal)!r}, "pattern": "room/1/"}})
rows = [row for batch in read_partition(task, SCHEMA, chosen) for row in batch.column("sequence").to_pylist()]
print(rows, "pandas" in sys.modules)
"""
    assert python("-c", code) == "[1, 8, 11] False\n"


def test_pieces_are_divided_among_tasks_by_size() -> None:
    sizes = enumerate([10, 20, 30, 500, 1, 1])
    row_ranges = [RowRange(None, "p", n, n + 1, ListedSegment(f"{n}", n, size)) for n, size in sizes]
    tasks = group(row_ranges, 60)
    assert [[row_range.first for row_range in task.value] for task in tasks] == [[0, 1, 2], [3], [4, 5]]
    assert group([]) == []
    assert list(read_partition(InputPartition(None), SCHEMA, Options.read({"path": "/"}))) == []


def test_what_a_worker_has_loaded_is_left_out_of_garbage_collection_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    for task, expected in ((None, []), ("a task", [True])):
        settle_once.cache_clear()
        monkeypatch.setattr(TaskContext, "get", lambda task=task: task)
        settle_once()
        settle_once()
        assert frozen == expected, "in workers only"
