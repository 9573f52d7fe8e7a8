"""What all parts of one hub share, and what a part may ask of the others.

Each part is given a :class:`Context`, or less, and never the hub. :class:`Members` is what it may ask of the clients,
:class:`FanOut` of the fan-out queues.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, Protocol

import gevent

from ..errors import StateError
from ..kernel.areas import PlainArea, make_area
from ..kernel.packet_writer import PacketWriter
from ..limits import Limits
from ..reasons import Reason
from ..secrets import Credentials
from .authorization import Authorization
from .losses import Cause
from .protocols import Receiver, Routes, Sender
from .quotas import Account, Quotas
from .router import Router
from .scheduler import Scheduler
from .unsent import Unsent
from .user_work import UserWork

__all__ = ["Context", "FanOut", "Members"]

PASSED_WAIT: Final = 1.0
"""Seconds that an answer to ``hub/sync passed`` waits for a receiver that takes nothing: see :mod:`.unsent`."""


class Members(Protocol):
    """The clients of a hub, as its parts know them: as the receivers that routes hold."""

    def kick(self, member: Receiver, reason: Reason) -> None:
        """Disconnect a client for a violation, tell it why, and count that. Not while the area is in use."""

    def close(self, member: Receiver, why: str) -> None:
        """A client has left: close its connection."""

    def kick_later(self, member: Receiver, reason: Reason) -> None:
        """Kick a client as soon as the turn at hand has ended."""

    def count_lost(self, account: Account, cause: Cause, count: int) -> None:
        """Count messages that were lost for a client of this user that has left meanwhile."""

    def add_inbox(self, inbox: Receiver) -> None:
        """The embedder, or a recorder, receives from now on."""

    def forget_inbox(self, inbox: Receiver) -> None:
        """An inbox of the embedder was closed."""

    @property
    def on_outbox_empty(self) -> Callable[[], None]:
        """To be called when the outbox of a receiver has become empty."""


class FanOut(Protocol):
    """The fan-out queues, as the routing of messages sees them: see :mod:`.fan_out`."""

    def with_groups(self, receivers: Routes, sender: Sender) -> Routes:
        """``receivers``, but with one group in place of many clients of one user that is not the sender's."""

    def routes_with_groups(self, routes: list[Routes], sender: Sender) -> list[Routes]:
        """The same for several messages. If anything changes, they have to be handed on in order, one after another."""

    def forget(self) -> None:
        """Forget all groups: a client left, or became a link."""


class Context:
    """What all parts of a hub share. It lives as long as the hub. :meth:`start` makes some of it anew.

    :param address: tells where the hub listens.
    :param parts: makes the clients and the fan-out queues, which need the context themselves.
    """

    credentials: Credentials
    """This process as a sender and a receiver. :meth:`start` sets this and the next five."""
    loop: Any
    """gevent's event loop of the thread that started the hub."""
    area: PlainArea
    """Where packets are received. Its content is good until the end of the turn that received it."""
    writer: PacketWriter
    scheduler: Scheduler
    work: UserWork

    def __init__(
        self,
        limits: Limits,
        quotas: Quotas,
        authorization: Authorization,
        *,
        trusted: frozenset[int],
        separator: bytes,
        address: Callable[[], str],
        parts: Callable[[Context], tuple[Members, FanOut]],
    ) -> None:
        self.limits = limits
        self.quotas = quotas
        self.authorization = authorization
        self.trusted = trusted
        self.address = address
        self.router: Router[Receiver] = Router(limits, quotas, separator)  # who receives what
        self.unsent = Unsent(self.after, PASSED_WAIT)  # receivers for which messages wait
        self.ignored = 0
        """How many control messages and unsubscriptions had no meaning."""
        self.published = 0
        """How many messages the embedder published."""
        self._timers: set[Any] = set()  # that run
        self._pid = 0  # of the process that serves; 0: none
        self._event_loop: Any = None  # gevent's hub, of the thread that serves
        self.members, self.fan_out = parts(self)

    # -- the event loop -----------------------------------------------------------------------------

    def start(self) -> None:
        self._pid = os.getpid()
        self.credentials = Credentials(gid=os.getgid(), uid=os.getuid(), pid=self._pid)
        self._event_loop = gevent.get_hub()
        self.loop = self._event_loop.loop
        self._counts_rounds = hasattr(self.loop, "iteration")  # libev does
        self.area = make_area(self.limits.batch)
        self.writer = PacketWriter()
        self.scheduler = Scheduler(self.loop)
        self.work = UserWork(self.scheduler, self.limits.turn_time)

    def stop(self) -> None:
        self._pid = 0
        self.cancel_all()
        self.area.close()

    def cancel_all(self) -> None:
        self.scheduler.close()
        self.work.clear()
        for timer in list(self._timers):
            self.cancel(timer)
        self.unsent.clear()

    @property
    def is_serving(self) -> bool:
        return bool(self._pid)

    def check_here(self) -> None:
        """Raise :exc:`~sbuslib.errors.StateError` unless the hub serves from this thread of this process."""
        if self._pid not in (0, os.getpid()):
            raise StateError(f"the hub at {self.address()} belongs to process {self._pid}: this process is its fork")
        if not self._pid:
            raise StateError(f"the hub at {self.address()} is not started: start it first")
        if gevent.get_hub() is not self._event_loop:
            raise StateError(
                f"the hub at {self.address()} belongs to the thread that started it: use a Client in this one, while "
                "that one waits in gevent, such as in hub.serve_forever()"
            )

    def round(self) -> int:
        """The number of the event loop's round; always 0 where it does not count them."""
        number: int = self.loop.iteration if self._counts_rounds else 0
        return number

    def after(self, seconds: float, function: Callable[[], None]) -> Any:
        """Call a function later. Returns the timer, for :meth:`cancel`."""
        timer = self.loop.timer(seconds)
        self._timers.add(timer)

        def run() -> None:
            self.cancel(timer)
            function()

        timer.start(run)
        return timer

    def cancel(self, timer: Any) -> None:
        if timer in self._timers:
            self._timers.discard(timer)
            timer.stop()
            timer.close()

    def may_hold(self, publisher: Credentials, receiver: Credentials) -> bool:
        """Whether a receiver in ``block`` mode may hold a publisher back."""
        uid = receiver.known()[1]  # None for an unknown user, which may hold nobody
        return uid is not None and (uid == publisher.uid or uid in self.trusted)
