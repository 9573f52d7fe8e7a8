"""What a bus carried, counted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from spark.frames import SECOND, START_NS, gap, message, recording, rows_of

from sbuslib.errors import UsageError
from sbuslib.spark import traffic
from sbuslib.spark.matching import by_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OTHER = b"!/cred/100/1001/99"


@pytest.fixture(scope="module")
def rows(spark_session: SparkSession) -> DataFrame:
    return recording(
        spark_session,
        [
            message(b"room/1/temp", b"21.5", at=0.25),
            message(b"room/2/temp", b"19", at=0.75),
            message(b"room/1/temp", b"", at=11, hub="hub-2", sender=OTHER, uid=1001),
            message(b"log", b"x" * 1_000, at=11.5),
            gap(7, "overflow", at=12),
            gap(2, "overflow", at=19.9),
            gap(1, "corrupt", at=12, hub="hub-2"),
        ],
    )


@pytest.fixture(scope="module")
def found(rows: DataFrame) -> dict[str, Any]:
    return traffic.summaries(rows, 10)


def tuples(table: Any, *names: str) -> list[tuple[Any, ...]]:
    return [*zip(*(table[name].to_pylist() for name in names or table.column_names), strict=True)]


def test_span_is_the_time_from_the_first_row_to_the_last(rows: DataFrame) -> None:
    span = traffic.span(rows)
    assert span == (START_NS + SECOND // 4, START_NS + 199 * SECOND // 10, 7)
    assert span is not None
    assert span.seconds == pytest.approx(19.65)
    assert traffic.span(rows.where("false")) is None


@pytest.mark.parametrize(("seconds", "expected"), [(0, 1), (240, 1), (241, 2), (86_400, 600), (1e9, 604_800)])
def test_a_period_is_round_and_gives_few_points(seconds: float, expected: int) -> None:
    assert traffic.period(seconds) == expected


def test_over_time_counts_by_hub_and_period(found: dict[str, Any]) -> None:
    first, second = (datetime.fromtimestamp(START_NS // SECOND + n, UTC) for n in (0, 10))
    assert tuples(found["over_time"]) == [
        ("hub-1", first, 2, 6, 0),
        ("hub-1", second, 1, 1_000, 9),
        ("hub-2", second, 1, 0, 1),
    ]


def test_messages_are_counted_by_sender_and_by_user(found: dict[str, Any]) -> None:
    assert tuples(found["by_sender"]) == [(b"!/cred/100/1000/4711", 1000, 3, 1_006), (OTHER, 1001, 1, 0)]
    assert tuples(found["by_user"]) == [(1000, 100, 3, 1_006), (1001, 100, 1, 0)]


def test_gaps_are_counted_by_hub_and_cause(found: dict[str, Any]) -> None:
    last = datetime.fromtimestamp(START_NS / SECOND + 19.9, UTC)
    assert tuples(found["gaps"], "hub", "cause", "gaps", "lost") == [
        ("hub-1", "overflow", 2, 9),
        ("hub-2", "corrupt", 1, 1),
    ]
    assert found["gaps"]["last"][0].as_py() == last


def test_sizes_are_powers_of_two(spark: SparkSession) -> None:
    sizes = [0, 1, 2, 3, 4, 5, 1024, 1025, 2**29, 409_600]
    found = tuples(traffic.summaries(recording(spark, [message(b"k", size=size) for size in sizes]), 60)["sizes"])
    assert [(size_to, count) for size_to, count, _ in found] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (4, 2),
        (8, 1),
        (1024, 1),
        (2048, 1),
        (524_288, 1),
        (2**29, 1),
    ]
    assert sum(total for _, _, total in found) == sum(sizes)


def test_levels_are_bytes_up_to_a_separator(spark: SparkSession) -> None:
    keys = [b"a/b/c", b"a/b", b"a/\xff\xfe/d", b"a", b"", b"/x", b"$1/*/'\\"]
    frame = by_key(recording(spark, [message(key, b"xy") for key in keys]))
    found = {(level, prefix): keys for level, prefix, _, _, keys, _ in rows_of(traffic.by_level(frame, 2))}
    assert found == {
        (1, b"a/"): 3,
        (1, b"a"): 1,
        (1, b""): 1,
        (1, b"/"): 1,
        (1, b"$1/"): 1,
        (2, b"a/b/"): 1,
        (2, b"a/b"): 1,
        (2, b"a/\xff\xfe/"): 1,
        (2, b"/x"): 1,
        (2, b"$1/*/"): 1,
    }


def test_levels_come_busiest_first_with_another_separator(spark: SparkSession) -> None:
    rows = [message(b"b.x", b"1"), message(b"a.x", b"1"), message(b"b.y", b"123")]
    found = rows_of(traffic.by_level(by_key(recording(spark, rows)), 1, b"."))
    assert found == [(1, b"b.", 2, 4, 2, 3), (1, b"a.", 1, 1, 1, 1)]


def test_wrong_periods_and_levels_are_refused(spark: SparkSession) -> None:
    frame = recording(spark, [message(b"a")])
    with pytest.raises(UsageError, match="period"):
        traffic.summaries(frame, 0)
    with pytest.raises(UsageError, match="levels"):
        traffic.by_level(by_key(frame), 0)
