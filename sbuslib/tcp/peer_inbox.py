"""Inbox of an application of a peer: a bounded queue in the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from ..core.greenlet_inbox import GreenletInbox
from .framing import Publish
from .limits import TcpLimits


def _size(message: Publish) -> int:
    """The size of a message: its name counts too, as it may be longer than the data."""
    return len(message.name) + len(message.data)


class PeerInbox(GreenletInbox[Publish]):
    """Inbox made by ``peer.subscribe``: iterate, :meth:`receive`, or :meth:`receive_many`.

    ``lost`` counts messages that came while the queue was full. The end of its ``with`` unsubscribes.
    """

    def __init__(self, limits: TcpLimits, forget: Callable[[PeerInbox], None]) -> None:
        super().__init__()
        self._limits = limits
        self._forget = forget
        self.lost = 0  # messages for which there was no room

    def take(self, messages: Sequence[Publish], source: object) -> None:
        """Keep messages that came over the connection ``source``. Called by the peer."""
        size = self._bytes + sum([len(message.name) + len(message.data) for message in messages])
        limits = self._limits
        if self.closed or size > limits.inbox_bytes or len(self._waiting) + len(messages) > limits.inbox_messages:
            self._take_fitting(messages)
            return
        self._bytes = size
        self._waiting.extend(messages)
        if not self._ready.is_set():
            self._ready.set()

    def _take_fitting(self, messages: Sequence[Publish]) -> None:
        for message in messages:
            size = self._bytes + _size(message)
            if self.closed or len(self._waiting) >= self._limits.inbox_messages or size > self._limits.inbox_bytes:
                self.lost += 1
            else:
                self._bytes = size
                self._waiting.append(message)
        self._ready.set()

    def _take(self, count: int) -> list[Publish]:
        waiting = self._waiting
        if count == len(waiting):
            taken = list(waiting)
            waiting.clear()
            self._bytes = 0
            return taken
        taken = list(islice(waiting, count))
        for message in taken:
            waiting.popleft()
            self._bytes -= _size(message)
        return taken

    def unsubscribe(self) -> None:
        if not self.closed:
            self.closed = True
            self._forget(self)
            self._ready.set()
