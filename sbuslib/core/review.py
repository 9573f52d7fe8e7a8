"""After a change of what clients may do: takes from them what they may hold no more, in turns of their users.

Remembered answers are forgotten at once, so the next message of each client is asked about. The patterns that clients
hold may be many, so they are gone through in small steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gevent.event import Event

from .authorization import Authorize
from .connection import Connection
from .context import Context
from .protocols import Receiver
from .publisher import Publisher

__all__ = ["Review"]


class Review:
    """Looks at the patterns of clients, one in a step."""

    def __init__(self, context: Context, connections: Mapping[Receiver, Connection]) -> None:
        self._context = context
        self._connections = connections
        self._unfinished = 0  # clients whose patterns are still to be looked at
        self.done = Event()
        """Set when no patterns are left to be looked at."""
        self.done.set()

    def end(self) -> None:
        """The hub serves no more."""
        self._unfinished = 0
        self.done.set()

    def begin(self, former: Authorize | None) -> None:
        """``authorize=`` was another function until now: see to all clients for which the two may differ."""
        authorization = self._context.authorization
        differs: dict[int, bool] = {}
        for connection in self._connections.values():
            uid = connection.credentials.uid
            if uid not in differs:
                differs[uid] = authorization.differs(former, connection.outgoing.account)
            if differs[uid]:
                connection.forget_answers()
                self._unfinished += 1
                self.done.clear()
                self._context.work.add(uid, self._look_at(connection))

    def _look_at(self, publisher: Publisher) -> Iterator[None]:
        yield from publisher.role.review(publisher)
        self._unfinished -= 1
        if not self._unfinished:
            self.done.set()
