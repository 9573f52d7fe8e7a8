"""Windows of a journal or a bus, and alerts about them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from segments.journals import START_NS, segment
from segments.journals import Row as Recorded
from support import HubThread

from sbuslib.blocking import Client
from sbuslib.errors import JournalError, UsageError
from sbuslib.limits import Limits
from sbuslib.reports.watch import (
    Alert,
    InJournal,
    Judge,
    OnBus,
    RateRule,
    Row,
    Window,
    check_windows,
    follow,
    under_way,
)

SECOND = 1_000_000_000


def row(second: float, key: bytes = b"room/1", payload: bytes = b"xy") -> Recorded:
    return Recorded(key, payload, START_NS + round(second * SECOND))


class Clock:
    """A clock that goes on when it is asked, and in the end stops who asks."""

    def __init__(self, seconds: list[float]) -> None:
        self._times = iter(seconds)
        self.stop = threading.Event()

    def __call__(self) -> int:
        second = next(self._times, None)
        if second is None:
            self.stop.set()
            return 0
        return START_NS + round(second * SECOND)


class Given:
    """Rows that a test gives, at the first look."""

    def __init__(self, *rows: Row) -> None:
        self._rows = [*rows]

    def new(self, stop: threading.Event) -> Iterator[Row]:
        rows, self._rows = self._rows, []
        yield from rows


def told(found: list[Alert]) -> list[tuple[bytes, dict[str, Any]]]:
    return [(alert.key, json.loads(alert.payload)) for alert in found]


def at(second: float, key: bytes | None, size: int = 0, lost: int | None = 0) -> Row:
    return Row(START_NS + round(second * SECOND), key, size, lost)


def test_windows_are_counted_and_broken_rules_cause_alerts() -> None:
    rows = [
        at(0, b"room/1/temp", 2),
        at(1, b"room/2/temp", 1),
        at(9.9, b"room/2/temp"),
        at(3, b"alerts/above/"),
        at(3, b"alert"),
        at(12, b"beat"),
        at(15, None, lost=5),
    ]
    rules = [RateRule("above", b"room/*/temp", 0.25), RateRule("below", b"beat", 0.1), RateRule("above", b"", 100)]
    windows, alerts, clock = list[Window](), list[Alert](), Clock([0, 25.1, 25.1, 25.1])
    follow(Given(*rows), rules, stop=clock.stop, clock=clock, on_window=windows.append, on_alert=alerts.append)
    assert [one[1:] for one in windows] == [
        (4, 3, 0, 0, ((b"room/", 3), (b"alert", 1))),
        (1, 0, 5, 0, ((b"beat", 1),)),
    ]
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
    assert told(alerts) == [(key, what | common) for key, what in expected]


def test_a_loss_of_unknown_size_is_told_as_that() -> None:
    windows, alerts, clock = list[Window](), list[Alert](), Clock([0, 15.1, 15.1])
    rows = Given(at(1, None, lost=None))
    follow(rows, [], stop=clock.stop, clock=clock, on_window=windows.append, on_alert=alerts.append)
    assert [(one.lost, one.unknown) for one in windows] == [(0, 1)]
    ((key, what),) = told(alerts)
    assert (key, what["messages"], what["rate"]) == (b"alerts/lost", None, None)


def test_windows_and_alerts_of_a_journal_that_is_being_written(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    segment(journal, 1, [row(-30), row(-1)], [row(1), row(2, b"hall")])
    segment(journal, 5, [row(3), row(4, b"alerts/above/x")], (START_NS + 12 * SECOND, "overflow", 7), sealed=False)
    clock = Clock([5, 16, 26, 26, 40])
    seen: list[Window | Alert] = []
    late: list[int] = []

    def see(what: Window | Alert) -> None:
        seen.append(what)
        if len(seen) == 1:
            segment(journal, 5, [row(3), row(4, b"alerts/above/x")], (START_NS + 12 * SECOND, "overflow", 7))
            segment(journal, 8, [row(5), row(22)], sealed=False)

    rules = [RateRule("above", b"room/", 0.15), RateRule("below", b"room/", 0.05)]
    source = InJournal(str(journal), under_way(10, START_NS + 5 * SECOND))
    follow(source, rules, stop=clock.stop, clock=clock, on_window=see, on_alert=see, on_late=late.append)
    windows = [(one.start.second, *one[1:]) for one in seen if isinstance(one, Window)]
    assert windows == [
        (40, 3, 6, 0, 0, ((b"room/", 2), (b"hall", 1))),
        (50, 0, 0, 7, 0, ()),
        (0, 1, 2, 0, 0, ((b"room/", 1),)),
    ]
    assert late == [1], "the row of the second 5 came after its window"
    assert [one.key for one in seen if isinstance(one, Alert)] == [
        b"alerts/above/room/",
        b"alerts/below/room/",
        b"alerts/cleared/above/room/",
        b"alerts/lost",
        b"alerts/cleared/below/room/",
        b"alerts/cleared/lost",
    ]


def test_a_bus_is_watched_without_a_journal(folder: str) -> None:
    """What is published, and that the hub was away for a while: nobody knows what was published then."""
    stop, path = threading.Event(), f"{folder}/bus"
    with HubThread(path), Client(path) as client:
        source = OnBus(path)
        client.publish(b"room/1", b"21.5")
        rows = source.new(stop)
        assert [(row.key, row.size) for row in rows] == [(b"room/1", 4)]
    with HubThread(path), source.client:
        while not (rows := source.new(stop)):
            pass
        assert [(row.key, row.lost) for row in rows] == [(None, None)]


def test_what_the_hub_could_not_send_here_is_a_gap(folder: str) -> None:
    """The notice itself comes from a hub whose queue for this client was full."""
    path = f"{folder}/bus"
    with HubThread(path, limits=Limits(queued_packets=4)) as bus, Client(path) as client:
        source = OnBus(path)
        with source.client:
            client.publish_many([(b"a", bytes(50_000))] * 200)
            client.sync()
            bus.settle()
            seen = 0
            rows = list[Row]()
            while seen < 200:
                rows += source.new(threading.Event())
                seen = sum(row.lost or 0 if row.key is None else 1 for row in rows)
        assert seen == 200
        assert any(row.key is None and row.lost for row in rows)


@pytest.mark.parametrize(
    "rule",
    [
        RateRule("above", b"a\0b", 1),
        RateRule("above", b"a", -1),
        RateRule("above", b"a", float("nan")),
        RateRule("below", b"!/cred/1/2/3/", 1),
        RateRule("below", b"a/!/b", 1),
    ],
)
def test_wrong_rules_are_refused(rule: RateRule) -> None:
    with pytest.raises(UsageError):
        rule.check()


def test_what_is_over_is_told_once() -> None:
    judge = Judge([RateRule("above", b"a", 1)], 10)
    window = Window(datetime(2026, 1, 1), 0, 0, 0, 0, ())
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


def test_windows_are_bounded_and_journals_exist(tmp_path: Path) -> None:
    for seconds, delay in ((0.5, 1), (86_401, 1), (10, -1), (float("nan"), 0), (float("inf"), 0)):
        with pytest.raises(UsageError, match="windows"):
            check_windows(seconds, delay)
    with pytest.raises(UsageError, match="windows"):
        follow(Given(), [], seconds=0.1, stop=threading.Event())
    with pytest.raises(JournalError, match="nowhere"):
        InJournal(f"{tmp_path}/nowhere", 0)


def test_under_way_is_the_start_of_the_current_window() -> None:
    """Windows count from 1970 on, in whole milliseconds."""
    now = START_NS + 1_234_567_890
    assert under_way(1, now) == START_NS + 1_000_000_000
    assert under_way(86_400, now) % 86_400_000_000_000 == 0
    assert under_way(1.5, now) % 1_500_000_000 == 0
    assert 0 <= now - under_way(1.5, now) < 1_500_000_000
