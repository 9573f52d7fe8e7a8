"""Watches a journal while it is written: rates by windows of time, and alerts to publish on the bus.

Structured streaming counts the rows of each window by key (:func:`windows`); :mod:`.live` does so for one journal,
without Spark. When a window is complete, a :class:`Judge` compares the messages that match the pattern of each rule
with its rate. The caller of :func:`watch` publishes the alerts under ``alerts/``. Messages under ``alerts/`` are not
counted, or one alert could cause the next.

A window is complete when a row has come that is later than its end by the *delay*. A clock ticks in the stream, so that
windows also become complete while nothing is published.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import ReservedKeyError, UsageError
from ..matcher import SEPARATOR, check_separator
from ..secrets import Namespace
from ..wire.text import printable
from .matching import with_matches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "ALERTS",
    "SHOWN",
    "Alert",
    "Judge",
    "Rule",
    "Window",
    "check_windows",
    "matched",
    "totals",
    "under_way",
    "watch",
    "windows",
]

ALERTS = b"alerts"
"""The first segment of the keys under which alerts are published."""

SHOWN = 5
"""How many prefixes of a window are shown: they fit into a line."""


class Rule(NamedTuple):
    """Broken by a window with more (``above``) or fewer (``below``) messages a second than ``rate``.

    Only messages whose keys match ``pattern`` count.
    """

    kind: Literal["above", "below", "lost"]
    pattern: bytes
    rate: float

    def check(self, separator: bytes = SEPARATOR) -> Rule:
        """Return this rule. Raises :exc:`~sbuslib.errors.UsageError` for a wrong pattern or rate."""
        if not 0 <= self.rate < float("inf"):
            raise UsageError(f"a rate is a number of messages a second, not {self.rate}")
        if b"\0" in self.pattern:
            raise UsageError("a pattern cannot hold a NUL byte")
        try:
            secret = Namespace(separator).check_key(self.pattern)
        except ReservedKeyError:
            secret = True
        if secret:
            raise UsageError(f"{printable(self.pattern)}: secret keys are never recorded")
        return self

    def key(self, separator: bytes = SEPARATOR, *, cleared: bool = False) -> bytes:
        """The key of alerts by this rule: ``alerts/above/<pattern>``, or ``alerts/cleared/above/<pattern>``."""
        parts = [ALERTS, *([b"cleared"] if cleared else []), self.kind.encode()]
        return separator.join(parts if self.kind == "lost" else [*parts, self.pattern])


class Alert(NamedTuple):
    """The message to publish when a window has broken a rule."""

    key: bytes
    payload: bytes


class Window(NamedTuple):
    """A complete window: its start, messages, bytes of payloads (``size``) and losses.

    ``busiest`` has the first segments of keys with most messages, each with the count.
    """

    start: datetime
    messages: int
    size: int
    lost: int
    busiest: tuple[tuple[bytes, int], ...]


def check_windows(seconds: float, delay: float = 0.0) -> None:
    """Raise :exc:`~sbuslib.errors.UsageError` for a length of windows or a delay that is out of bounds."""
    if not 1 <= seconds <= 86_400 or not 0 <= delay <= 86_400:
        raise UsageError(f"windows are of 1 to 86,400 seconds, and a delay is no longer, not {seconds} and {delay}")


def under_way(seconds: float) -> int:
    """The start of the current window, in nanoseconds since 1970. Raises :exc:`~sbuslib.errors.UsageError`."""
    check_windows(seconds)
    width = round(seconds * 1000) * 1_000_000
    return time.time_ns() // width * width


def windows(rows: DataFrame, seconds: float, delay: float, separator: bytes = SEPARATOR) -> DataFrame:
    """Counts by window and key: ``start``, ``key``, ``messages``, ``bytes`` and ``lost``.

    ``key`` is null for gaps and for ticks, and their ``messages`` are 0.

    :param rows: a frame or a stream with ``time``, ``kind``, ``key``, ``size`` and ``lost``.
    :param seconds: the length of a window.
    :param delay: how many seconds a row may come after later rows. A stream leaves out rows that come after that.
    """
    from pyspark.sql import functions as f

    own = check_separator(separator).join((ALERTS, b""))
    message = f.col("kind") == "message"
    return (
        rows.select("time", "kind", "key", "size", "lost")
        .where(f.col("key").isNull() | (f.substring("key", 1, len(own)) != f.lit(own)))
        .withWatermark("time", f"{round(delay * 1000)} milliseconds")
        .groupBy(f.window("time", f"{round(seconds * 1000)} milliseconds").alias("window"), "key")
        .agg(
            f.count(f.when(message, 1)).alias("messages"),
            f.coalesce(f.sum(f.when(message, f.col("size"))), f.lit(0)).alias("bytes"),
            f.coalesce(f.sum("lost"), f.lit(0)).alias("lost"),
        )
        .select(f.col("window.start").alias("start"), "key", "messages", "bytes", "lost")
    )


def totals(windows: DataFrame, separator: bytes = SEPARATOR) -> DataFrame:
    """The totals of each window, in order: ``start``, ``messages``, ``bytes``, ``lost`` and ``busiest``.

    ``busiest`` is a list of at most five, with ``prefix`` (the first segment of keys) and ``messages``, most first.

    :param windows: complete windows, as :func:`windows` gives them.
    """
    from pyspark.sql import functions as f

    text = check_separator(separator).decode()
    key = f.col("key").cast("string")
    first = f.substring_index(key, text, 1)
    prefix = f.when(f.length(first.cast("binary")) < f.length("key"), f.concat(first, f.lit(text))).otherwise(first)
    sums = [f.sum(name).alias(name) for name in ("messages", "bytes", "lost")]
    ranked = f.array_sort(
        f.collect_list(f.when(f.col("messages") > 0, f.struct((-f.col("messages")).alias("order"), "prefix")))
    )
    return (
        windows.groupBy("start", prefix.cast("binary").alias("prefix"))
        .agg(*sums)
        .groupBy("start")
        .agg(*sums, f.slice(ranked, 1, SHOWN).alias("ranked"))
        .select(
            "start",
            "messages",
            "bytes",
            "lost",
            f.transform(
                "ranked", lambda one: f.struct(one["prefix"].alias("prefix"), (-one["order"]).alias("messages"))
            ).alias("busiest"),
        )
        .orderBy("start")
    )


class Judge:
    """Compares windows with rules, in order: an alert for each window that breaks one, and for the first that does not.

    The payload is a JSON object with ``kind`` (``above``, ``below`` or ``lost``), ``pattern``, ``start`` (of the
    window, ISO 8601), ``seconds`` (its length), ``messages``, ``rate`` and ``limit`` (both a second). Losses always
    cause an alert, under ``alerts/lost``, with their count as ``messages``. The first window that does not break a rule
    after one that did is told under ``alerts/cleared/``.
    """

    def __init__(self, rules: Sequence[Rule], seconds: float, separator: bytes = SEPARATOR) -> None:
        self._rules = [*rules, Rule("lost", b"", 0)]
        self._seconds = seconds
        self._separator = separator
        self._broken = [False] * len(self._rules)

    def alerts(self, window: Window, matched: Sequence[int]) -> list[Alert]:
        """The alerts about a window; ``matched`` is how many of its messages match each rule."""
        found = []
        for number, (rule, messages) in enumerate(zip(self._rules, [*matched, window.lost], strict=True)):
            rate, was_broken = messages / self._seconds, self._broken[number]
            self._broken[number] = rate < rule.rate if rule.kind == "below" else rate > rule.rate
            if self._broken[number] or was_broken:
                key = rule.key(self._separator, cleared=not self._broken[number])
                found.append(Alert(key, self._payload(rule, window, messages, rate)))
        return sorted(found)

    def _payload(self, rule: Rule, window: Window, messages: int, rate: float) -> bytes:
        told = {
            "kind": rule.kind,
            "pattern": printable(rule.pattern),
            "start": f"{window.start:%Y-%m-%dT%H:%M:%S}Z",
            "seconds": self._seconds,
            "messages": messages,
            "rate": rate,
            "limit": float(rule.rate),
        }
        return json.dumps(told).encode()


def matched(windows: DataFrame, rules: Sequence[Rule], separator: bytes = SEPARATOR) -> dict[datetime, list[int]]:
    """How many messages of each window match each rule. It runs a job of Spark at once.

    :param windows: complete windows, as :func:`windows` gives them.
    """
    from pyspark.sql import functions as f

    found: dict[datetime, list[int]] = defaultdict(lambda: [0] * len(rules))
    if rules:
        matches = with_matches(windows.where("key is not null"), [rule.pattern for rule in rules], separator)
        each = matches.select("start", "messages", f.explode("matched").alias("number")).groupBy("start", "number")
        for start, number, messages in each.agg(f.sum("messages")).collect():
            found[start][number] = messages
    return found


def _ticks(spark: SparkSession) -> DataFrame:
    """A row each second from Spark's clock. It counts neither as a message nor as a loss."""
    from pyspark.sql import functions as f

    return (
        spark.readStream.format("rate")
        .option("rowsPerSecond", "1")
        .load()
        .select(
            f.col("timestamp").alias("time"),
            f.lit("tick").alias("kind"),
            f.lit(None).cast("binary").alias("key"),
            f.lit(0).cast("bigint").alias("size"),
            f.lit(None).cast("bigint").alias("lost"),
        )
    )


