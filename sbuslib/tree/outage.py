"""What is kept for the hub above while it cannot be sent, and the count of what was lost.

A message waits here during an outage, until the hub above said what it wants, and while its socket is full. Beyond a
bound the new message is lost. What had been sent when a connection broke, and was not acknowledged, is *uncertain*.
Both counts are told in notices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import time
from typing import TypeAlias

from ..core.protocols import Sender
from ..wire import control

__all__ = ["Item", "Kept", "Losses"]

Item: TypeAlias = tuple[Sender | None, bytes]
"""A message and its sender; or, with no sender, a question to be asked between two messages."""


class Kept:
    """Messages that wait, oldest first.

    :param most: how many may wait.
    :param most_bytes: how many bytes they may have.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self.items: deque[Item] = deque()
        self.messages = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self.items)

    def add(self, sender: Sender, packet: bytes) -> bool:
        """Keep a message; ``False``, and nothing kept, where there is no room."""
        if self.bytes + len(packet) > self._most_bytes or self.messages >= self._most:
            return False
        self.bytes += len(packet)
        self.messages += 1
        self.items.append((sender, packet))
        return True

    def ask(self, packet: bytes) -> None:
        """Put a question before all messages that wait."""
        self.items.appendleft((None, packet))

    @property
    def begins_with_question(self) -> bool:
        """Whether a question is to be sent next."""
        return bool(self.items) and self.items[0][0] is None

    def take(self) -> Item:
        """The next message, or question."""
        sender, packet = self.items.popleft()
        if sender is not None:
            self.bytes -= len(packet)
            self.messages -= 1
        return sender, packet

    def put_back(self, items: list[Item]) -> None:
        """These were taken and could not be sent."""
        for sender, packet in reversed(items):
            self.items.appendleft((sender, packet))
            if sender is not None:
                self.bytes += len(packet)
                self.messages += 1

    def forget_questions(self) -> None:
        """The connection on which they were to be asked has gone."""
        self.items = deque(item for item in self.items if item[0] is not None)


class Losses:
    """Messages that were lost on their way up or are uncertain, and which of them were not told yet.

    :param tell_later: has what was lost told here in a while. It is called once until the next :meth:`told_later`.
    """

    def __init__(self, tell_later: Callable[[], None]) -> None:
        self._tell_later = tell_later
        self._telling = False
        self._here: dict[str, tuple[int, float]] = {}
        self._above: dict[str, tuple[int, float]] = {}
        self.lost = self.uncertain = 0
        self.untold = 0
        """Messages that were lost, and of which nobody here was told yet."""

    def lose(self, cause: str = "upstream") -> None:
        """A message is lost."""
        self.lost += 1
        self.untold += 1
        self._add(cause, 1)
        if not self._telling:
            self._telling = True
            self._tell_later()

    def told_later(self) -> None:
        """The losses are told now: the next loss begins a new wait."""
        self._telling = False

    def add_uncertain(self, count: int) -> None:
        """``count`` messages were sent and not acknowledged."""
        if count:
            self.uncertain += count
            self._add("uncertain", count)

    def _add(self, cause: str, count: int) -> None:
        now = time()
        for untold in (self._here, self._above):
            before, since = untold.get(cause, (0, now))
            untold[cause] = before + count, since

    def take_report(self) -> list[control.Lost]:
        """What was not told here yet."""
        self.untold = 0
        return self._take(self._here)

    def take_report_above(self) -> list[control.Lost]:
        """What the hub above was not told yet."""
        return self._take(self._above)

    @staticmethod
    def _take(untold: dict[str, tuple[int, float]]) -> list[control.Lost]:
        report = [control.Lost(cause, count, since) for cause, (count, since) in untold.items()]
        untold.clear()
        return report
