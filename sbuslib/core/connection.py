"""One client of a hub: when it is read from, and its turns.

A connection has no greenlet. It has two watchers of gevent's event loop. Their callbacks run in the loop itself and so
cannot yield. The client has one *turn* for each time its socket is readable, and one for each time it is writable while
something waits. A turn for reading receives packets into the hub's receive buffer, which all connections share, and
routes them: see :mod:`.routing`. The :class:`~.outbound.Outbound` of a connection sends to the client, and its
:class:`~.publisher.Role` decides what the client may do.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from ..errors import PacketError
from ..kernel.descriptors import WITH_DESCRIPTORS, GuardedSocket
from ..limits import PACKET_BYTES
from ..reasons import Reason
from ..secrets import Credentials
from ..statistics import ClientStatistics
from ..wire.packets import MSG
from .callback_errors import report_to_event_loop
from .context import Context
from .fan_out import FanOuts
from .messages import Received
from .outbound import READ, Outbound
from .protocols import Pauser
from .publisher import Publisher, Role
from .quotas import Account
from .records import ClientRecord, Totals
from .routing import route, route_copies, route_one


class Connection(Publisher):
    """A client that is connected. Belongs to its hub and to the thread of the hub's event loop."""

    __slots__ = ("__weakref__", "_lone", "_postponed", "_reader", "number")

    def __init__(
        self,
        context: Context,
        fan_outs: FanOuts,
        sock: socket.SocketType,
        credentials: Credentials,
        account: Account,
        role: Role,
    ) -> None:
        super().__init__(context, fan_outs, credentials, Outbound(context, sock, credentials, account), role)
        self.number = 0
        """Set by :class:`~.clients.Clients`: 1 for its first client, then more."""
        self._lone: int | None = None  # the round of the event loop in which the last packet came alone
        self._postponed = False  # whether the scheduler has been asked for a turn
        self._reader = self.running.loop.io(sock.fileno(), READ)  # stopped while it is held, or waits for its turn
        self._reader.start(self._on_readable)

    # -- when to read -------------------------------------------------------------------------------

    def pause(self, by: Pauser) -> None:
        super().pause(by)
        self._reader.stop()

    def resume(self, by: Pauser) -> None:
        super().resume(by)
        self._read_on()

    def _on_readable(self) -> None:
        if self.running.scheduler.may_go():
            try:
                self.take_turn()
            except BaseException as error:
                # gevent would stop the watcher. This client would stay, and would never be read from again.
                report_to_event_loop(error)
                self.running.kick_later(self.outbound, Reason.ERROR_IN_THE_HUB)
        else:
            self._postpone()

    def _postpone(self) -> None:
        self._postponed = True
        self._reader.stop()
        self.running.scheduler.postpone(self.outbound.account.uid, self._resume_reading)

    def _resume_reading(self) -> None:
        self._postponed = False
        try:
            if not self.pausers and not self.closed:
                self._on_readable()
        finally:
            self._read_on()

    def _read_on(self) -> None:
        if self.pausers or self._postponed or self.closed:
            return
        if self.backlog:
            self._postpone()
        else:
            self._reader.start(self._on_readable)

    # -- a turn -------------------------------------------------------------------------------------

    def take_turn(self) -> bool:
        """Receive once, or go on with the rest of the last turn. Returns whether there was anything."""
        if self.closed:
            return False

        # 1. What is left of the last turn, before anything else is received.
        self.begin_turn()
        try:
            if self.backlog:
                route_copies(self)
                if not self.backlog:
                    self.forget_backlog()
            elif not self._receive():
                return False
        except PacketError as error:
            self.forget_backlog()
            self.end, self.refused = error.reason, error.key

        # 2. The receive buffer is free: a later turn goes on, or what came after all packets is acted on.
        role = self.role
        if self.backlog:
            if not self._postponed:
                self._postpone()
        elif self.end is not None:
            self._act_on_end()
        if role.is_link:
            role.after_turn(self)
        return True

    def _act_on_end(self) -> None:
        if isinstance(self.end, Reason):
            self.role.violated(self, self.end)
        elif self.end is not None:
            self.role.ended(self, self.end)

    def finish(self) -> bool:
        if super().finish():
            return True
        if not (self.backlog or self.closed):
            self._act_on_end()
        return False

    def _receive(self) -> bool:
        """Receive once, and route what came. Returns whether anything came, be it the end of the connection."""
        running = self.running
        buffer = running.buffer
        now = running.round()
        # A client that sends single packets is read with recv(2), which is faster than recvmmsg(2) for one. If the
        # next packet came in the very next round, there may be more. A turn that was postponed is a round later.
        most = 1 if self._lone is not None and now > self._lone + 1 + running.scheduler.several else None
        self._lone = None
        try:
            lengths = buffer.receive(self.outbound.socket, most)
        except OSError as error:
            self.end = f"receive: {error.strerror}"
            return True
        taken = len(lengths)
        if not taken:
            return False
        shortest = lengths[0]
        # Most calls bring packets of one length. Finding that out takes a tenth of the time of looking at each.
        if 0 < shortest <= PACKET_BYTES and lengths.count(shortest) == taken:
            if taken == 1:
                self._lone = now
                if route_one(self, buffer, shortest):
                    return True
            received = Received(buffer, running.writer, lengths, shortest)
        else:
            received = Received(buffer, running.writer, self._without_end(lengths))
        left = route(self, received) if received.lengths else []
        # From here on the receive buffer is free again, so anything may be logged or called.
        if left:
            self.put_off(left)
        if self.backlog and not self.is_over:
            route_copies(self)
        return True

    def _without_end(self, lengths: list[int]) -> list[int]:
        """The packets before the end of the connection, or before a violation."""
        if not all(lengths):
            lengths = lengths[: lengths.index(0)]
            self.end = "closed"
        if lengths and max(lengths) > PACKET_BYTES:
            longest = self.role.longest
            for slot, length in enumerate(lengths):
                if length > PACKET_BYTES and (length > longest or self._is_message(slot)):
                    has_descriptors = length == WITH_DESCRIPTORS
                    self.end = Reason.DESCRIPTORS_SENT if has_descriptors else Reason.PACKET_TOO_LONG
                    return lengths[:slot]
        return lengths

    def _is_message(self, slot: int) -> bool:
        """Whether a packet in the hub's receive buffer is a message. A link may send longer packets only if they are
        none.
        """
        buffer = self.running.buffer
        start = buffer.offsets[slot]
        return buffer.data[start : start + len(MSG)] == MSG

    # -- the rest -----------------------------------------------------------------------------------

    def totals(self) -> Totals:
        outbound = self.outbound
        return Totals(self.received, outbound.routed, outbound.delivered, outbound.lost)

    def statistics(self) -> ClientStatistics:
        outbound = self.outbound
        outbox = outbound.outbox if outbound.has_outbox else None  # not made for this

        return ClientStatistics(
            number=self.number,
            credentials=outbound.key.decode(),
            patterns=self.context.router.count(outbound),
            published=self.received,
            routed=outbound.routed,
            delivered=outbound.delivered,
            waiting=outbound.queued,
            waiting_peak=outbox.peak if outbox is not None else 0,
            full=round(outbox.full, 3) if outbox is not None else 0.0,
            lost=outbound.lost,
            soft=outbox.soft if outbox is not None else "queue",
            hard=outbox.hard if outbox is not None else "discard",
            order=outbox.order if outbox is not None else "queue",
        )

    def record(self) -> ClientRecord:
        """Return the state for a hub that takes over. Messages that are partly delivered must have been finished
        before.
        """
        outbound = self.outbound
        held = outbound.held.items()

        return ClientRecord(
            number=self.number,
            patterns=self.context.router.patterns(outbound),
            echo=outbound.has_echo,
            senders=outbound.wants_senders,
            batches=outbound.takes_batches,
            notices=outbound.wants_notices,
            monitor=outbound.is_monitor,
            grown=outbound.grown,
            guarded=isinstance(outbound.socket, GuardedSocket),
            published=self.received,
            commands=self.commands,
            routed=outbound.routed,
            delivered=outbound.delivered,
            backlog=[packet for packet in self.backlog if isinstance(packet, bytes)],
            violation=self.end if isinstance(self.end, Reason) else "",
            outbox=outbound.outbox_record(),
            holds={one.number: since for one, since in held if isinstance(one, Connection)},
        )

    def restore(self, record: ClientRecord) -> None:
        """Restore this client's state. Paused publishers are restored later, when all clients exist."""
        self.number = record.number
        for pattern, times in record.patterns.items():
            self.context.router.subscribe_anyway(pattern, self.outbound, self.outbound.account, self.credentials, times)
        self.outbound.restore(record, self)
        self.received, self.commands = record.published, record.commands
        if record.backlog:
            self.put_off(record.backlog)
            self._postpone()
            with suppress(ValueError):  # of a version with other reasons
                self.end = Reason(record.violation)

    def close(self) -> None:
        """Close the socket. The caller forgets the connection first, and then has its publisher finish."""
        if self.closed:
            return
        self.outbound.close()
        self._reader.stop()
        self._reader.close()
        for pauser in [*self.pausers]:
            pauser.forget_paused(self)
            self.resume(pauser)
        self.leave()
        self.outbound.socket.close()
