"""What is kept for the hub above while it cannot be sent.

A message waits here during an outage, until the hub above said what it wants, and while its socket is full. Beyond a
bound the new message is lost.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from ..core.protocols import Sender

__all__ = ["Item", "Kept"]

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
