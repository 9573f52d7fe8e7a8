"""State that all parts of a hub share, whether it runs or not: :class:`Context`.

State of a running hub is in :mod:`.running`. Each part is given a :class:`Context`, or less, and never the hub.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import gevent

from ..errors import StateError
from ..limits import Limits
from ..reasons import Reason
from ..secrets import Credentials
from .authorization import Authorization
from .event_log import Events
from .protocols import Receiver
from .quotas import Quotas
from .records import Counts
from .router import Router
from .running import Running


class Context:
    """The limits, rules, router, quotas and counts of one hub. It lives as long as the hub.

    :param address: returns the address at which the hub listens.
    """

    def __init__(
        self,
        limits: Limits,
        quotas: Quotas,
        authorization: Authorization,
        *,
        trusted: frozenset[int],
        separator: bytes,
        address: Callable[[], str],
    ) -> None:
        self.limits = limits
        self.quotas = quotas
        self.authorization = authorization
        self.trusted = trusted
        self.address = address
        self.router: Router[Receiver] = Router(limits, quotas, separator)  # who receives what
        self.events = Events(address)  # what happens to it
        self.events.named.append(lambda uid: uid in self.trusted)
        self.counts = Counts()
        """All that was counted since the hub was made, but for what clients hold that are connected."""
        self._running: Running | None = None  # of the last start

    # -- while it runs ------------------------------------------------------------------------------

    def start(self, kick: Callable[[Receiver, Reason], None]) -> Running:
        """Run in the event loop of this thread, from now on. ``kick`` disconnects a client."""
        self._running = Running(self.limits, kick)
        return self._running

    @property
    def running(self) -> Running:
        """The present run, or the last one. Raises :exc:`~sbuslib.errors.StateError` before the first start."""
        if self._running is None:
            raise self._not_started()
        return self._running

    @property
    def is_serving(self) -> bool:
        return self._running is not None and bool(self._running.pid)

    def check_here(self) -> None:
        """Raise :exc:`~sbuslib.errors.StateError` unless the hub serves from this thread of this process."""
        running = self._running
        if running is None or not running.pid:
            raise self._not_started()
        if running.pid != os.getpid():
            raise StateError(f"the hub at {self.address()} belongs to process {running.pid}: this process is its fork")
        if gevent.get_hub() is not running.event_loop:
            raise StateError(
                f"the hub at {self.address()} belongs to the thread that started it: use a Client in this one, while "
                "that one waits in gevent, such as in hub.serve_forever()"
            )

    def _not_started(self) -> StateError:
        return StateError(f"the hub at {self.address()} is not started: start it first")

    def may_hold(self, publisher: Credentials, receiver: Credentials) -> bool:
        """Whether a receiver in ``block`` mode may hold a publisher back."""
        uid = receiver.known()[1]  # None for an unknown user, which may hold nobody
        return uid is not None and (uid == publisher.uid or uid in self.trusted)
