"""Watches one journal while it is written, as :mod:`.watch` does, but without Spark and Java."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from ..errors import JournalError
from ..matcher import SEPARATOR, Subscriptions
from ..segments.directory import Position, list_segments, read_header, read_journal
from ..segments.layout import SEGMENT_HEADER_BYTES, Block, Record
from .watch import ALERTS, SHOWN, Alert, Judge, Rule, Window, check_windows

__all__ = ["follow"]

_PAUSE = 0.25
"""Seconds between two looks at the end of a journal."""


class _Counts:
    """What came in one window."""

    def __init__(self) -> None:
        self.by_key = Counter[bytes]()
        self.size = self.lost = 0

    def window(self, start_ns: int, separator: bytes) -> Window:
        prefixes = Counter[bytes]()
        for key, count in self.by_key.items():
            first, separated, _ = key.partition(separator)
            prefixes[first + separated] += count
        busiest = sorted(prefixes.items(), key=lambda one: (-one[1], one[0]))[:SHOWN]
        start = datetime.fromtimestamp(start_ns / 1e9, UTC)
        return Window(start, self.by_key.total(), self.size, self.lost, tuple(busiest))


class _Reader:
    """The rows of a journal from a time on, each once."""

    def __init__(self, directory: str, start_ns: int) -> None:
        self._directory = directory
        self._last = 0
        self._position: Position | None = None
        for segment in reversed(list_segments(directory)):
            if segment.size >= SEGMENT_HEADER_BYTES and read_header(segment.path).created_ns < start_ns:
                self._position = Position(segment.name, SEGMENT_HEADER_BYTES)
                break

    def new(self) -> list[Record]:
        """The rows that were written since the last call."""
        found: list[Record] = []
        try:
            for piece in read_journal(self._directory, self._position, growing=True):
                assert isinstance(piece.block, Block)
                found += (row for row in piece.block.records() if row.sequence > self._last)
                self._position = Position(piece.segment.name, piece.block.end)
        except (JournalError, FileNotFoundError):
            if self._position is None:
                raise
            self._position = None  # the segment was deleted, so go on with the oldest that there is
        if found:
            self._last = found[-1].sequence
        return found


def follow(
    directory: str,
    rules: Sequence[Rule],
    *,
    seconds: float = 10.0,
    delay: float = 5.0,
    separator: bytes = SEPARATOR,
    stop: threading.Event,
    on_window: Callable[[Window], object] = lambda window: None,
    on_alert: Callable[[Alert], object] = lambda alert: None,
    on_late: Callable[[int], object] = lambda count: None,
    clock: Callable[[], int] = time.time_ns,
) -> None:
    """Watch until ``stop`` is set, from the window on that is under way. Windows end by the clock.

    The parameters are those of :func:`.watch.watch`. Raises :exc:`~sbuslib.errors.UsageError`,
    :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`.
    """
    check_windows(seconds, delay)
    rules = [rule.check(separator) for rule in rules]
    judge, own = Judge(rules, seconds, separator), ALERTS + separator
    index: Subscriptions[int] = Subscriptions(separator)
    for number, rule in enumerate(rules):
        index.add(rule.pattern, number)
    width = round(seconds * 1000) * 1_000_000
    begun = clock() // width * width  # the start of the oldest window that is not complete
    counted: dict[int, _Counts] = {}
    reader, first = _Reader(directory, begun), begun
    while True:
        late = 0
        for row in reader.new():
            start = row.time_ns // width * width
            if start < begun:
                late += start >= first
                continue
            counts = counted.setdefault(start, _Counts())
            counts.lost += row.lost or 0
            if row.key is not None and row.payload is not None and not row.key.startswith(own):
                counts.by_key[row.key] += 1
                counts.size += len(row.payload)
        if late:
            on_late(late)
        while begun + width + delay * 1e9 <= clock():
            counts = counted.pop(begun) if begun in counted else _Counts()
            window, matched = counts.window(begun, separator), [0] * len(rules)
            for key, count in counts.by_key.items():
                for number in index.subscribers(key):
                    matched[number] += count
            on_window(window)
            for alert in judge.alerts(window, matched):
                on_alert(alert)
            begun += width
        if stop.wait(_PAUSE):
            return
