"""The data source: journals, lakes, and how they are divided among tasks."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType
from segments.journals import SALT, START_NS, Row, flip, rows, segment
from support import ROOT, python

import sbuslib
from sbuslib.errors import UsageError
from sbuslib.lake.pieces import Piece
from sbuslib.lake.readers import Wish
from sbuslib.lake.rows import SCHEMA
from sbuslib.lake.sealing import Written, ingest, seal
from sbuslib.lake.selection import EVERYTHING, Selection
from sbuslib.matcher import matches
from sbuslib.segments.directory import DirectoryLock, Segment
from sbuslib.segments.layout import SegmentHeader
from sbuslib.spark.lake import on_spark, read, regex
from sbuslib.spark.reader import JournalReader, Options, arrow_schema, encode_plan, group, read_partition
from sbuslib.spark.sessions import explain
from sbuslib.spark.source import JournalSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- The data source in Spark: columns, options, several journals, and errors


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


# -- Frames of sealed files and live tails, and taking journals into a lake as a job of Spark


def sequences(spark: SparkSession, *places: Path, **options: Any) -> list[int]:
    frame = sbuslib.read(places, "spark", session=spark, columns=["sequence"], **options)
    return sorted(row.sequence for row in frame.collect())


def test_sealed_files_and_the_live_tail_are_read_once(spark: SparkSession, journal: Path) -> None:
    segment(journal, 1, rows(10))
    segment(journal, 11, rows(10, 11))
    seal(journal)
    segment(journal, 21, rows(10, 21))
    assert sequences(spark, journal) == [*range(1, 31)]
    planned = read(spark, journal)
    chosen = {"start": START_NS + 5_000_000_000, "end": START_NS + 26_000_000_000, "pattern": "room/3/*"}
    assert sequences(spark, journal, **chosen) == [n for n in range(5, 26) if n % 7 == 3]
    segment(journal, 31, rows(1, 31))
    seal(journal)
    assert sorted(row.sequence for row in planned.collect()) == [*range(1, 31)], "sealed after the frame was made"
    assert "BatchScan" not in sbuslib.read(journal, "spark", session=spark)._jdf.queryExecution().toString()
    lock = DirectoryLock(journal)
    segment(journal, 32, rows(3, 32), rows(3, 35), sealed=False)
    lock.tell(b"%020d" % 34)
    assert sequences(spark, journal, durable_only=True) == [*range(1, 35)]
    assert sequences(spark, journal) == [*range(1, 38)]
    lock.close()
    assert sequences(spark, journal) == [*range(1, 39)], "and the gap that tells of a kill"


def test_a_pattern_that_is_no_utf8_and_other_separators_are_right(spark: SparkSession, tmp_path: Path) -> None:
    for identity, separator in (("0" * 16, b"."), ("1" * 16, b"/")):
        keys = (b"\xff.1.x", b"\xff/1/x", b"a.1.b")
        path = segment(tmp_path / identity, 1, [Row(key, b"", START_NS) for key in keys])
        header = SegmentHeader(identity, "hub-1", separator, START_NS, 1, SALT).encode()
        path.write_bytes(header + path.read_bytes()[len(header) :])

    def found(pattern: bytes) -> list[bytes]:
        frame = sbuslib.read([*tmp_path.iterdir()], "spark", session=spark, columns=["key"], pattern=pattern)
        return sorted(bytes(row.key) for row in frame.collect())

    for _ in range(2):
        assert found(b"\xff.*.x") == [b"\xff.1.x"]
        assert found(b"\xff/*/x") == [b"\xff/1/x"]
        assert found(b"a.*.b") == [b"a.1.b"], "a literal, where the separator is another"
        for place in tmp_path.iterdir():
            seal(place)


def test_a_cluster_takes_journals_into_a_lake(spark: SparkSession, tmp_path: Path) -> None:
    journals = [tmp_path / name for name in "abc"]
    for number, journal in enumerate(journals):
        segment(journal, 1, rows(10), journal=f"{number}123456789abcdef")
    seal(journals[0])
    made: list[Written] = []
    for _ in range(2):
        ingest(journals, tmp_path / "lake", progress=made.append, run=on_spark(spark))
        assert [one.rows for one in made] == [10, 10, 10]
    assert read(spark, tmp_path / "lake").groupBy("journal").count().count() == 3


@pytest.mark.parametrize(
    ("at", "said"), [(200, "checksum|Parquet|ParquetDecodingException|FAILED_READ_FILE"), (-3, "FAILED_READ_FILE")]
)
def test_damage_of_a_sealed_file_is_an_error_that_names_it(
    spark: SparkSession, journal: Path, at: int, said: str
) -> None:
    segment(journal, 1, rows(10))
    seal(journal)
    (path,) = (journal / "sealed").glob("*.parquet")
    flip(path, at)
    with pytest.raises(Exception, match=rf"(?s)({said}).*{path.name}|{path.name}.*({said})"):
        read(spark, journal).collect()


PARTS = st.lists(st.sampled_from([b"a", b"ab", b"*", b"a*", b"**", b"a**", b"", b"*a", b".", b"\xff\n"]), max_size=4)


@given(PARTS, PARTS)
def test_the_regular_expression_says_what_the_matcher_says(pattern: list[bytes], key: list[bytes]) -> None:
    one, other = b"/".join(pattern), b"/".join(key)
    expression = re.compile(f"(?s)(?:{regex(one)})")
    assert (expression.fullmatch(other.decode("latin-1")) is not None) == matches(one, other)


# -- How journals are divided among tasks and read by them. No Spark is started


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


def test_one_task_reads_many_small_segments(journal: Path) -> None:
    for n in range(50):
        segment(journal, 1 + 3 * n, rows(3))
    (partition,) = reader(journal).partitions()
    assert len(partition.value) == 50
    assert values("sequence", journal) == list(range(1, 151))


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


def test_a_pattern_may_be_any_bytes(journal: Path) -> None:
    segment(journal, 1, [Row(b"\xff/1", b"", START_NS), Row(b"a/1", b"", START_NS)], (START_NS, "overflow", 4))
    plan = encode_plan(Wish([str(journal)], EVERYTHING).pieces(), Selection(patterns=(b"\xff/*",)))
    assert values("key", journal, plan=plan) == [b"\xff/1", None], "no filter by key leaves out a gap"


def test_reading_does_not_load_pandas(journal: Path) -> None:
    segment(journal, 1, rows(10), (START_NS + 7, "overflow", 41), [rows(1, 12)[0]._replace(sender=None)])
    code = f"""
import sys
from sbuslib.lake.rows import SCHEMA
from sbuslib.lake.pieces import plan
from sbuslib.spark.reader import Options, group, read_partition
(pieces,) = plan([{str(journal)!r}]).values()
(task,) = group(pieces)
chosen = Options.read({{"path": {str(journal)!r}, "keyPrefix": "room/1"}})
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
