"""Watch of a bus: rates by windows of time, and alerts to publish on the bus.

:func:`follow` counts messages in each window by key. At its end, a :class:`Judge` compares the messages that match
the pattern of each rule with its rate. The caller publishes the alerts under ``alerts/``. Messages under ``alerts/``
are not counted, or one alert could cause the next.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from ..blocking import Client
from ..clients.endpoint import Endpoint
from ..errors import ReservedKeyError, UsageError
from ..keys.own_keys import ALERTS
from ..matcher import Pattern, Subscriptions, check_separator
from ..secrets import Namespace
from ..wire import control
from ..wire.text import printable

_SHOWN = 5
"""Most prefixes of a window that are shown: they fit into a line."""

_PAUSE = 0.25
"""Longest wait for messages at once."""


class RateRule(NamedTuple):
    """Broken by a window with more (``above``) or fewer (``below``) messages a second than ``rate``.

    Only messages whose keys match ``pattern`` count. ``lost`` is broken by any loss.
    """

    kind: Literal["above", "below", "lost"]
    pattern: bytes
    rate: float

    def check(self, separator: bytes) -> RateRule:
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

    def key(self, separator: bytes, *, cleared: bool = False) -> bytes:
        """The key of alerts by this rule: ``alerts/above/<pattern>``, or ``alerts/cleared/above/<pattern>``."""
        parts = [ALERTS, *([b"cleared"] if cleared else []), self.kind.encode()]
        return separator.join(parts if self.kind == "lost" else [*parts, self.pattern])


class Alert(NamedTuple):
    """The message to publish when a window has broken a rule."""

    key: bytes
    payload: bytes


class Window(NamedTuple):
    """A complete window: its start, messages, bytes of payloads (``size``) and losses.

    ``lost`` counts the losses whose number is known, ``unknown`` the others. ``busiest`` has the first segments of keys
    with most messages, each with the count.
    """

    start: datetime
    messages: int
    size: int
    lost: int
    unknown: int
    busiest: tuple[tuple[bytes, int], ...]


class Judge:
    """Compares windows with rules, in order: an alert for each window that breaks one, and for the first that does not.

    The payload is a JSON object with ``kind`` (``above``, ``below`` or ``lost``), ``pattern``, ``start`` (of the
    window, ISO 8601), ``seconds`` (its length), ``messages``, ``rate`` and ``limit`` (both a second). Losses always
    cause an alert, under ``alerts/lost``, with their count as ``messages``; both numbers are null where the count is
    unknown. The first window that does not break a rule after one that did causes an alert under ``alerts/cleared/``.
    """

    def __init__(self, rules: Sequence[RateRule], seconds: float, separator: bytes) -> None:
        self._rules = [*rules, RateRule("lost", b"", 0)]
        """The given rules, and last the one on losses."""
        self._seconds = seconds
        """The length of a window."""
        self._separator = separator
        self._broken = [False] * len(self._rules)
        """Whether the last window broke each rule."""

    def alerts(self, window: Window, matched: Sequence[int]) -> list[Alert]:
        """Make the alerts of a window; ``matched`` has the number of its messages that match each rule."""
        alerts = []
        lost = None if window.unknown and not window.lost else window.lost
        for number, (rule, messages) in enumerate(zip(self._rules, [*matched, lost], strict=True)):
            rate, was_broken = None if messages is None else messages / self._seconds, self._broken[number]
            self._broken[number] = rate is None or (rate < rule.rate if rule.kind == "below" else rate > rule.rate)
            if self._broken[number] or was_broken:
                key = rule.key(self._separator, cleared=not self._broken[number])
                alerts.append(Alert(key, self._payload(rule, window, messages, rate)))
        return sorted(alerts)

    def _payload(self, rule: RateRule, window: Window, messages: int | None, rate: float | None) -> bytes:
        payload = {
            "kind": rule.kind,
            "pattern": printable(rule.pattern),
            "start": f"{window.start:%Y-%m-%dT%H:%M:%S}Z",
            "seconds": self._seconds,
            "messages": messages,
            "rate": rate,
            "limit": float(rule.rate),
        }
        return json.dumps(payload).encode()


# -- sources ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A message, with the size of its payload; or a gap, which has no key. ``lost`` is ``None`` if unknown."""

    key: bytes | None
    size: int = 0
    lost: int | None = 0


