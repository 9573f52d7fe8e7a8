"""Windows of a stream, and alerts about them."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lake.journals import START_NS, Row, segment
from spark.frames import gap, message, recording, rows_of
from support import PATIENCE

from sbuslib.errors import UsageError
from sbuslib.spark.watch import (
    Alert,
    Judge,
    Rule,
    Window,
    matched,
    totals,
    under_way,
    watch,
    windows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = [Rule("above", b"room/*/temp", 0.25), Rule("below", b"beat", 0.1), Rule("above", b"", 100)]


def told(found: list[Alert]) -> list[tuple[bytes, dict[str, Any]]]:
    return [(alert.key, json.loads(alert.payload)) for alert in found]


def test_windows_are_counted_and_broken_rules_cause_alerts(spark: SparkSession) -> None:
    """The functions take a frame of all rows as well as a stream."""
    rows = [
        message(b"room/1/temp", b"21", at=0),
        message(b"room/2/temp", b"2", at=1),
        message(b"room/2/temp", b"", at=9.9),
        message(b"alerts/above/", b"", at=3),
        message(b"alert", b"", at=3),
        message(b"beat", b"", at=12),
        gap(5, "overflow", at=15),
    ]
    counted = windows(recording(spark, rows), 10, 5).persist()
    found = rows_of(totals(counted))
    assert [row[1:] for row in found] == [(4, 3, 0, [(b"room/", 3), (b"alert", 1)]), (1, 0, 5, [(b"beat", 1)])]
    first, second = "2025-06-15T15:06:40Z", "2025-06-15T15:06:50Z"
    common = {"seconds": 10.0}
    expected = [
        (
            b"alerts/above/room/*/temp",
            {"kind": "above", "pattern": "room/*/temp", "start": first, "messages": 3, "rate": 0.3, "limit": 0.25},
        ),
        (
            b"alerts/below/beat",
            {"kind": "below", "pattern": "beat", "start": first, "messages": 0, "rate": 0.0, "limit": 0.1},
        ),
        (
            b"alerts/cleared/above/room/*/temp",
            {"kind": "above", "pattern": "room/*/temp", "start": second, "messages": 0, "rate": 0.0, "limit": 0.25},
        ),
        (
            b"alerts/cleared/below/beat",
            {"kind": "below", "pattern": "beat", "start": second, "messages": 1, "rate": 0.1, "limit": 0.1},
        ),
        (b"alerts/lost", {"kind": "lost", "pattern": "", "start": second, "messages": 5, "rate": 0.5, "limit": 0.0}),
    ]
    counts, judge = matched(counted, RULES), Judge(RULES, 10.0)
    at = datetime(2025, 6, 15, 15, 6, 40)
    each = [Window(at + timedelta(seconds=10 * n), row[1], row[2], row[3], ()) for n, row in enumerate(found)]
    got = [one for window, row in zip(each, found, strict=True) for one in told(judge.alerts(window, counts[row[0]]))]
    assert got == [(key, what | common) for key, what in expected]


def test_a_window_is_told_once_when_it_is_complete(spark: SparkSession, journal: Path) -> None:
    """A window is complete when a row was recorded that is later than the end of the window by the delay."""

    def row(second: float) -> Row:
        return Row(b"room/1", b"x", START_NS + round(second * 1e9))

    segment(journal, 1, [row(1), row(2), row(11)], [row(12)])
    stop = threading.Event()
    seen: list[Window | Alert] = []

    def see(what: Window | Alert) -> None:
        seen.append(what)
        if isinstance(what, Window) and len(seen) == 1:
            segment(journal, 5, [row(31)])
        if isinstance(what, Alert) and what.key == b"alerts/below/room/" and len(seen) > 3:
            stop.set()

    rows = spark.readStream.format("sbus").load(str(journal))
    timer = threading.Timer(PATIENCE * 10, stop.set)
    timer.start()
    watch(
        rows,
        [Rule("above", b"room/", 0.15), Rule("below", b"room/", 0.25)],
        delay=1,
        ticks=False,
        stop=stop,
        on_window=see,
        on_alert=see,
    )
    timer.cancel()
    shown = [
        (one.start.minute * 60 + one.start.second, one.messages) if isinstance(one, Window) else one.key for one in seen
    ]
    start = 6 * 60 + 40
    assert shown == [
        (start, 2),
        b"alerts/above/room/",
        b"alerts/below/room/",
        (start + 10, 2),
        b"alerts/above/room/",
        b"alerts/below/room/",
    ]


@pytest.mark.parametrize(
    "rule",
    [
        Rule("above", b"a\0b", 1),
        Rule("above", b"a", -1),
        Rule("above", b"a", float("nan")),
        Rule("below", b"!/cred/1/2/3/", 1),
        Rule("below", b"a/!/b", 1),
    ],
)
def test_wrong_rules_are_refused(rule: Rule) -> None:
    with pytest.raises(UsageError):
        rule.check()


def test_what_is_over_is_told_once() -> None:
    judge = Judge([Rule("above", b"a", 1)], 10)
    window = Window(datetime(2026, 1, 1), 0, 0, 0, ())
    keys = [
        [alert.key for alert in judge.alerts(window._replace(lost=lost), [messages])]
        for messages, lost in ((5, 0), (20, 0), (20, 3), (5, 0), (5, 0))
    ]
    assert keys == [
        [],
        [b"alerts/above/a"],
        [b"alerts/above/a", b"alerts/lost"],
        [b"alerts/cleared/above/a", b"alerts/cleared/lost"],
        [],
    ]


def test_windows_are_bounded(spark: SparkSession) -> None:
    rows = recording(spark, [message(b"a")])
    for seconds, delay in ((0.5, 1), (1e9, 1), (10, -1)):
        with pytest.raises(UsageError, match="windows"):
            watch(rows, [], seconds=seconds, delay=delay, stop=threading.Event())


def test_under_way_is_the_start_of_the_current_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Spark, windows count from 1970 on, in whole milliseconds."""
    monkeypatch.setattr("sbuslib.spark.watch.time.time_ns", lambda: START_NS + 1_234_567_890)
    assert under_way(1) == START_NS + 1_000_000_000
    assert under_way(86_400) % 86_400_000_000_000 == 0
    assert under_way(1.5) % 1_500_000_000 == 0
    assert 0 <= START_NS + 1_234_567_890 - under_way(1.5) < 1_500_000_000
    for seconds in (0.5, 86_401, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="windows"):
            under_way(seconds)
