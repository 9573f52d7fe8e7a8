"""Windows of a bus, and alerts about them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from journal.format.journals import START_NS
from support import HubThread

from sbuslib.blocking import Client
from sbuslib.errors import UsageError
from sbuslib.limits import Limits
from sbuslib.reports.watch import Alert, OnBus, RateRule, Row, Window, follow, under_way

SECOND = 1_000_000_000


class Played:
    """Looks at a bus, each with the second at which it ends and the rows that came until then. The last one stops."""

    def __init__(self, *looks: tuple[float, list[Row]]) -> None:
        self._looks = [*looks]
        self._second = 0.0
        self.stop = threading.Event()

    def new(self) -> list[Row]:
        self._second, rows = self._looks.pop(0)
        if not self._looks:
            self.stop.set()
        return rows

    def clock(self) -> int:
        return START_NS + round(self._second * SECOND)


def told(found: list[Alert]) -> list[tuple[bytes, dict[str, Any]]]:
    return [(alert.key, json.loads(alert.payload)) for alert in found]


def test_windows_are_counted_and_broken_rules_cause_alerts() -> None:
    first_rows = [Row(b"room/1/temp", 2), Row(b"room/2/temp", 1), Row(b"alerts/above/"), Row(b"alert")]
    played = Played((5, first_rows), (11, [Row(b"room/2/temp")]), (21, [Row(b"beat"), Row(None, lost=5)]))
    rules = [RateRule("above", b"room/*/temp", 0.25), RateRule("below", b"beat", 0.1), RateRule("above", b"", 100)]
    windows, alerts = list[Window](), list[Alert]()
    follow(
        played.new,
        rules,
        separator=b"/",
        stop=played.stop,
        clock=played.clock,
        on_window=windows.append,
        on_alert=alerts.append,
    )
    assert [one[1:] for one in windows] == [
        (4, 3, 0, 0, ((b"room/", 3), (b"alert", 1))),
        (1, 0, 5, 0, ((b"beat", 1),)),
    ]
    common = {"start": "2025-06-15T15:06:40Z", "seconds": 10.0}
    above = {"kind": "above", "pattern": "room/*/temp", "messages": 3, "rate": 0.3, "limit": 0.25}
    below = {"kind": "below", "pattern": "beat", "messages": 0, "rate": 0.0, "limit": 0.1}
    lost = {"kind": "lost", "pattern": "", "messages": 5, "rate": 0.5, "limit": 0.0}
    later = common | {"start": "2025-06-15T15:06:50Z"}
    assert told(alerts) == [
        (b"alerts/above/room/*/temp", above | common),
        (b"alerts/below/beat", below | common),
        (b"alerts/cleared/above/room/*/temp", above | later | {"messages": 0, "rate": 0.0}),
        (b"alerts/cleared/below/beat", below | later | {"messages": 1, "rate": 0.1}),
        (b"alerts/lost", lost | later),
    ]


def test_an_alert_is_repeated_in_each_window_and_a_loss_of_unknown_size_is_told_as_that() -> None:
    windows, alerts = list[Window](), list[Alert]()
    played, rules = Played((35, [Row(None, lost=None)])), [RateRule("below", b"beat", 0.1)]
    follow(
        played.new,
        rules,
        separator=b"/",
        stop=played.stop,
        clock=played.clock,
        on_window=windows.append,
        on_alert=alerts.append,
    )
    assert [(one.lost, one.unknown, one.start.second) for one in windows] == [(0, 1, 40), (0, 0, 50), (0, 0, 0)]
    below = b"alerts/below/beat"
    assert [one.key for one in alerts] == [below, b"alerts/lost", below, b"alerts/cleared/lost", below]
    _, what = told(alerts)[1]
    assert (what["messages"], what["rate"]) == (None, None)


def seen(source: OnBus, until: Callable[[list[Row]], object]) -> list[Row]:
    rows = list[Row]()
    while not until(rows):
        rows += source.new()
    return rows


def test_a_bus_is_watched_and_what_the_hub_could_not_send_is_a_gap(folder: str) -> None:
    """What is published, and that the hub was away for a while: nobody knows what was published then."""
    path = f"{folder}/bus"
    with HubThread(path), Client(path) as client:
        source = OnBus(path)
        client.publish(b"room/1", b"21.5")
        assert seen(source, len) == [Row(b"room/1", 4)]
    with HubThread(path, limits=Limits(queued_packets=4)) as bus, source.client:
        assert seen(source, len) == [Row(None, lost=None)]
        with Client(path) as client:
            client.publish_many([(b"a", bytes(50_000))] * 200)
            client.sync()
        bus.settle()
        rows = seen(source, lambda rows: sum(row.lost or 0 if row.key is None else 1 for row in rows) == 200)
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
        rule.check(b"/")


@pytest.mark.parametrize("seconds", [0.5, 86_401, float("nan"), float("inf")])
def test_windows_are_bounded(seconds: float) -> None:
    with pytest.raises(UsageError, match="windows"):
        follow(list, [], seconds=seconds, separator=b"/", stop=threading.Event())


def test_under_way_is_the_start_of_the_current_window() -> None:
    """Windows count from 1970 on, in whole milliseconds."""
    now = START_NS + 1_234_567_890
    assert under_way(1, now) == START_NS + 1_000_000_000
    assert under_way(86_400, now) % 86_400_000_000_000 == 0
    assert under_way(1.5, now) % 1_500_000_000 == 0
    assert 0 <= now - under_way(1.5, now) < 1_500_000_000