class OnBus:
    """Source of the messages of the hub at ``address`` from now on.

    Messages that the hub could not send are a gap, and so is a time without a connection, of unknown size. Raises as
    :class:`~sbuslib.blocking.Client`.
    """

    def __init__(self, address: str | None) -> None:
        self._gaps: list[Row] = []
        """Losses reported since the last call of :meth:`new`."""
        self.client = Client(
            address, reconnect=True, monitor=True, on_notice=self._on_notice, on_reconnect=self._on_reconnect
        )
        """Receives everything, as a monitor: no publisher counts it as a receiver. Alerts may be published with it."""
        self.client.subscribe(b"")

    def _on_notice(self, notice: control.Notice) -> None:
        if isinstance(notice, control.Lost):
            self._gaps.append(Row(None, lost=notice.count))

    def _on_reconnect(self, client: Endpoint) -> None:
        self._gaps.append(Row(None, lost=None))

    def new(self) -> list[Row]:
        """Return messages and gaps since the last call; waits a moment for some. Raises errors of receiving."""
        try:
            messages = self.client.receive_many(timeout=_PAUSE)
        except TimeoutError:
            messages = []
        gaps, self._gaps = self._gaps, []
        return gaps + [Row(message.key, len(message.payload)) for message in messages]


# -- watching ---------------------------------------------------------------------------------------


class _Counts:
    """Counts of one window."""

    def __init__(self) -> None:
        self.by_key = Counter[bytes]()
        """Messages by key."""
        self.size = self.lost = self.unknown = 0
        """Bytes of payloads, messages that are known to be lost, and losses of unknown size."""

    def window(self, start_ns: int, separator: bytes) -> Window:
        prefixes = Counter[bytes]()
        for key, count in self.by_key.items():
            first, separated, _ = key.partition(separator)
            prefixes[first + separated] += count
        busiest = sorted(prefixes.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
        start = datetime.fromtimestamp(start_ns / 1e9, UTC)
        return Window(start, self.by_key.total(), self.size, self.lost, self.unknown, tuple(busiest))


def check_windows(seconds: float) -> None:
    """Raise :exc:`~sbuslib.errors.UsageError` for a length of windows that is out of bounds."""
    if not 1 <= seconds <= 86_400:
        raise UsageError(f"windows are of 1 to 86,400 seconds, not {seconds}")


def under_way(seconds: float, now: int) -> int:
    """Start of the window that ``now`` is in; both in nanoseconds since 1970, where the first window begins."""
    width = round(seconds * 1000) * 1_000_000
    return now // width * width


def follow(
    new: Callable[[], Iterable[Row]],
    rules: Sequence[RateRule],
    *,
    seconds: float = 10.0,
    separator: bytes,
    stop: threading.Event,
    on_window: Callable[[Window], object] = lambda window: None,
    on_alert: Callable[[Alert], object] = lambda alert: None,
    clock: Callable[[], int] = time.time_ns,
) -> None:
    """Watch until ``stop`` is set, beginning in the current window. Windows end by the clock.

    :param new: returns rows since its last call, and waits a moment for some: :meth:`OnBus.new`.
    :param seconds: the length of a window.
    :param on_window: called with each complete window, in order.
    :param on_alert: called with each alert of a window, after it. It should publish the alert.

    Raises :exc:`~sbuslib.errors.UsageError`, and errors of ``new``.
    """
    check_windows(seconds)
    rules = [rule.check(separator) for rule in rules]
    judge, own = Judge(rules, seconds, separator), check_separator(separator).join((ALERTS, b""))
    index: Subscriptions[int] = Subscriptions(separator)
    for number, rule in enumerate(rules):
        index.add(Pattern(rule.pattern, separator), number)

    width = round(seconds * 1000) * 1_000_000
    begun, counts = under_way(seconds, clock()), _Counts()  # of the current window
    while not stop.is_set():
        # 1. Count new rows.
        for row in new():
            if row.key is None:
                counts.lost += row.lost or 0
                counts.unknown += row.lost is None
            elif not row.key.startswith(own):
                counts.by_key[row.key] += 1
                counts.size += row.size

        # 2. Report complete windows, those without rows as well.
        while begun + width <= clock():
            window, matched = counts.window(begun, separator), [0] * len(rules)
            for key, count in counts.by_key.items():
                for number in index.subscribers(key):
                    matched[number] += count
            on_window(window)
            for alert in judge.alerts(window, matched):
                on_alert(alert)
            begun, counts = begun + width, _Counts()
