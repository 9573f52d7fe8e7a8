"""Settings of a hub that can change while it serves, and the review of its clients after a change.

The clients' patterns are brought in line with the settings in turns of their users (:class:`Review`). Remembered
answers are forgotten at once, so the next message of each client is asked about. The patterns that clients hold may be
many, so they are gone through in small steps. With ``hub/reload`` a trusted client asks for that, and gets the result
(:class:`Reloads`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import gevent
from gevent.event import Event

from ..errors import SbusError, UsageError
from ..kernel.users import resolve_users, resolve_users_and_groups
from ..wire import control
from .authorization import Authorize
from .callback_errors import log
from .connection import Connection
from .context import Context
from .protocols import Receiver
from .publisher import Publisher

_MOST: Final = 1_024
"""Clients that may wait for an answer, as many as answers may wait for one client."""


class Settings:
    """Users by id that may connect, that are trusted, and whose relays may join; and the permissions of each.

    The hub's own user may always connect; it and root are always trusted. Raises
    :exc:`~sbuslib.errors.UsageError`.
    """

    def __init__(
        self,
        users: Iterable[int | str] | None,
        trusted: Iterable[int | str],
        relays: Iterable[int | str],
        authorize: Authorize | None,
    ) -> None:
        if authorize is not None and not callable(authorize):
            raise UsageError("authorize is a function of credentials, verb and key")
        own = os.getuid()
        # Ids; ``None``: all that the socket lets in.
        self.users = None if users is None else {own, *resolve_users("users", users)}
        self.trusted = frozenset({own, 0, *resolve_users("trusted", trusted)})  # always these two
        self.relays = resolve_users_and_groups("relays", relays)  # users, and groups
        self.authorize = authorize


class Review:
    """Looks at the patterns of clients, one in a step."""

    def __init__(self, context: Context, connections: Mapping[Receiver, Connection]) -> None:
        self._context = context
        self._connections = connections
        self._unfinished = 0  # clients whose patterns are still to be looked at
        self.done = Event()
        """Set when no patterns are left to be looked at."""
        self.done.set()

    def begin(self, former: Authorize | None) -> None:
        """``authorize=`` was another function until now: see to all clients for which the two may differ."""
        authorization = self._context.authorization
        differs: dict[int, bool] = {}
        for connection in self._connections.values():
            uid = connection.credentials.uid
            if uid not in differs:
                differs[uid] = authorization.differs(former, connection.outbound.account)
            if differs[uid]:
                connection.forget_answers()
                self._unfinished += 1
                self.done.clear()
                self._context.running.work.add(uid, self._look_at(connection), self._looked)

    @staticmethod
    def _look_at(publisher: Publisher) -> Iterator[None]:
        yield from publisher.role.review(publisher)

    def _looked(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self.done.set()


class Reloads:
    """The clients that wait for an answer. They ask in callbacks of the event loop; a greenlet does what they ask."""

    def __init__(self, review: Review) -> None:
        self.function: Callable[[], str] | None = None
        """Loads and applies the settings. Returns a text for the client, and raises errors of the library."""
        self._review = review
        self._waiting: list[Callable[[bytes], None]] = []  # what answers the clients that wait for the next reload
        self._asked: list[Callable[[bytes], None]] = []  # those that wait for the one that is under way
        self._is_running = False  # whether one is

    def ask(self, answer: Callable[[bytes], None]) -> None:
        """A client asks. Those that ask while a reload is under way get the answer of the next one, together."""
        if len(self._waiting) >= _MOST:
            answer(control.encode_reloaded(False, "too many clients wait for this"))
            return
        self._waiting.append(answer)
        if not self._is_running:
            self._is_running = True
            gevent.spawn(self._run)

    def end(self) -> None:
        """Another process takes the hub over, which has read its configuration already."""
        self._asked += self._waiting
        self._waiting.clear()
        self._answer(False, "another process takes the hub over")

    def _run(self) -> None:
        while self._waiting:
            self._asked, self._waiting = self._waiting, []
            self._answer(*self._reload())
        self._is_running = False

    def _answer(self, done: bool, text: str) -> None:
        answers, self._asked = self._asked, []
        for answer in answers:
            answer(control.encode_reloaded(done, text))

    def _reload(self) -> tuple[bool, str]:
        """Whether the settings were taken up, and what there is to say."""
        if self.function is None:
            return False, "this hub has no configuration file"
        try:
            text = self.function()
        except (SbusError, OSError) as error:
            return False, str(error)
        except Exception as error:
            log(logging.ERROR, "a reload failed", exc_info=True)
            return False, f"{type(error).__name__}: {error}"
        self._review.done.wait()
        return True, text
