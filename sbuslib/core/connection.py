"""One client of a hub: what it says. The reading half of a connection, and the hub's hot path.

A connection has no greenlet. It is two watchers of gevent's event loop, whose callbacks run in the loop
itself and so cannot yield: one *turn* for each time its socket is readable, and another for each time it
is writable while something waits. A turn receives one batch into the hub's area, which all connections
share, routes it packet by packet, and sends each run of packets on from where it lies. Nothing in a turn
yields, calls a stranger's code or logs before the last use of the area; what has to wait is copied out.

A turn's packets go to each receiver in the order in which they came. A packet that is no message is
acted on only after those before it were sent, so an answer never overtakes what it speaks of.

How long a turn lasts is not only a matter of how many packets it takes: one may go to thousands, or bear a key that
takes long to look up. So a turn is cut short where it comes to too much. What is left of it is copied out and goes
on in a turn to come, before anything else is received, and of such a client fewer packets are taken at once from
then on.

What happens on the way to a receiver is told in :mod:`sbuslib.core.outgoing`.
"""

from __future__ import annotations

import socket
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import PacketError
from ..kernel.areas import LONGEST_HEAD
from ..limits import PACKET_BYTES
from ..secrets import Credentials
from ..statistics import ClientStatistics
from ..wire import control
from ..wire.batches import BATCH
from ..wire.modes import HARD, ORDER, SOFT
from ..wire.packets import (
    MSG,
    Control,
    Packet,
    Subscribe,
    Unsubscribe,
    encode_control,
    parse,
)
from .outgoing import READ
from .parties import Batch, Holdable, Holder, Receiver, Routes, Run, Sender
from .quotas import Account
from .unpacking import Unpacking

if TYPE_CHECKING:
    from ..hub import Hub
    from ..tree.downlink import Link

__all__ = ["Connection"]

_SOFT = {control.SOFT + mode.encode(): mode for mode in SOFT}
_HARD = {control.HARD + mode.encode(): mode for mode in HARD}
_ORDER = {control.ORDER + order.encode(): order for order in ORDER}

_FIRST = range(1)

_MANY = 8
"""Packets in a batch from which on it pays to look at all of them at once."""


