"""The messages that a peer's application receives: a bounded queue in the process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from gevent.event import Event
from gevent.timeout import Timeout

from ..errors import DisconnectedError
from .framing import Publish
from .limits import TcpLimits

__all__ = ["PeerInbox"]


def _size(message: Publish) -> int:
    """The size of a message: its name counts too, as it may be longer than the data."""
    return len(message.name) + len(message.data)


class PeerInbox:
    """Messages for the application: iterate, :meth:`receive`, or :meth:`receive_many`. What ``peer.subscribe`` returns.

    ``lost`` counts messages that came while the queue was full. The end of its ``with`` takes it back.
    """

    def __init__(self, limits: TcpLimits, forget: Callable[[PeerInbox], None]) -> None:
        self._limits = limits
        self._forget = forget
        self._waiting: deque[Publish] = deque()  # oldest first
        self._bytes = 0  # of all that wait
        self._ready = Event()  # set when something waits, or nothing more comes
        self.closed = False  # whether nothing more comes
        self.lost = 0  # messages for which there was no room

    def __enter__(self) -> PeerInbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.unsubscribe()

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    def take(self, messages: Sequence[Publish], source: object) -> None:
        """Keep messages that came over the connection ``source``. Called by the peer."""
        size = self._bytes + sum([len(message.name) + len(message.data) for message in messages])
        limits = self._limits
        if self.closed or size > limits.inbox_bytes or len(self._waiting) + len(messages) > limits.inbox_messages:
            self._take_some(messages)
            return
        self._bytes = size
        self._waiting.extend(messages)
        if not self._ready.is_set():
            self._ready.set()

    def _take_some(self, messages: Sequence[Publish]) -> None:
        for message in messages:
            size = self._bytes + _size(message)
            if self.closed or len(self._waiting) >= self._limits.inbox_messages or size > self._limits.inbox_bytes:
                self.lost += 1
            else:
                self._bytes = size
                self._waiting.append(message)
        self._ready.set()

    def receive(self, *, timeout: float | None = None) -> Publish:
        """The next message, oldest first.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, and :exc:`~sbuslib.errors.DisconnectedError` when
        the subscription was taken back or the peer closed, and nothing is left.
        """
        return self.receive_many(most=1, timeout=timeout)[0]

    def receive_many(self, *, most: int | None = None, timeout: float | None = None) -> list[Publish]:
        """At least one message, and all others that are here, up to ``most``. Raises as :meth:`receive`."""
        waiting = self._waiting
        while not waiting:
            if self.closed:
                raise DisconnectedError("the subscription was taken back")
            self._ready.clear()
            with Timeout(timeout, TimeoutError(f"no message within {timeout} s")):
                self._ready.wait()

        if most is None or most >= len(waiting):
            taken = list(waiting)
            waiting.clear()
            self._bytes = 0
            return taken
        taken = list(islice(waiting, most))
        for message in taken:
            waiting.popleft()
            self._bytes -= _size(message)
        return taken

    def __iter__(self) -> Iterator[Publish]:
        """Messages as they come, until the subscription is taken back or the peer closed."""
        while True:
            try:
                message = self.receive()
            except DisconnectedError:
                return
            yield message

    def unsubscribe(self) -> None:
        """Stop receiving; what waits can still be received."""
        if not self.closed:
            self.closed = True
            self._forget(self)
            self._ready.set()
