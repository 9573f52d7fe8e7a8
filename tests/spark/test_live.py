"""One journal, watched without Spark."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from lake.journals import START_NS, Row, segment

from sbuslib.errors import UsageError
from sbuslib.spark.live import follow
from sbuslib.spark.watch import Alert, Rule, Window

SECOND = 1_000_000_000


def row(second: float, key: bytes = b"room/1", payload: bytes = b"xy") -> Row:
    return Row(key, payload, START_NS + round(second * SECOND))


class Clock:
    """A clock that goes on when it is asked; the test does something at some of its times."""

    def __init__(self, seconds: list[float]) -> None:
        self._times = iter(seconds)
        self.stop = threading.Event()

    def __call__(self) -> int:
        second = next(self._times, None)
        if second is None:
            self.stop.set()
            return 0
        return START_NS + round(second * SECOND)


def test_windows_and_alerts_of_a_journal_that_is_being_written(journal: Path) -> None:
    segment(journal, 1, [row(-30), row(-1)], [row(1), row(2, b"hall")])
    segment(journal, 5, [row(3), row(4, b"alerts/above/x")], (START_NS + 12 * SECOND, "overflow", 7), sealed=False)
    clock = Clock([5, 5, 16, 26, 26, 40])
    seen: list[Window | Alert] = []
    late: list[int] = []

    def see(what: Window | Alert) -> None:
        seen.append(what)
        if len(seen) == 1:
            segment(journal, 5, [row(3), row(4, b"alerts/above/x")], (START_NS + 12 * SECOND, "overflow", 7))
            segment(journal, 8, [row(5), row(22)], sealed=False)

    rules = [Rule("above", b"room/", 0.15), Rule("below", b"room/", 0.05)]
    follow(str(journal), rules, stop=clock.stop, clock=clock, on_window=see, on_alert=see, on_late=late.append)
    windows = [(one.start.second, *one[1:]) for one in seen if isinstance(one, Window)]
    assert windows == [
        (40, 3, 6, 0, ((b"room/", 2), (b"hall", 1))),
        (50, 0, 0, 7, ()),
        (0, 1, 2, 0, ((b"room/", 1),)),
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


def test_wrong_windows_and_journals_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="windows"):
        follow(str(tmp_path), [], seconds=0.1, stop=threading.Event())
    with pytest.raises(OSError, match="nowhere"):
        follow(f"{tmp_path}/nowhere", [], stop=threading.Event())
