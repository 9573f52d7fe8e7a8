"""One receiver's queue: what could not be sent at once, in order and bounded.

The rule is the protocol's default: send at once while nothing waits, queue when the kernel would block,
and when the queue is full lose the message that came last. Answers to control messages stand in the
same line, since an answer tells what happened before it, but they are never lost: a client that lets
too many of them pile up is let go instead.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from .limits import Limits

__all__ = ["Outbox"]


class Outbox:
    """Packets that wait for one receiver, oldest first."""

    __slots__ = ("_answers", "_limits", "_packets", "_taken", "bytes", "lost")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._packets: deque[bytes] = deque()
        self._taken = 0
        self._answers: deque[int] = deque()  # positions of the answers that wait, counted since the start
        self.bytes = 0
        self.lost = 0

    def __len__(self) -> int:
        return len(self._packets)

    def push(self, packet: bytes) -> bool:
        """Queue a message; ``False`` when it was lost because the queue is full."""
        size = self.bytes + len(packet)
        if len(self._packets) >= self._limits.queued_packets or size > self._limits.queued_bytes:
            self.lost += 1
            return False
        self._packets.append(packet)
        self.bytes = size
        return True

    def push_answer(self, packet: bytes) -> bool:
        """Queue an answer; ``False`` when so many wait that the client is to be let go."""
        self._answers.append(self._taken + len(self._packets))
        self._packets.append(packet)
        self.bytes += len(packet)
        return len(self._answers) <= self._limits.queued_answers

    def first(self, count: int) -> list[bytes]:
        """Up to ``count`` packets from the head, which stay until :meth:`pop`."""
        return list(islice(self._packets, count))

    def pop(self, count: int) -> None:
        """Take ``count`` packets from the head."""
        for _ in range(count):
            self.bytes -= len(self._packets.popleft())
        self._taken += count
        while self._answers and self._answers[0] < self._taken:
            self._answers.popleft()
