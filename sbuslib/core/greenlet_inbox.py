"""A queue from which the greenlets of an embedding program receive, and the one wait for what comes into it.

Below :class:`~sbuslib.core.embedder.Inbox` of a hub and :class:`~sbuslib.tcp.peer_inbox.PeerInbox` of a peer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

from gevent.event import Event
from gevent.timeout import Timeout

from ..errors import DisconnectedError
from ..limits import check_count, check_seconds

T = TypeVar("T")


class GreenletInbox(ABC, Generic[T]):
    """A queue, oldest first, for greenlets that receive. The end of its ``with`` unsubscribes."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()  # oldest first
        self._bytes = 0  # of all that wait
        self._ready = Event()  # set when something comes, or the end
        self.closed = False  # whether nothing more comes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unsubscribe()

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        """Yield messages as they come, until this inbox ends, by itself or with its client or hub."""
        while True:
            try:
                message = self.receive()
            except DisconnectedError:
                return
            yield message

    @abstractmethod
    def unsubscribe(self) -> None:
        """Receive no more. Waiting messages can still be taken."""

    @abstractmethod
    def _take(self, count: int) -> list[T]:
        """The oldest messages, so many, which are no longer here."""

    def receive_many(self, *, most: int | None = None, timeout: float | None = None) -> list[T]:
        """At least one message, and all others that are here, up to ``most``. Raises as :meth:`receive`.

        With ``timeout=0``, all that are here, which may be none.
        """
        check_count(most, "most")
        try:
            self._wait(timeout)
        except TimeoutError:
            if timeout == 0:
                return []
            raise
        return self._take(len(self._waiting) if most is None else min(most, len(self._waiting)))

    def receive(self, *, timeout: float | None = None) -> T:
        """Return the next message, oldest first.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, and :exc:`~sbuslib.errors.DisconnectedError` when the
        subscription has ended, or its client or hub was closed, and nothing is left.
        """
        self._wait(timeout)
        return self._take(1)[0]

    def _check_here(self) -> None:
        """Raise where this greenlet may not wait."""

    def _wait(self, timeout: float | None) -> None:
        """Wait until there is something. Others may take what comes first, which makes the wait no longer."""
        if self._waiting:
            return
        with Timeout(check_seconds(timeout, "timeout"), TimeoutError(f"no message within {timeout} s")):
            while not self._waiting:
                if self.closed:
                    raise DisconnectedError("the subscription was taken back")
                self._check_here()
                self._ready.clear()
                self._ready.wait()