def watch(
    rows: DataFrame,
    rules: Sequence[Rule],
    *,
    seconds: float = 10.0,
    delay: float = 5.0,
    separator: bytes = SEPARATOR,
    ticks: bool = True,
    stop: threading.Event,
    on_window: Callable[[Window], object] = lambda window: None,
    on_alert: Callable[[Alert], object] = lambda alert: None,
    on_late: Callable[[int], object] = lambda count: None,
) -> None:
    """Watch until ``stop`` is set.

    :param rows: a stream, as ``spark.readStream.format("sbus").load(journal)`` gives it.
    :param ticks: whether windows also end by the clock. Rows that are older than the delay are then late, so set it to
        false for a stream of old rows.
    :param on_window: called with each complete window, in order.
    :param on_alert: called with each alert of a window, after it. It should publish the alert.
    :param on_late: called with the number of rows that were left out since the last call because they came too late.

    Raises :exc:`~sbuslib.errors.UsageError`, and what Spark raises.
    """
    # A long function because of its many arguments. What synchronizes batches with the end stays in one place.
    check_windows(seconds, delay)
    rules = [rule.check(separator) for rule in rules]
    columns = rows.select("time", "kind", "key", "size", "lost")
    if ticks:
        columns = columns.unionByName(_ticks(rows.sparkSession))
    judge = Judge(rules, seconds, separator)
    failed: list[Exception] = []
    at_work, ended = threading.Lock(), threading.Event()

    def take(frame: DataFrame, batch: int) -> None:
        with at_work:
            if stop.is_set() or ended.is_set():
                return
            try:
                frame.persist()
                counts = matched(frame, rules, separator)
                for window in _windows_of(frame, separator):
                    on_window(window)
                    for alert in judge.alerts(window, counts[window.start]):
                        on_alert(alert)
                frame.unpersist()
            except Exception as error:  # Spark hands on its text only
                failed.append(error)
                raise

    query = (
        windows(columns, seconds, delay, separator)
        .writeStream.outputMode("append")
        .foreachBatch(take)
        .trigger(processingTime="1 second")
        .start()
    )
    try:
        _wait(query, stop, on_late)
    finally:
        ended.set()
        with at_work:  # ``query.stop`` would interrupt a batch that is being handled
            pass
        query.stop()
    if failed:
        raise failed[0]
    if not stop.is_set():
        error = query.exception()
        if error is not None:
            raise error


def _windows_of(frame: DataFrame, separator: bytes) -> Iterator[Window]:
    """The complete windows of a batch, in order."""
    for start, messages, size, lost, busiest in totals(frame, separator).collect():
        yield Window(start, messages, size, lost, tuple((bytes(one.prefix), one.messages) for one in busiest))


def _wait(query: StreamingQuery, stop: threading.Event, on_late: Callable[[int], object]) -> None:
    """Wait until a query has ended or ``stop`` is set; report rows that came too late."""
    late = 0
    while query.isActive and not stop.wait(0.2):
        progress = query.lastProgress
        now = sum(one["numRowsDroppedByWatermark"] for one in progress["stateOperators"]) if progress else 0
        if now > late:
            on_late(now - late)
            late = now
