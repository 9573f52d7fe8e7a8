"""The data source in Spark: columns, options, many journals, what is wrong, and the package that Spark finds."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from spark.journals import START_NS, Row, message_block, rows, segment
from support import ROOT

from sbuslib.errors import JournalError, UsageError
from sbuslib.limits import describe
from sbuslib.spark.decode import SCHEMA
from sbuslib.spark.limits import SparkLimits
from sbuslib.spark.reader import JournalReader, Options, arrow_schema, read_partition
from sbuslib.spark.sessions import explain
from sbuslib.spark.source import JournalSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def everything() -> StructType:
    schema = JournalSource({}).schema()
    assert isinstance(schema, StructType)
    return schema


def numbers(*journals: Path, **options: str) -> list[int]:
    """The sequences that a reader reads, without Spark."""
    chosen = Options.read({"paths": str([str(journal) for journal in journals]).replace("'", '"'), **options})
    reader = JournalReader(chosen, everything())
    return [
        number
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for number in batch.column("sequence").to_pylist()
    ]


def test_a_frame_has_every_column(spark: SparkSession, journal: Path) -> None:
    segment(journal, 1, rows(3), (START_NS + 9, "outage", 17), sealed=False)
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


def test_options_and_fewer_columns(spark: SparkSession, tmp_path: Path) -> None:
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


def test_the_example(spark: SparkSession, journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment(journal, 1, rows(80, keys=2), (START_NS + 1, "overflow", 3))
    runpy.run_path(str(ROOT / "examples" / "spark_read.py"))["main"](str(journal))
    assert capsys.readouterr().out.splitlines() == [
        "the busiest keys:",
        "  room/0/temp 40 messages, 76 bytes",
        "  room/1/temp 40 messages, 75 bytes",
        "messages by minute:",
        "  15:06 19",
        "  15:07 60",
        "  15:08 1",
        "missing: 3",
    ]


def test_nothing_to_read(spark: SparkSession, journal: Path) -> None:
    journal.mkdir()
    assert spark.read.format("sbus").load(str(journal)).collect() == []
    assert list(read_partition(InputPartition(None), SCHEMA, Options.read({"path": str(journal)}))) == []


def test_what_is_wrong_is_told_in_one_line(spark: SparkSession, journal: Path) -> None:
    with pytest.raises(Exception, match="no such directory") as caught:
        spark.read.format("sbus").load(str(journal)).count()
    assert explain(caught.value) == f"{journal}: no such directory"
    path = segment(journal, 1, rows(3))
    path.write_bytes(path.read_bytes()[:-50])
    segment(journal, 4, rows(3))
    with pytest.raises(Exception, match="byte 112: a block is cut") as caught:
        spark.read.format("sbus").load(str(journal)).collect()
    assert explain(caught.value) == f"{path}: byte 112: a block is cut"


def test_a_uri(journal: Path) -> None:
    segment(journal, 1, rows(3))
    chosen = Options.read({"path": journal.as_uri()})
    reader = JournalReader(chosen, everything())
    (partition,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(partition)) == 3
    with pytest.raises(JournalError, match="bogus://x"):
        JournalReader(Options.read({"path": "bogus://x"}), everything()).partitions()


def test_a_journal_that_is_being_written(journal: Path) -> None:
    segment(journal, 1, rows(3))
    growing = segment(journal, 4, rows(3), sealed=False)
    with growing.open("ab") as file:
        file.write(message_block(7, rows(5))[:-8])
    (journal / "00000000000000000012.sbj").write_bytes(b"")
    (journal / "recorder.lock").write_bytes(b"1\n")
    with pytest.raises(JournalError, match="a block is cut"):
        numbers(journal)  # a torn end is right only where a recorder may be at work
    (journal / "00000000000000000012.sbj").unlink()
    assert numbers(journal) == [1, 2, 3, 4, 5, 6]


def test_a_segment_is_missing_in_the_middle(journal: Path) -> None:
    segment(journal, 1, rows(3))
    segment(journal, 4, rows(3)).unlink()
    segment(journal, 7, rows(3))
    with pytest.raises(JournalError, match=r"rows 4 to 6 are missing"):
        numbers(journal)
    assert numbers(journal, onCorrupt="skip") == [1, 2, 3, None, 7, 8, 9]


def test_small_segments_are_one_task(journal: Path) -> None:
    for n in range(50):
        segment(journal, 1 + 3 * n, rows(3))
    (partition,) = JournalReader(Options.read({"path": str(journal)}), everything()).partitions()
    assert len(partition.value) == 50
    assert numbers(journal) == list(range(1, 151))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-06-15T15:06:40", START_NS),
        ("2025-06-15 17:06:40.000001+02:00", START_NS + 1_000),
        (str(START_NS + 7), START_NS + 7),
        ("1969-12-31T23:59:59", -1_000_000_000),
    ],
)
def test_times(text: str, expected: int) -> None:
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
    ],
)
def test_options_that_are_wrong(options: dict[str, str], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Options.read(options)


@pytest.mark.parametrize(
    ("name", "kind", "match"), [("sizes", "long", "no column 'sizes'"), ("key", "string", "of type binary")]
)
def test_columns_that_are_wrong(name: str, kind: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        arrow_schema(StructType().add(name, kind))


def test_a_relative_path_means_the_same_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Options.read({"path": "journal/"}).places == (f"{tmp_path}/journal",)
    assert Options.read({"paths": '["a", "b", "./a"]'}).places == (f"{tmp_path}/a", f"{tmp_path}/b")
    assert Options.read({"path": "s3://bucket/journal/"}).places == ("s3://bucket/journal",)


def test_the_table_of_limits_is_the_one_in_the_code() -> None:
    assert describe(SparkLimits) in (ROOT / "docs" / "spark.md").read_text("utf-8")


def test_limits_are_positive() -> None:
    with pytest.raises(UsageError, match=r"SparkLimits.batch_rows is positive"):
        SparkLimits(batch_rows=0)


def test_keys_are_any_bytes(journal: Path) -> None:
    segment(journal, 1, [Row(bytes(range(1, 256)), b"\0\xff" * 9, START_NS)])
    reader = JournalReader(Options.read({"path": str(journal)}), everything())
    (partition,) = reader.partitions()
    (row,) = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert (row["key"], row["payload"]) == (bytes(range(1, 256)), b"\0\xff" * 9)


def test_spark_finds_the_source() -> None:
    from pyspark_sbus import DefaultSource

    assert DefaultSource is JournalSource
    assert DefaultSource.name() == "sbus"
