"""The data source in Spark: columns, options, several journals, and errors."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lake.journals import START_NS, rows, segment
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from support import ROOT

from sbuslib.lake.rows import SCHEMA
from sbuslib.spark.reader import Options, read_partition
from sbuslib.spark.sessions import explain
from sbuslib.spark.source import JournalSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_frame_has_every_column(spark: SparkSession, journal: Path) -> None:
    segment(journal, 1, rows(3), (START_NS + 9, "outage", 17))
    frame = spark.read.format("sbus").load(str(journal))
    assert to_arrow_schema(frame.schema, timezone="UTC") == SCHEMA
    assert frame.count() == 4
    first, *_, last = frame.orderBy("sequence").collect()
    assert first.asDict() | {"time": None} == {
        "time": None,
        "time_ns": START_NS + 1_000_000_000,
        "journal": "0123456789abcdef",
        "hub": "hub-1",
        "sequence": 1,
        "kind": "message",
        "key": b"room/1/temp",
        "payload": b"1",
        "size": 1,
        "sender": b"!/cred/100/1000/4711",
        "gid": 100,
        "uid": 1000,
        "pid": 4711,
        "lost": None,
        "cause": None,
    }
    assert (last.kind, last.lost, last.cause, last.key, last.size) == ("gap", 17, "outage", None, None)
    assert frame.where("time = timestamp'2025-06-15 15:06:41'").count() == 1, "in UTC"


def test_options_and_columns_apply_to_several_journals(spark: SparkSession, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    segment(one, 1, rows(20))
    segment(other, 1, rows(20), hub="hub-2", journal="fedcba9876543210")
    options = {"pattern": "room/*/temp", "keyPrefix": "room/3", "startTime": "2025-06-15T17:06:44+02:00"}
    source = spark.read.format("sbus").schema("hub STRING, size BIGINT, key BINARY").options(**options)
    frame = source.load([str(one), str(other)])
    assert [tuple(row) for row in frame.orderBy("hub", "size").collect()] == [
        ("hub-1", 2, b"room/3/temp"),
        ("hub-1", 2, b"room/3/temp"),
        ("hub-2", 2, b"room/3/temp"),
        ("hub-2", 2, b"room/3/temp"),
    ]


def test_the_example_prints_keys_rates_and_losses(
    spark: SparkSession, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gaps = [(START_NS + 1, "overflow", 3), (START_NS + 2, "outage", None)]
    segment(journal, 1, rows(80, keys=2), *gaps)
    runpy.run_path(str(ROOT / "examples" / "spark_read.py"))["main"](str(journal))
    assert capsys.readouterr().out.splitlines() == [
        "the busiest keys:",
        "  room/0/temp 40 messages, 76 bytes",
        "  room/1/temp 40 messages, 75 bytes",
        "messages by minute:",
        "  15:06 19",
        "  15:07 60",
        "  15:08 1",
        "missing: 3, and 1 times nobody knows how many",
    ]


def test_an_empty_journal_has_no_rows(spark: SparkSession, journal: Path) -> None:
    journal.mkdir()
    assert spark.read.format("sbus").load(str(journal)).collect() == []
    assert list(read_partition(InputPartition(None), SCHEMA, Options.read({"path": str(journal)}))) == []


def test_errors_are_explained_in_one_line(spark: SparkSession, journal: Path) -> None:
    with pytest.raises(Exception, match="no such directory") as caught:
        spark.read.format("sbus").load(str(journal)).count()
    assert explain(caught.value) == f"{journal}: no such directory"
    path = segment(journal, 1, rows(3))
    path.write_bytes(path.read_bytes()[:-50])
    segment(journal, 4, rows(3))
    with pytest.raises(Exception, match="byte 112: a block is cut") as caught:
        spark.read.format("sbus").load(str(journal)).collect()
    assert explain(caught.value) == f"{path}: byte 112: a block is cut"


def test_spark_finds_the_source() -> None:
    from pyspark_sbus import DefaultSource

    assert DefaultSource is JournalSource
    assert DefaultSource.name() == "sbus"
