"""Keys against patterns in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark.frames import gap, message, recording, rows_of
from support import vectors

from sbuslib.errors import UsageError
from sbuslib.spark.matching import by_key, each_match, with_matches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rows_are_counted_by_key(spark: SparkSession) -> None:
    rows = [message(b"a\xff", b"123"), message(b"b"), message(b"a\xff", b"12345"), gap(3, "overflow"), message(b"")]
    assert sorted(rows_of(by_key(recording(spark, rows)))) == [(b"", 1, 0, 0), (b"a\xff", 2, 8, 5), (b"b", 1, 0, 0)]


def test_matches_are_those_of_the_vectors_of_the_protocol(spark: SparkSession) -> None:
    """The vectors of the protocol, all at once."""
    cases = [case for case in vectors() if not case[2].startswith(b"!/")]
    patterns = sorted({pattern for _, pattern, _ in cases})
    frame = spark.createDataFrame([(key,) for key in sorted({key for _, _, key in cases})], "key binary")
    found = {bytes(key): set(matched) for key, matched in rows_of(with_matches(frame, patterns))}
    assert len(cases) > 3_000
    for verdict, pattern, key in cases:
        assert (patterns.index(pattern) in found[key]) is verdict, (pattern, key)


def test_secret_keys_and_gaps_match_nothing(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(b"!/cred/1/2/3/x",), (b"!x",), (None,)], "key binary")
    assert rows_of(with_matches(frame, [b"", b"!/"])) == [(b"!/cred/1/2/3/x", []), (b"!x", [0]), (None, [])]


def test_other_columns_stay_and_matches_are_in_order(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("one", b"a.b", 1.5), ("two", b"c", None)], "name string, key binary, weight double")
    found = rows_of(with_matches(frame, [b"*.b", b"", b"a."], b"."))
    assert found == [("one", b"a.b", 1.5, [0, 1, 2]), ("two", b"c", None, [1])]


def test_each_match_is_a_row(spark: SparkSession) -> None:
    keys = [("one", b"a.b", 1.5), ("two", b"c", None), ("three", b"!.x", 2.0), ("all", None, 0.0)]
    frame = spark.createDataFrame(keys, "name string, key binary, weight double")
    assert rows_of(each_match(frame, [b"*.b", b"nothing", b"", b"a."], b".")) == [
        (b"*.b", "one", 1.5),
        (b"", "one", 1.5),
        (b"a.", "one", 1.5),
        (b"", "two", None),
        (b"*.b", "all", 0.0),
        (b"nothing", "all", 0.0),
        (b"", "all", 0.0),
        (b"a.", "all", 0.0),
    ]
    assert rows_of(each_match(frame, [])) == []


def test_a_wrong_separator_is_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="separator"):
        with_matches(spark.createDataFrame([(b"a",)], "key binary"), [b""], b"//")
