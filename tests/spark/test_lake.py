"""Frames of sealed files and live tails, and taking journals into a lake as a job of Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lake.journals import SALT, START_NS, Row, rows, segment

import sbuslib
from sbuslib.lake.sealing import Written, ingest, seal
from sbuslib.matcher import matches
from sbuslib.segments.directory import DirectoryLock
from sbuslib.segments.layout import SegmentHeader
from sbuslib.spark.lake import on_spark, read, regex

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    lock.tell(34)
    assert sequences(spark, journal, durable_only=True) == [*range(1, 35)]
    assert sequences(spark, journal) == [*range(1, 38)]
    lock.release()
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
    ("flip", "said"), [(200, "checksum|Parquet|ParquetDecodingException|FAILED_READ_FILE"), (-3, "FAILED_READ_FILE")]
)
def test_damage_of_a_sealed_file_is_an_error_that_names_it(
    spark: SparkSession, journal: Path, flip: int, said: str
) -> None:
    segment(journal, 1, rows(10))
    seal(journal)
    (path,) = (journal / "sealed").glob("*.parquet")
    data = bytearray(path.read_bytes())
    data[flip] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=rf"(?s)({said}).*{path.name}|{path.name}.*({said})"):
        read(spark, journal).collect()


PARTS = st.lists(st.sampled_from([b"a", b"ab", b"*", b"a*", b"**", b"a**", b"", b"*a", b".", b"\xff\n"]), max_size=4)


@given(PARTS, PARTS)
def test_the_regular_expression_says_what_the_matcher_says(pattern: list[bytes], key: list[bytes]) -> None:
    one, other = b"/".join(pattern), b"/".join(key)
    expression = re.compile(f"(?s)(?:{regex(one)})")
    assert (expression.fullmatch(other.decode("latin-1")) is not None) == matches(one, other)
