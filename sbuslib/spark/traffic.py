"""What a bus carried: volume over time, by level of the key, by sender and user, by size, and what was lost.

All work is in two passes over the rows: :func:`~sbuslib.spark.matching.by_key` for the levels of keys, and
:func:`summaries` for everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UsageError
from ..matcher import SEPARATOR, check_separator
from .matching import is_message

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame

__all__ = ["Span", "by_level", "period", "span", "summaries"]

_PERIODS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 86_400, 604_800)
_BUSIEST = [("messages", "descending"), ("bytes", "descending")]
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


_SUMMARIES: dict[str, tuple[tuple[str, ...], str, tuple[str, ...], list[tuple[str, str]]]] = {
    "over_time": (("hub", "start"), "", ("messages", "bytes", "lost"), [("hub", "ascending"), ("start", "ascending")]),
    "by_sender": (("sender", "uid"), "messages", ("messages", "bytes"), [*_BUSIEST, ("sender", "ascending")]),
    "by_user": (("uid", "gid"), "messages", ("messages", "bytes"), [*_BUSIEST, ("uid", "ascending")]),
    "sizes": (("size_to",), "messages", ("messages", "bytes"), [("size_to", "ascending")]),
    "gaps": (("hub", "cause"), "gaps", ("gaps", "lost", "first", "last"), [("lost", "descending")]),
}
"""Of each summary: what it groups by, which count is not 0, its other columns, and its order."""


def summaries(rows: DataFrame, seconds: int) -> dict[str, pyarrow.Table]:
    """What the rows come to, in one job of Spark, which runs at once.

    * ``over_time``: ``hub``, ``start`` of a period, ``messages``, ``bytes`` (of payloads) and ``lost`` (by gap rows),
      in order. ``start`` is null for gaps of unknown time.
    * ``by_sender``: ``sender`` (the whole path; null if unknown), ``uid``, ``messages``, ``bytes``, the busiest first.
    * ``by_user``: ``uid``, ``gid`` (null if the hub cannot vouch for them), ``messages``, ``bytes``, the busiest first.
    * ``sizes``: ``size_to``, ``messages`` and ``bytes``, for payloads longer than half of ``size_to`` and up to that:
      0, 1, 2, 4, ...
    * ``gaps``: ``hub``, ``cause``, ``gaps``, ``lost``, ``first`` and ``last`` (time): what the recorder knew was lost.

    :param rows: rows with ``time_ns``, ``hub``, ``kind``, ``size``, ``sender``, ``gid``, ``uid``, ``lost``, ``cause``.
    :param seconds: the length of a period.
    """
    from pyspark.sql import functions as f

    size, message = f.col("size").cast("bigint"), is_message()
    # The number of binary digits of size - 1, since a logarithm is not exact.
    power = f.when(size <= 1, size).otherwise(f.expr("shiftleft(1L, length(bin(size - 1)))"))
    groups = ("hub", "start", "sender", "gid", "uid", "size_to", "cause")
    digest = (
        rows.withColumn("start", _start(seconds))
        .withColumn("size_to", f.when(message, power))
        .groupBy(*groups)
        .agg(
            f.count(f.when(message, 1)).alias("messages"),
            f.coalesce(f.sum(f.when(message, size)), f.lit(0)).alias("bytes"),
            f.count(f.when(~message, 1)).alias("gaps"),
            f.coalesce(f.sum("lost"), f.lit(0)).alias("lost"),
            f.min("time_ns").alias("first"),
            f.max("time_ns").alias("last"),
        )
    )
    sets = [[f.col(name) for name in by] for by, *_ in _SUMMARIES.values()]
    sums = [f.sum(name).alias(name) for name in ("messages", "bytes", "gaps", "lost")]
    times = [
        f.timestamp_seconds(one(name) / f.lit(1_000_000_000)).alias(name)
        for one, name in ((f.min, "first"), (f.max, "last"))
    ]
    whole = digest.groupingSets(sets, *groups).agg(f.grouping_id().alias("set"), *sums, *times).toArrow()
    return {name: _summary(whole, groups, *choice) for name, choice in _SUMMARIES.items()}


def _summary(
    whole: pyarrow.Table,
    groups: Sequence[str],
    by: tuple[str, ...],
    counted: str,
    columns: tuple[str, ...],
    order: list[tuple[str, str]],
) -> pyarrow.Table:
    """One of the summaries, out of all of them."""
    from pyarrow import compute

    # Spark sets the bit of each column that a set does not group by; the first column has the highest.
    number = int("".join("01"[name not in by] for name in groups), 2)
    chosen = compute.equal(whole["set"], number)
    if counted:
        chosen = compute.and_(chosen, compute.greater(whole[counted], 0))
    return whole.filter(chosen).select([*by, *columns]).sort_by(order)


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
        .orderBy("level", f.desc("messages"), f.desc("bytes"), "prefix")
    )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
