"""After a change of what clients may do: what they hold is brought in line with it, in turns of their users.

Remembered answers are forgotten at once, so the next message of each client is asked about. The patterns that clients
hold may be many, so they are gone through in small steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gevent.event import Event

from .authorization import Authorize
from .connection import Connection
from .context import Context
from .outgoing import Outgoing
from .protocols import Receiver
from .quotas import Account
from .user_work import UserWork

__all__ = ["REVIEWED_A_TURN", "Review"]

REVIEWED_A_TURN: Final = 64
"""Patterns that are looked at in one turn. The answer about one takes some microseconds for each rule of the user."""


class Review:
    """The clients whose patterns are still to be looked at, by user."""

    def __init__(self, context: Context, connections: Mapping[Receiver, Connection]) -> None:
        self._context = context
        self._connections = connections
        self._left: dict[int, dict[Outgoing, Iterator[None]]] = {}
        self.done = Event()
        """Set unless patterns are still to be looked at."""
        self.done.set()

    def start(self) -> None:
        """The hub serves from now on."""
        self._work = UserWork(self._context.scheduler, self._step)

    def end(self) -> None:
        """The hub serves no more."""
        self._work.end()
        self._left.clear()
        self.done.set()

    def begin(self, former: Authorize | None) -> None:
        """``authorize=`` was another function until now: see to all clients for which the two may differ."""
        authorization = self._context.authorization
        differs: dict[int, bool] = {}
        for connection in self._connections.values():
            client, uid = connection.outgoing, connection.credentials.uid
            if uid not in differs:
                differs[uid] = authorization.differs(former, client.account)
            if differs[uid]:
                publisher = connection.publisher
                publisher.forget_answers()
                self._left.setdefault(uid, {})[client] = publisher.role.review(publisher)
                self._work.begin(client.account)
                self.done.clear()

    def _step(self, account: Account) -> bool:
        """Look at some patterns of a user's clients. Returns whether more are left."""
        reviews = self._left.get(account.uid, {})
        for _ in range(REVIEWED_A_TURN):
            client, review = next(iter(reviews.items()), (None, None))
            if client is None or review is None:
                break
            if next(review, client) is client:  # it is at its end
                reviews.pop(client, None)
        if reviews:
            return True
        self._left.pop(account.uid, None)
        if not self._left:
            self.done.set()
        return False
