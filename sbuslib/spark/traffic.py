"""What a bus carried: volume over time, by level of the key, by sender and user, by size, and what was lost.

Almost all work is in two passes over the rows, :func:`~sbuslib.spark.matching.by_key` and :func:`digest`. Persist their
results to make several tables of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..errors import UsageError
from ..matcher import SEPARATOR, check_separator
from .matching import is_message

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Span", "by_level", "by_sender", "by_user", "digest", "gaps", "over_time", "period", "sizes", "span"]

_PERIODS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 86_400, 604_800)
_POINTS = 240
"""Most periods in a plot: as many as a screen can show, and few enough to draw quickly."""


class Span(NamedTuple):
    """The first and last time in a recording, in nanoseconds since the epoch, and how many rows it has."""

    first_ns: int
    last_ns: int
    rows: int

    @property
    def seconds(self) -> float:
        """The time from the first row to the last."""
        return (self.last_ns - self.first_ns) / 1e9


def span(rows: DataFrame) -> Span | None:
    """The span of ``rows`` (``time_ns``); ``None`` when there are none. It runs a job of Spark at once.

    Gaps of unknown time only count as rows.
    """
    from pyspark.sql import functions as f

    first, last, count = rows.agg(f.min("time_ns"), f.max("time_ns"), f.count(f.lit(1))).collect()[0]
    return None if not count else Span(first or 0, last or 0, count)


def period(seconds: float) -> int:
    """A round number of seconds, of which 240 or fewer cover the span.

    >>> period(60), period(3_600), period(86_400)
    (1, 15, 600)
    """
    return next((period for period in _PERIODS if seconds / period <= _POINTS), _PERIODS[-1])


def _start(seconds: int) -> Column:
    from pyspark.sql import functions as f

    if seconds < 1:
        raise UsageError(f"a period is one second or more, not {seconds}")
    # In whole nanoseconds, as a timestamp has only microseconds.
    step = seconds * 1_000_000_000
    return f.timestamp_seconds((f.col("time_ns") - f.pmod(f.col("time_ns"), f.lit(step))) / f.lit(1_000_000_000))


def digest(rows: DataFrame, seconds: int) -> DataFrame:
    """Counts of rows by ``hub``, ``start`` of a period, ``sender``, ``gid``, ``uid`` and ``size_to``.

    The counts are ``messages``, ``bytes`` (of payloads) and ``lost`` (by gap rows). ``size_to`` is the size of the
    payload, rounded up to 0, 1, 2, 4, ...

    :param rows: rows with ``time_ns``, ``hub``, ``kind``, ``size``, ``sender``, ``gid``, ``uid`` and ``lost``.
    :param seconds: the length of a period.
    """
    from pyspark.sql import functions as f

    size = f.col("size").cast("bigint")
    # The number of binary digits of size - 1, since a logarithm is not exact.
    power = f.when(size <= 1, size).otherwise(f.expr("shiftleft(1L, length(bin(size - 1)))"))
    message = is_message()
    return rows.groupBy(
        "hub", _start(seconds).alias("start"), "sender", "gid", "uid", f.when(message, power).alias("size_to")
    ).agg(
        f.count(f.when(message, 1)).alias("messages"),
        f.coalesce(f.sum(f.when(message, size)), f.lit(0)).alias("bytes"),
        f.coalesce(f.sum("lost"), f.lit(0)).alias("lost"),
    )


def _summed(frame: DataFrame, *columns: str) -> DataFrame:
    from pyspark.sql import functions as f

    return frame.groupBy(*columns).agg(
        f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"), f.sum("lost").alias("lost")
    )


def over_time(digest: DataFrame) -> DataFrame:
    """``hub``, ``start``, ``messages``, ``bytes`` and ``lost`` of each period with rows, in order.

    ``start`` is null for gaps of unknown time.
    """
    return _summed(digest, "hub", "start").orderBy("hub", "start")


def by_sender(digest: DataFrame) -> DataFrame:
    """``sender`` (the whole path; null if unknown), ``messages`` and ``bytes``, the busiest first."""
    return _summed(digest.where("messages > 0"), "sender").drop("lost").orderBy(*_busiest("sender"))


def by_user(digest: DataFrame) -> DataFrame:
    """``uid`` and ``gid`` (null if the hub cannot vouch for them), ``messages`` and ``bytes``, the busiest first."""
    return _summed(digest.where("messages > 0"), "uid", "gid").drop("lost").orderBy(*_busiest("uid", "gid"))


def sizes(digest: DataFrame) -> DataFrame:
    """``size_to``, ``messages`` and ``bytes``, for payloads longer than half of ``size_to`` and up to ``size_to``."""
    return _summed(digest.where("messages > 0"), "size_to").drop("lost").orderBy("size_to")


def gaps(rows: DataFrame) -> DataFrame:
    """The losses that the recorder knew of: ``hub``, ``cause``, ``gaps``, ``lost``, and ``first`` and ``last`` time.

    :param rows: rows with ``time_ns``, ``hub``, ``kind``, ``lost`` and ``cause``.
    """
    from pyspark.sql import functions as f

    second = f.lit(1_000_000_000)
    return (
        rows.where(~is_message())
        .groupBy("hub", "cause")
        .agg(
            f.count(f.lit(1)).alias("gaps"),
            f.sum("lost").alias("lost"),
            f.timestamp_seconds(f.min("time_ns") / second).alias("first"),
            f.timestamp_seconds(f.max("time_ns") / second).alias("last"),
        )
        .orderBy(f.desc("lost"), "hub", "cause")
    )


def by_level(keys: DataFrame, levels: int = 3, separator: bytes = SEPARATOR) -> DataFrame:
    """Volume by the first segments of keys: ``level``, ``prefix``, ``messages``, ``bytes``, ``keys``, ``largest``.

    Level 1 is the first segment alone. A ``prefix`` of longer keys ends in the separator, so it is the pattern that
    matches these keys. Ordered by level, the busiest first.

    :param keys: what :func:`~sbuslib.spark.matching.by_key` gives.
    """
    from pyspark.sql import functions as f

    if levels < 1:
        raise UsageError(f"levels are counted from 1, not {levels}")
    text = check_separator(separator).decode()
    # A binary column cast to string keeps its bytes through the functions that are used here.
    key = f.col("key").cast("string")
    segments = f.length("key") - f.length(f.replace(key, f.lit(text), f.lit("")).cast("binary")) + 1
    frame = keys.withColumn("level", f.explode(f.sequence(f.lit(1), f.lit(levels)))).where(f.col("level") <= segments)
    part = f.expr(f"substring_index(cast(key as string), '{_quoted(text)}', level)")
    prefix = f.when(f.col("level") < segments, f.concat(part, f.lit(text))).otherwise(part)
    return (
        frame.groupBy("level", prefix.cast("binary").alias("prefix"))
        .agg(
            f.sum("messages").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.count(f.lit(1)).alias("keys"),
            f.max("largest").alias("largest"),
        )
        .orderBy("level", *_busiest("prefix"))
    )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _busiest(*then: str) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.desc("messages"), f.desc("bytes"), *(f.asc(name) for name in then)]