class Connection(Unpacking):
    """A client that is connected. Belongs to its hub and to the thread of the hub's event loop."""

    __slots__ = ("_commands", "_end", "_lone", "_longest", "_misses", "_most", "_postponed", "_reader", "link")

    def __init__(self, hub: Hub, sock: socket.SocketType, credentials: Credentials, account: Account) -> None:
        super().__init__(hub, sock, credentials, account)
        self._commands = 0
        self._most: int | None = None
        self._lone: int | None = None  # the round of the event loop in which the last batch was, if of one packet
        self._misses = False  # whether the last batch was not of known messages alone
        self._end: tuple[bool, str] | None = None  # what follows the last batch: whether a violation, and which end
        self._longest = PACKET_BYTES
        self.link: Link | None = None  # where the relay of another hub is at the other end
        self._postponed = False
        self._reader = hub.loop.io(sock.fileno(), READ)
        self._reader.start(self._on_readable)

    @property
    def key(self) -> bytes:
        """The credential key of this client, under the hub's prefix."""
        return self._hub.router.namespace.credential_key(self.credentials)

    @property
    def wrapper(self) -> bytes:
        """What goes before this client's packets on the way to a receiver that asked for senders."""
        return control.wrapper_from(self.key)

    # -- when to read -------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        scheduler = self._hub.scheduler
        if scheduler.may_go(self.account):
            self.turn()
            scheduler.went()
        else:
            self._postpone()

    def _postpone(self) -> None:
        self._postponed = True
        self._reader.stop()
        self._hub.scheduler.postpone(self.account, self._resume_reading)

    def _resume_reading(self) -> None:
        """This client's postponed turn may be had now."""
        self._postponed = False
        try:
            if not self._holders and not self.closed:
                self._on_readable()
        finally:
            self._read_on()

    def holdable_by(self, receiver: Receiver) -> Holdable | None:
        """This client, where a receiver may hold it back. Implements :class:`~sbuslib.core.parties.Sender`."""
        # Not by itself: it could not read what it waits for while it waits to send.
        if receiver is not self and self.link is None and self._hub.may_hold(self.credentials, receiver.credentials):
            return self
        return None

    def hold(self, by: Holder) -> None:
        """Read no more until ``by`` lets go. Implements :class:`~sbuslib.core.parties.Holdable`."""
        self._holders.add(by)
        self._reader.stop()

    def let_go(self, by: Holder) -> None:
        """``by`` has room again. Implements :class:`~sbuslib.core.parties.Holdable`."""
        self._holders.discard(by)
        self._read_on()

    def _read_on(self) -> None:
        if self._holders or self._postponed or self.closed:
            return
        if self._left:
            self._postpone()
        else:
            self._reader.start(self._on_readable)

    # -- receiving ----------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Take one batch of what this client sent, or go on with the last; whether there was anything."""
        if self.closed:
            return False
        self._spent = 0
        commands = self._commands
        taken = len(self._left)
        try:
            if taken:
                self._work_off()
            else:
                taken = self._receive()
                if not taken:
                    return False
        except PacketError as error:
            self._left.clear()
            self._end = (True, error.reason)
        self._choose_most(taken, (self._commands - commands) * 2 > taken)
        if self._left:
            if not self._postponed:
                self._postpone()
        elif self._end is not None:
            misbehaved, why = self._end
            if misbehaved:
                self._misbehaved(why)
            else:
                self._ended(why)
        self._hub.carry_out()
        return True

    def _receive(self) -> int:
        """Receive one batch, and route it; how many packets it had, its end among them.

        Raises :exc:`~sbuslib.errors.PacketError` for a violation.
        """
        hub = self._hub
        area = hub.area
        most = self._most
        now = hub.round()
        # Whose packets come one at a time has one received at a time, for which there is a quicker call; unless the
        # next is here in the very next round, when there may be more.
        if most is None and self._lone is not None and now > self._lone + 1:
            most = 1
        self._lone = None
        try:
            lengths = area.receive(self.socket, most)
        except OSError as error:
            self._end = (False, f"receive: {error.strerror}")
            return 1
        taken = len(lengths)
        if not taken:
            return 0
        shortest = lengths[0]
        if taken == 1:
            self._lone = now
            if 0 < shortest <= self._longest and self._route_one(shortest):
                return 1
        # Most batches are of packets of one length, which is seen in a tenth of the time of looking at each.
        if lengths.count(shortest) < taken or not 0 < shortest <= self._longest:
            lengths = self._without_end(lengths)
            shortest = 0
        self._left.extend(self._route(Batch(area, lengths, shortest)))
        # Only from here on is the area free again, and may anything be logged or called.
        if self._left and not self._holders and self._spent < self._hub.limits.turn_deliveries:
            self._work_off()
        return taken

    def _route_one(self, length: int) -> bool:
        """Hand on the only packet of a batch, if it is a message whose receivers are remembered; whether it is."""
        hub = self._hub
        if self._version != hub.router.version:
            self._refresh()
        data = hub.area.data
        receivers = self._routes.get(data[: data.find(b"\0", 0, length) + 1])
        if receivers is None:
            return False
        self.received += 1
        self._spent = len(receivers)
        batch = Batch(hub.area, (length,), length)
        for receiver in hub.fanouts.near(receivers, self):
            receiver.deliver(self, batch, _FIRST)
        return True

    def _without_end(self, lengths: list[int]) -> list[int]:
        """The packets of a batch before the end of the connection, or a violation."""
        if not all(lengths):
            lengths = lengths[: lengths.index(0)]
            self._end = (False, "closed")
        if lengths and max(lengths) > self._longest:
            lengths = lengths[: next(n for n, length in enumerate(lengths) if length > self._longest)]
            self._end = (True, "packet too long")
        return lengths

    def _work_off(self) -> None:
        """Go on with what is left of the last batch, for the length of a turn."""
        limits = self._hub.limits
        until = monotonic() + limits.turn_time
        while self._left and not self.closed:
            self._route_copy(self._left.popleft())
            if self._holders or self._spent >= limits.turn_deliveries or monotonic() > until:
                break

    def _choose_most(self, taken: int, mostly_commands: bool) -> None:
        """How many packets to take next time, after a turn of ``taken``."""
        limits = self._hub.limits
        if self._left:
            self._most = max(1, taken - len(self._left))
        elif mostly_commands:
            self._most = limits.controls_per_turn
        elif self._most is not None and self._spent * 2 <= limits.turn_deliveries:
            self._most = self._most * 2 if self._most * 2 < limits.batch else None

    def _misbehaved(self, reason: str) -> None:
        """This client did what nobody may."""
        self._hub.kick(self, reason)

    def _ended(self, why: str) -> None:
        """The other end closed the connection, or it broke."""
        self._hub.close_connection(self, why)

    def _route(self, batch: Batch) -> list[bytes]:
        """Find the runs of packets that go to the same receivers, and forward them.

        Returns copies of the packets that are left: those that are too much for this turn, and all from the first
        on about which ``authorize=`` has to be asked, which is a stranger's code and so has to wait until the area
        is free. Raises :exc:`~sbuslib.errors.PacketError` for a violation, once all before it has gone.
        """
        area, lengths = self._hub.area, batch.lengths
        data = area.data
        find = data.find
        if self._version != self._hub.router.version:
            self._refresh()
        get = self._routes.get
        if len(lengths) >= _MANY:
            known = self._route_known(batch)
            if known is not None:
                cut = self._forward(batch, known)
                return batch.packets(range(cut, len(lengths))) if cut is not None else []
        self._misses = False
        asks = self._asks
        until = 0.0
        stop = len(lengths)  # where what is left begins
        runs: list[Run] = []
        receivers: Routes = ()
        header: bytes | None = None
        size = start = 0
        slot = -1
        try:
            for offset, length in zip(area.offsets, lengths, strict=False):
                slot += 1
                if length >= size and data[offset : offset + size] == header:
                    continue
                end = find(b"\0", offset, offset + length) + 1
                new_header = data[offset:end]
                found = get(new_header)
                if found is None:
                    self._misses = True
                    if asks and new_header not in self._allowed:
                        stop = slot
                        break
                    if end and new_header.startswith(MSG):
                        now = monotonic()
                        if not until:
                            until = now + self._hub.limits.turn_time
                        elif now > until:
                            self._spent = self._hub.limits.turn_deliveries
                            stop = slot
                            break
                        found = self._look_up(new_header)
                    else:
                        if slot > start:
                            runs.append((start, slot, receivers))
                        start = slot + 1
                        header, size = None, 0
                        cut = self._forward(batch, runs)
                        runs = []
                        if cut is not None:
                            return batch.packets(range(cut, len(lengths)))
                        if self._batches and new_header == BATCH:
                            self.take_batch(data, self, b"", offset, length)
                            held = bool(self._holders)  # many batches would be more than there is room for
                        else:
                            self._command(batch.packet(slot))
                            held = False
                        if self._left or held:  # the rest of a batch goes on before the packets after it
                            return batch.packets(range(start, len(lengths))) if start < len(lengths) else []
                        continue
                if header is None:
                    start = slot
                elif found is not receivers:
                    runs.append((start, slot, receivers))
                    start = slot
                header, size, receivers = new_header, len(new_header), found
        except PacketError:
            # What came before a violation was accepted, and goes out first.
            if header is not None and slot > start:
                runs.append((start, slot, receivers))
            cut = self._forward(batch, runs)
            if cut is None:
                raise
            return batch.packets(range(cut, slot + 1))
        if header is not None and stop > start:
            runs.append((start, stop, receivers))
        cut = self._forward(batch, runs)
        if cut is not None:
            stop = cut
        return batch.packets(range(stop, len(lengths))) if stop < len(lengths) else []

    def _route_known(self, batch: Batch) -> list[Run] | None:
        """The runs of a batch of nothing but messages whose receivers are remembered, ``None`` for any other batch.

        What most batches are, and so done in few calls for all of their packets: that takes a third of the time of
        looking at each.
        """
        area, lengths = self._hub.area, batch.lengths
        count = len(lengths)
        get = self._routes.get
        data, offsets = area.data, area.offsets
        size = data.find(b"\0", 0, lengths[0]) + 1
        header = data[:size]
        receivers = get(header)
        if receivers is None or size > LONGEST_HEAD or batch.shortest < size:
            return None
        heads = area.heads(count, size)
        if heads[-1] == header and heads.count(header) == count:
            return [(0, count, receivers)]
        if self._misses:
            return None
        # A head of another length than its packet's header is equal to no header at all, and is looked at by itself.
        found = list(map(get, heads))
        if None in found:
            for slot, others in enumerate(found):
                if others is None:
                    offset = offsets[slot]
                    found[slot] = get(data[offset : data.find(b"\0", offset, offset + lengths[slot]) + 1])
        runs: list[Run] = []
        start = 0
        for slot, others in enumerate(found):
            if others is not receivers:
                if others is None:
                    return None
                runs.append((start, slot, receivers))
                start, receivers = slot, others
        runs.append((start, count, receivers))
        return runs

    def _forward(self, batch: Batch, runs: list[Run]) -> int | None:
        """Hand each receiver its packets. Where that is too much for one turn, the first slot that is left."""
        if not runs:
            return None
        cut: int | None = None
        runs, one_by_one = self._hub.fanouts.near_runs(runs, self)
        spent = self._spent
        for start, end, receivers in runs:
            spent += (end - start) * len(receivers)
        if spent > self._hub.limits.turn_deliveries:
            runs, cut = self._cut(runs)
        else:
            self._spent = spent
        if len(runs) == 1 or one_by_one:
            for start, end, receivers in runs:
                self.received += end - start
                slots = range(start, end)
                for receiver in receivers:
                    receiver.deliver(self, batch, slots)
            return cut
        mine: dict[Receiver, list[int]] = {}
        for start, end, receivers in runs:
            self.received += end - start
            for receiver in receivers:
                if receiver in mine:
                    mine[receiver].extend(range(start, end))
                else:
                    mine[receiver] = list(range(start, end))
        for receiver, several in mine.items():
            receiver.deliver(self, batch, several)
        return cut

    def _cut(self, runs: list[Run]) -> tuple[list[Run], int | None]:
        """As many of ``runs`` as are not too much for one turn, at least one packet of it; the first slot left.

        Receivers that lose it all do not count: they cost no less where it is done a packet at a time.
        """
        limit = self._hub.limits.turn_deliveries
        room = limit - self._spent
        least = 0 if self._spent else 1
        fitting: list[Run] = []
        for start, end, receivers in runs:
            taking = sum(not receiver.refuses for receiver in receivers) or 1
            cost = (end - start) * taking
            if cost > room:
                count = max(room // taking, least)
                if count:
                    fitting.append((start, start + count, receivers))
                self._spent = limit
                return fitting, start + count
            room -= cost
            least = 0
            fitting.append((start, end, receivers))
        self._spent = limit - room
        return fitting, None

    def _look_up(self, header: bytes, times: int = 1) -> Routes:
        """The receivers of a message that this client may publish."""
        if self.link is not None:
            return self.link.look_up(header, self._routes, times)
        router = self._hub.router
        found = router.routes.get(header)
        if found is None:
            found = router.route(header)
        return found

    def _route_copy(self, packet: bytes) -> None:
        """Act on one packet that was copied out, and ask ``authorize=`` about what it did not decide yet."""
        header = packet[: packet.find(b"\0") + 1]
        if not header.startswith(MSG):
            self._command(packet)
        elif not self._asks or header in self._allowed or self._may_publish(header):
            self.deliver_to(self._look_up(header), self, packet)

    def deliver_to(self, receivers: Routes, sender: Sender, packet: bytes) -> None:
        """Hand each receiver one packet that came over this connection."""
        receivers = self._hub.fanouts.near(receivers, sender)
        self.received += 1
        self._spent += len(receivers)
        for receiver in receivers:
            receiver.deliver_packet(sender, packet)

    @property
    def _is_excused(self) -> bool:
        return self.link is not None

    def _excuse(self, reason: str) -> None:
        assert self.link is not None
        self.link.drop(reason)

    def _may_publish(self, header: bytes, times: int = 1) -> bool:
        """Whether ``authorize=`` allows a key; raises :exc:`~sbuslib.errors.PacketError` if not, unless for a link."""
        try:
            self._hub.router.namespace.check_key(header[len(MSG) : -1])
            self._check_authorized(header)
        except PacketError as error:
            if self.link is None:
                raise
            self.link.drop(error.reason, times)
            return False
        return True

    def _check_authorized(self, header: bytes) -> None:
        """Ask ``authorize=`` about a key, and remember a yes. Raises :exc:`~sbuslib.errors.PacketError`."""
        hub = self._hub
        if not hub.is_authorized(self.credentials, "publish", header[len(MSG) : -1]):
            raise PacketError("publishing refused")
        if len(header) <= hub.limits.cached_key_bytes:
            size = len(header) + hub.limits.allowed_key_bytes
            if len(self._allowed) >= hub.limits.cached_keys or not hub.quotas.allowed.take(self.account.uid, size):
                self._forget_allowed()
                if not hub.quotas.allowed.take(self.account.uid, size):
                    return  # other clients of this user remember as much as they may all together
            self._allowed.add(header)
            self._allowed_bytes += size

    def _forget_allowed(self) -> None:
        self._hub.quotas.allowed.give(self.account.uid, self._allowed_bytes)
        self._allowed.clear()
        self._allowed_bytes = 0

    def _refresh(self) -> None:
        self._version = self._hub.router.version
        if self._routes is not self._hub.router.routes:
            self._routes.clear()

    def _command(self, data: bytes) -> None:
        """Act on a packet that is no message, or is many. Raises :exc:`~sbuslib.errors.PacketError`."""
        if self._batches and data.startswith(BATCH):
            self.take_batch(data, self)
            return
        self._commands += 1
        if self.link is not None:
            self.link.take(data)
            return
        self.act_on(parse(data))

    def act_on(self, packet: Packet) -> None:
        """Act on a packet that is no message. Raises :exc:`~sbuslib.errors.PacketError`."""
        hub = self._hub
        if isinstance(packet, Control):
            self._control(packet)
        elif isinstance(packet, Subscribe):
            if hub.authorize and not hub.is_authorized(self.credentials, "subscribe", packet.pattern):
                raise PacketError("subscription refused")
            hub.router.subscribe(packet.pattern, self, self.credentials, self.account)
            self._refresh()
        else:
            assert isinstance(packet, Unsubscribe)
            if not hub.router.unsubscribe(packet.pattern, self, self.account):
                hub.ignored += 1
            self._refresh()

    def _control(self, packet: Control) -> None:
        match packet.key:
            case control.WHOAMI:
                self._hub.tree.whoami(self)
            case control.ECHO_OFF:
                self._echo = False
            case control.ECHO_ON:
                self._echo = True
            case control.SENDERS_ON:
                self.set_senders(True)
            case control.SENDERS_OFF:
                self.set_senders(False)
            case control.BATCH_ON:
                self.set_batches(True)
            case control.BATCH_OFF:
                self.set_batches(False)
            case control.NOTICES_ON:
                self.set_notices(True)
            case control.NOTICES_OFF:
                self.set_notices(False)
            case control.STATISTICS:
                trusted = self._hub.is_trusted(self.credentials.uid)
                self.answer(encode_control(control.STATISTICS, self._hub.encode_statistics() if trusted else b""))
            case control.FEATURES:
                self.answer(encode_control(control.FEATURES, self._hub.features.encode()))
            case control.SYNC:
                token, _, scope = (packet.payload or b"").partition(b"\0")
                if len(token) > self._hub.limits.token_bytes:
                    raise PacketError("token too long")
                self._hub.tree.sync(self, token, scope)
            case control.INTEREST_ON:
                self._hub.tree.add_link(self)
            case key:
                if not self._choose(key):
                    self._hub.ignored += 1

    def _choose(self, key: bytes) -> bool:
        """Take a control message as a choice of flood control mode; ``False`` when it is none."""
        if key in _SOFT:
            self.outbox.soft = _SOFT[key]
        elif key in _HARD:
            self.outbox.hard = _HARD[key]
        elif key in _ORDER:
            self.outbox.order = _ORDER[key]
        else:
            return False
        self.changed_modes()
        return True

    def statistics(self) -> ClientStatistics:
        """This client at this instant."""
        outbox = self._outbox
        return ClientStatistics(
            credentials=self.key.decode(),
            patterns=self._hub.router.count(self),
            received=self.received,
            routed=self.routed,
            delivered=self.delivered,
            queued=self.queued,
            queued_peak=outbox.peak if outbox is not None else 0,
            lost=self.lost,
            soft=outbox.soft if outbox is not None else "queue",
            hard=outbox.hard if outbox is not None else "discard",
            order=outbox.order if outbox is not None else "queue",
        )

    def become_link(self, link: Link, longest: int) -> None:
        """The relay of another hub is at the other end: for :class:`~sbuslib.tree.tree.Tree`."""
        self.link = link
        self._echo = False
        self._longest = longest
        self._routes = {}
        self._hub.fanouts.forget()
        self._hub.buffers.grow(self, for_good=True)  # a whole hub is behind it, and packets that must not be lost

    def forget_route(self, header: bytes) -> None:
        """Look a header up again when it comes next."""
        if self._routes is not self._hub.router.routes:
            self._routes.pop(header, None)

    def publish_for(self, voucher: Sender, header: bytes, packet: bytes) -> None:
        """Route a message of somebody behind this link."""
        if not self._asks or header in self._allowed or self._may_publish(header):
            self.deliver_to(self._look_up(header), voucher, packet)

    def close(self) -> None:
        """Close the socket. For the hub, which forgets the connection first."""
        if self.closed:
            return
        self._close_sending()
        self._left.clear()
        self._reader.stop()
        self._reader.close()
        for holder in self._holders:
            holder.forget_held(self)
        self._holders.clear()
        self._forget_allowed()
        self.socket.close()
