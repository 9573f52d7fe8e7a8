"""One client of a hub: when it is read from, and its turns.

A connection has no greenlet. It has two watchers of gevent's event loop. Their callbacks run in the loop itself and so
cannot yield. The client has one *turn* for each time its socket is readable, and one for each time it is writable while
something waits. A turn for reading receives into the hub's area, which all connections share, and hands on what came:
see :mod:`.routing`. The :class:`~.outgoing.Outgoing` of a connection sends to the client, and its
:class:`~.publisher.Role` says what the client may do.
"""

from __future__ import annotations

import socket
from typing import Final

from ..errors import PacketError
from ..kernel.descriptors import WITH_DESCRIPTORS
from ..secrets import Credentials
from ..statistics import ClientStatistics
from ..wire import control
from .callbacks import tell_event_loop
from .context import Context
from .messages import Received
from .outgoing import READ, Outgoing
from .protocols import Holdable, Holder, Receiver
from .publisher import Publisher, Role
from .quotas import Account
from .routing import route, route_copies, route_one

__all__ = ["Connection"]

COMMANDS_A_TURN: Final = 8
"""Packets received at once from a client whose last turn was mostly commands, which cost more than messages."""


class Connection:
    """A client that is connected. Belongs to its hub and to the thread of the hub's event loop.

    Implements :class:`~.protocols.Sender` and :class:`~.protocols.Holdable`.
    """

    __slots__ = (
        "__weakref__",
        "_context",
        "_lone",
        "_most",
        "_postponed",
        "_reader",
        "credentials",
        "number",
        "outgoing",
        "publisher",
    )

    def __init__(
        self, context: Context, sock: socket.SocketType, credentials: Credentials, account: Account, role: Role
    ) -> None:
        self._context = context
        self.credentials = credentials
        self.number = 0
        """Set by :class:`~.members.Clients`: 1 for its first client, then more."""
        self.outgoing = Outgoing(context, sock, credentials, account)  # what sends to this client
        self.publisher = Publisher(context, self, self.outgoing, role)  # what is remembered of it between turns
        self._most: int | None = None  # packets to receive at once; None: as many as the area takes
        self._lone: int | None = None  # the round of the event loop in which the last packet came alone
        self._postponed = False
        self._reader = context.loop.io(sock.fileno(), READ)  # stopped while it is held, or waits for its turn
        self._reader.start(self._on_readable)

    # -- as a sender --------------------------------------------------------------------------------

    @property
    def key(self) -> bytes:
        return self.publisher.role.key_of(self.credentials)

    @property
    def wrapper(self) -> bytes:
        return control.wrapper_from(self.key)

    def holdable_by(self, receiver: Receiver) -> Holdable | None:
        # A client may not hold itself: while it waits to send, it reads nothing. A link speaks for many clients.
        if receiver is self.outgoing or self.publisher.role.is_link or self.outgoing.closed:
            return None
        return self if self._context.may_hold(self.credentials, receiver.credentials) else None

    def hold(self, by: Holder) -> None:
        self.publisher.hold(by)
        self._reader.stop()

    def let_go(self, by: Holder) -> None:
        self.publisher.let_go(by)
        self._read_on()

    # -- when to read -------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        scheduler = self._context.scheduler
        if scheduler.may_go(self.outgoing.account.uid):
            try:
                self.take_turn()
            except BaseException as error:
                # gevent would stop the watcher. This client would stay, and would never be read from again.
                tell_event_loop(error)
                self._context.members.kick(self.outgoing, "error in the hub")
            scheduler.went()
        else:
            self._postpone()

    def _postpone(self) -> None:
        self._postponed = True
        self._reader.stop()
        self._context.scheduler.postpone(self.outgoing.account.uid, self._resume_reading)

    def _resume_reading(self) -> None:
        self._postponed = False
        try:
            if not self.publisher.holders and not self.outgoing.closed:
                self._on_readable()
        finally:
            self._read_on()

    def _read_on(self) -> None:
        if self.publisher.holders or self._postponed or self.outgoing.closed:
            return
        if self.publisher.left:
            self._postpone()
        else:
            self._reader.start(self._on_readable)

    # -- a turn -------------------------------------------------------------------------------------

    def take_turn(self) -> bool:
        """Receive once, or go on with what is left. Returns whether there was anything."""
        publisher = self.publisher
        if self.outgoing.closed:
            return False

        # 1. What is left of the last turn, before anything else is received.
        publisher.begin_turn()
        commands = publisher.commands
        taken = len(publisher.left)
        try:
            if taken:
                route_copies(publisher)
                if not publisher.left:
                    publisher.forget_left()
            else:
                taken = self._receive()
                if not taken:
                    return False
        except PacketError as error:
            publisher.forget_left()
            publisher.end = (True, error.reason)

        # 2. How much at once next time.
        if self._most is not None or publisher.left or publisher.commands != commands:
            self._choose_most(taken, (publisher.commands - commands) * 2 > taken)

        # 3. The area is free: a later turn goes on, or what came after all packets is acted on.
        role = publisher.role
        if publisher.left:
            if not self._postponed:
                self._postpone()
        elif publisher.end is not None:
            misbehaved, why = publisher.end
            if misbehaved:
                role.violated(publisher, why)
            else:
                role.ended(publisher, why)
        if role.is_link:
            role.after_turn(publisher)
        return True

    def _receive(self) -> int:
        """Receive once, and route what came. Returns how many packets came; the end of the connection counts as one."""
        context, publisher = self._context, self.publisher
        area, longest = context.area, publisher.role.longest
        most = self._most
        now = context.round()
        # A client that sends single packets is read with recv(2), which is faster than recvmmsg(2) for one. If the
        # next packet came in the very next round, there may be more.
        if most is None and self._lone is not None and now > self._lone + 1:
            most = 1
        self._lone = None
        try:
            lengths = area.receive(self.outgoing.socket, most)
        except OSError as error:
            publisher.end = (False, f"receive: {error.strerror}")
            return 1
        taken = len(lengths)
        if not taken:
            return 0
        shortest = lengths[0]
        # Most calls bring packets of one length. Finding that out takes a tenth of the time of looking at each.
        if 0 < shortest <= longest and lengths.count(shortest) == taken:
            if taken == 1:
                self._lone = now
                if route_one(publisher, area, shortest):
                    return 1
            received = Received(area, context.writer, lengths, shortest)
        else:
            received = Received(area, context.writer, self._without_end(lengths))
        left = route(publisher, received) if received.lengths else []
        # From here on the area is free again, so anything may be logged or called.
        if left:
            publisher.put_off(left)
        if publisher.left and not publisher.is_over:
            route_copies(publisher)
        return taken

    def _without_end(self, lengths: list[int]) -> list[int]:
        """The packets before the end of the connection, or before a violation."""
        publisher, longest = self.publisher, self.publisher.role.longest
        if not all(lengths):
            lengths = lengths[: lengths.index(0)]
            publisher.end = (False, "closed")
        if lengths and max(lengths) > longest:
            stop = next(n for n, length in enumerate(lengths) if length > longest)
            reason = "packet too long"
            if lengths[stop] == WITH_DESCRIPTORS:
                reason = "descriptors sent"
            publisher.end = (True, reason)
            lengths = lengths[:stop]
        return lengths

    def _choose_most(self, taken: int, mostly_commands: bool) -> None:
        """How many packets to receive at once next time, after a turn of ``taken``."""
        limits, publisher = self._context.limits, self.publisher
        if publisher.left:
            # The first that is left may be deliveries of all of them.
            self._most = max(1, min(taken - len(publisher.left), taken // 2))
        elif mostly_commands:
            self._most = COMMANDS_A_TURN
        elif self._most is not None and publisher.spent * 2 <= limits.turn_deliveries:
            self._most = self._most * 2 if self._most * 2 < limits.batch else None

    # -- the rest -----------------------------------------------------------------------------------

    def statistics(self) -> ClientStatistics:
        outgoing = self.outgoing
        outbox = outgoing.outbox if outgoing.has_outbox else None  # not made for this

        return ClientStatistics(
            number=self.number,
            credentials=self.key.decode(),
            patterns=self._context.router.count(outgoing),
            received=self.publisher.received,
            routed=outgoing.routed,
            delivered=outgoing.delivered,
            queued=outgoing.queued,
            queued_peak=outbox.peak if outbox is not None else 0,
            lost=outgoing.lost,
            soft=outbox.soft if outbox is not None else "queue",
            hard=outbox.hard if outbox is not None else "discard",
            order=outbox.order if outbox is not None else "queue",
        )

    def close(self) -> None:
        """Close the socket. Whoever calls this forgets the connection first, and then has its publisher finish."""
        if self.outgoing.closed:
            return
        publisher = self.publisher
        self.outgoing.close()
        self._reader.stop()
        self._reader.close()
        for holder in [*publisher.holders]:
            holder.forget_held(self)
            publisher.let_go(holder)
        # Publisher and connection refer to each other, and clients may come and go faster than garbage is collected.
        publisher.close()
        self.outgoing.socket.close()
