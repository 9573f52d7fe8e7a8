"""What each pattern would have received, and which patterns cover others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark.frames import message, recording, rows_of
from support import vectors

from sbuslib.covering import covers
from sbuslib.errors import UsageError
from sbuslib.matcher import matches
from sbuslib.spark.matching import by_key
from sbuslib.spark.subscriptions import _witness, coverage, read_patterns, received

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_pattern_has_a_row(spark: SparkSession) -> None:
    rows = [
        message(b"room/1/temp", b"21.5"),
        message(b"room/1/temp", b"2"),
        message(b"room/2/temp", b""),
        message(b"x"),
    ]
    patterns = [b"room/*/temp", b"", b"room/1/", b"nothing/here", b"\xff"]
    assert rows_of(received(by_key(recording(spark, rows)), patterns)) == [
        (b"", 4, 5, 3),
        (b"room/*/temp", 3, 5, 2),
        (b"room/1/", 2, 5, 1),
        (b"nothing/here", 0, 0, 0),
        (b"\xff", 0, 0, 0),
    ]


def test_every_pattern_has_a_row_where_nothing_was_published(spark: SparkSession, tmp_path: Path) -> None:
    zeros = [(b"a", 0, 0, 0), (b"b/", 0, 0, 0)]
    assert rows_of(received(by_key(recording(spark, [])), [b"b/", b"a"])) == zeros
    recording(spark, []).write.parquet(f"{tmp_path}/nothing")
    assert rows_of(received(by_key(spark.read.parquet(f"{tmp_path}/nothing")), [b"b/", b"a"])) == zeros
    assert rows_of(received(by_key(recording(spark, [message(b"a")])), [])) == []


def test_coverage_agrees_with_covers() -> None:
    patterns = sorted({pattern for _, pattern, _ in vectors()})[::8]
    assert len(patterns) > 100
    found = coverage([b"", *patterns])
    for narrow, others in zip(patterns, found[1:], strict=True):
        assert others == [wide for wide in patterns if wide and wide != narrow and covers(wide, narrow)]
    assert any(found)


def test_the_empty_pattern_does_not_mark_all_others_as_covered() -> None:
    assert coverage([b"", b"a/b", b"a/"]) == [[], [b"a/"], []]


@given(st.lists(st.sampled_from(b"a*/"), max_size=9).map(bytes))
def test_a_witness_is_a_key_that_the_pattern_matches(pattern: bytes) -> None:
    assert matches(pattern, _witness(pattern, b"/"))


def test_patterns_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "patterns"
    path.write_bytes(b'# rooms\nroom/*/temp\n\n""\nroom/*/temp\n\xff/\r\n')
    assert read_patterns(str(path)) == [b"room/*/temp", b"", b"\xff/"]
    path.write_bytes(b"a\nb\0c\n")
    with pytest.raises(UsageError, match=r"patterns, line 2: .*NUL"):
        read_patterns(str(path))
