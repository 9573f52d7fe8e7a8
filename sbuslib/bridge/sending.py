"""Queue of exported messages for the broker, bounded, in the order in which they came from the bus.

They go out in batches. A batch leaves the queue when the broker has confirmed it. If that is uncertain, it is sent
again, as the other bridges drop duplicates by their number; where messages have no origin, it is counted as lost.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from itertools import islice
from typing import Final

from ..federation.import_export import DropReason
from ..wire.packets import Message
from ..wire.text import plainly
from .broker import Broker, Leaving
from .numbers import Numbers

_BATCH: Final = 1_024
"""Messages that are sent at once: few enough to confirm in milliseconds."""
_MESSAGE_BYTES: Final = 300
"""Overhead of a message besides its key, payload and subject, so that many small ones cannot fill the memory."""


class Sending:
    """Sender and its queue for one broker.

    :param bridge: the id of this bridge.
    :param keep_bytes: how much memory the messages that wait take at most.
    :param refused: counts messages longer than the broker takes.
    """

    def __init__(self, broker: Broker, bridge: str, keep_bytes: int, refused: Counter[str]) -> None:
        self._broker = broker
        self._numbers = Numbers(bridge)  # with which other bridges detect duplicates
        self._keep_bytes = keep_bytes
        self._refused = refused
        self.kept: deque[Leaving] = deque()  # messages that wait, oldest first
        self.kept_bytes = 0  # their memory
        self.exported = 0  # messages that the broker confirmed
        self.lost = Counter[str]()  # messages, by cause
        self._number = 0  # of the last message
        self._being_sent = 0  # messages at the head that are not confirmed
        self._arrived, self._emptied = asyncio.Event(), asyncio.Event()

    def put(self, subject: str, message: Message, claim: str) -> None:
        """Send a message after those that wait, or count it as refused or lost."""
        if len(message.payload) > self._broker.payload_bytes:
            self._refused[DropReason.PAYLOAD_TOO_LONG] += 1
            return
        size = _held(subject, message)
        if self.kept_bytes + size > self._keep_bytes:
            self.lost["outage"] += 1
            return
        self.kept_bytes += size
        self._number += 1
        bridge, count = self._numbers.next(message.key)
        origin = f"{bridge} {count} {claim}"
        self.kept.append(Leaving(subject, message.payload, origin, self._number, message.key))
        if len(self.kept) == 1:
            self._arrived.set()

    async def run(self) -> None:
        """Send, for ever."""
        while True:
            while not self.kept:
                self._emptied.set()
                self._arrived.clear()
                await self._arrived.wait()
            await self._broker.connected.wait()
            batch = list(islice(self.kept, _BATCH))
            self._being_sent = len(batch)
            # The server's limit is known only with a connection, and put() may have been before that.
            fitting = [message for message in batch if len(message.payload) <= self._broker.payload_bytes]
            try:
                await self._broker.send(fitting)
                self.exported += len(fitting)
            except ConnectionError as error:
                self._broker.warn_once(plainly(error))
                if self._broker.has_origins:
                    await asyncio.sleep(0.05)
                    continue
                self.lost["uncertain"] += len(fitting)
            if len(fitting) < len(batch):
                self._refused[DropReason.PAYLOAD_TOO_LONG] += len(batch) - len(fitting)
            self._being_sent = 0
            for message in batch:
                self.kept_bytes -= _held(message.subject, message)
                self.kept.popleft()

    async def empty(self) -> None:
        """Wait until nothing waits any more. Returns at once while the broker is away."""
        while self.kept and self._broker.connected.is_set():
            self._emptied.clear()
            await self._emptied.wait()

    def give_up(self) -> None:
        """Count waiting messages as lost. To be called when :meth:`run` has ended."""
        self.lost["uncertain"] += self._being_sent
        self.lost["outage"] += len(self.kept) - self._being_sent
        self.kept.clear()
        self.kept_bytes = self._being_sent = 0


def _held(subject: str, message: Message | Leaving) -> int:
    return _MESSAGE_BYTES + sys.getsizeof(subject) + len(message.key) + len(message.payload)
