"""One client of a hub: its socket, what it said, what waits for it. The hub's hot path is here.

A connection has no greenlet. It is two watchers of gevent's event loop, whose callbacks run in the loop
itself and so cannot yield: one *turn* for each time its socket is readable, and another for each time it
is writable while something waits. A turn receives one batch into the hub's area, which all connections
share, routes it packet by packet, and sends each run of packets on from where it lies. Nothing in a turn
yields, calls a stranger's code or logs before the last use of the area; what has to wait is copied out.

A turn's packets go to each receiver in the order in which they came. A packet that is no message is
acted on only after those before it were sent, so an answer never overtakes what it speaks of.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from . import control
from .errors import PacketError
from .limits import PACKET_BYTES
from .outbox import Outbox
from .packets import MSG, Control, Subscribe, Unsubscribe, encode_control, parse
from .secrets import Credentials
from .seqpacket import PlainArea

if TYPE_CHECKING:
    from .hub import Hub

__all__ = ["Batch", "Connection", "Receiver", "Sender"]

READ, WRITE = 1, 2  # gevent's names for libev's EV_READ and EV_WRITE


class Sender(Protocol):
    """Whoever publishes: a connection, or the embedder."""

    @property
    def wrapper(self) -> bytes:
        """What goes before its packets on the way to a receiver that asked for senders."""
        ...

    @property
    def key(self) -> bytes:
        """Its credential key."""
        ...


class Batch:
    """The packets of one turn where they lie: good until the turn ends."""

    __slots__ = ("_copies", "area", "lengths")

    def __init__(self, area: PlainArea, lengths: Sequence[int]) -> None:
        self.area = area
        self.lengths = lengths
        self._copies: dict[int, bytes] = {}

    def packet(self, slot: int) -> bytes:
        """A copy of a packet, for keeps; one object for all who ask."""
        copy = self._copies.get(slot)
        if copy is None:
            copy = self._copies[slot] = self.area.packet(slot, self.lengths[slot])
        return copy


class Receiver(Protocol):
    """Whoever messages can be routed to: a connection, or an inbox of the embedder."""

    def __hash__(self) -> int: ...

    def deliver(self, sender: Sender, batch: Batch, slots: Sequence[int]) -> None:
        """Send or copy the packets in ``slots``, now."""
        ...

    def deliver_packet(self, sender: Sender, packet: bytes) -> None:
        """Send or keep one packet that lies elsewhere."""
        ...


Run = tuple[int, int, tuple[Receiver, ...]]


class Connection:
    """A client that is connected. Belongs to its hub and to the thread of the hub's event loop."""

    __slots__ = (
        "__weakref__",
        "_echo",
        "_hub",
        "_mute",
        "_outbox",
        "_reader",
        "_retry",
        "_routes",
        "_senders",
        "_version",
        "_writer",
        "closed",
        "credentials",
        "delivered",
        "lost",
        "received",
        "socket",
    )

    def __init__(self, hub: Hub, sock: socket.SocketType, credentials: Credentials) -> None:
        self._hub = hub
        self.socket = sock
        self.credentials = credentials
        self.closed = False
        self.received = 0
        self.delivered = 0
        self.lost = 0
        self._echo = True
        self._senders = False
        self._mute = False  # the other end takes nothing any more, though what it sent may still be unread
        self._outbox: Outbox | None = None
        self._writer: Any = None
        self._retry: Any = None
        # Without authorize= every connection reads the router's own cache; with it, a cache of what this
        # client was allowed.
        self._routes: dict[bytes, tuple[Receiver, ...]] = {} if hub.authorize else hub.router.routes
        self._version = hub.router.version
        self._reader = hub.loop.io(sock.fileno(), READ)
        self._reader.start(self.turn)

    @property
    def key(self) -> bytes:
        """The credential key of this client, under the hub's prefix."""
        return self._hub.router.namespace.credential_key(self.credentials)

    @property
    def wrapper(self) -> bytes:
        """What goes before this client's packets on the way to a receiver that asked for senders."""
        return control.wrapper_from(self.key)

    @property
    def queued(self) -> int:
        """Packets that wait for this client."""
        return len(self._outbox) if self._outbox is not None else 0

    # -- receiving ----------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Take one batch of what this client sent; whether there was anything."""
        if self.closed:
            return False
        area = self._hub.area
        try:
            lengths = area.receive(self.socket)
        except OSError as error:
            self._hub.close_connection(self, f"receive: {error.strerror}")
            return False
        if not lengths:
            return False
        end: str | None = None
        reason: str | None = None
        if not all(lengths):
            lengths = lengths[: lengths.index(0)]
            end = "closed"
        if lengths and max(lengths) > PACKET_BYTES:
            lengths = lengths[: next(n for n, length in enumerate(lengths) if length > PACKET_BYTES)]
            reason = "packet too long"
        try:
            undecided = self._route(Batch(area, lengths))
            # Only from here on is the area free again, and may anything be logged or called.
            for packet in undecided:
                self._route_copy(packet)
        except PacketError as error:
            reason = error.reason
        if reason is not None:
            self._hub.kick(self, reason)
        elif end is not None:
            self._hub.close_connection(self, end)
        return True

    def _route(self, batch: Batch) -> list[bytes]:
        """Find the runs of packets that go to the same receivers, and forward them.

        Returns copies of the packets that are left: all from the first on about which ``authorize=`` has
        to be asked, which is a stranger's code and so has to wait until the area is free.
        """
        area, lengths = batch.area, batch.lengths
        data = area.data
        find = data.find
        if self._version != self._hub.router.version:
            self._refresh()
        get = self._routes.get
        asks = self._hub.authorize is not None
        undecided: list[bytes] = []
        runs: list[Run] = []
        receivers: tuple[Receiver, ...] = ()
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
                    if asks:
                        undecided = [batch.packet(left) for left in range(slot, len(lengths))]
                        break
                    if end and new_header.startswith(MSG):
                        found = self._hub.router.route(new_header)
                    else:
                        if slot > start:
                            runs.append((start, slot, receivers))
                        start = slot + 1
                        header, size = None, 0
                        self._forward(batch, runs)
                        runs = []
                        self._command(batch.packet(slot))
                        continue
                if header is None:
                    start = slot
                elif found is not receivers:
                    runs.append((start, slot, receivers))
                    start = slot
                header, size, receivers = new_header, len(new_header), found
            else:
                slot += 1
        finally:
            # What came before a violation was accepted, and goes out.
            if header is not None and slot > start:
                runs.append((start, slot, receivers))
            self._forward(batch, runs)
        return undecided

    def _forward(self, batch: Batch, runs: list[Run]) -> None:
        if not runs:
            return
        if len(runs) == 1:
            start, end, receivers = runs[0]
            self.received += end - start
            slots = range(start, end)
            for receiver in receivers:
                receiver.deliver(self, batch, slots)
            return
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

    def _route_copy(self, packet: bytes) -> None:
        """Route one packet that was copied out, and ask ``authorize=`` about what it did not decide yet."""
        hub = self._hub
        header = packet[: packet.find(b"\0") + 1]
        if not header.startswith(MSG):
            self._command(packet)
            return
        found = self._routes.get(header)
        if found is None:
            hub.router.namespace.check_key(header[len(MSG) : -1])
            if not hub.is_authorized(self.credentials, "publish", header[len(MSG) : -1]):
                raise PacketError("publishing refused")
            found = hub.router.route(header)
            if len(header) <= hub.limits.cached_key_bytes:
                if len(self._routes) >= hub.limits.cached_keys:
                    self._routes.clear()
                self._routes[header] = found
        self.received += 1
        for receiver in found:
            receiver.deliver_packet(self, packet)

    def _refresh(self) -> None:
        self._version = self._hub.router.version
        if self._hub.authorize:
            self._routes.clear()

    def _command(self, data: bytes) -> None:
        """Act on a packet that is no message. Raises :exc:`~sbuslib.errors.PacketError`."""
        hub = self._hub
        packet = parse(data)
        if isinstance(packet, Control):
            self._control(packet)
        elif isinstance(packet, Subscribe):
            if hub.authorize and not hub.is_authorized(self.credentials, "subscribe", packet.pattern):
                raise PacketError("subscription refused")
            hub.router.subscribe(packet.pattern, self, self.credentials)
            self._refresh()
        else:
            assert isinstance(packet, Unsubscribe)
            if not hub.router.unsubscribe(packet.pattern, self):
                hub.ignored += 1
            self._refresh()

    def _control(self, packet: Control) -> None:
        match packet.key:
            case control.WHOAMI:
                self.answer(encode_control(control.WHOAMI, self.key))
            case control.ECHO_OFF:
                self._echo = False
            case control.ECHO_ON:
                self._echo = True
            case control.SENDERS_ON:
                self._senders = True
            case control.SENDERS_OFF:
                self._senders = False
            case control.FEATURES:
                self.answer(encode_control(control.FEATURES, self._hub.features.encode()))
            case control.SYNC:
                token, _, scope = (packet.payload or b"").partition(b"\0")
                if len(token) > self._hub.limits.token_bytes:
                    raise PacketError("token too long")
                # This hub is the root of its tree, so what is in force here is in force everywhere.
                self.answer(control.encode_sync(token, b"tree" if scope == b"tree" else b"local"))
            case _:
                self._hub.ignored += 1

    # -- sending ------------------------------------------------------------------------------------

    def deliver(self, sender: Sender, batch: Batch, slots: Sequence[int]) -> None:
        """Send the packets in ``slots`` on, or queue copies of them. Implements :class:`Receiver`."""
        if sender is self and not self._echo:
            return
        if self._senders:
            self._deliver_wrapped(sender, batch, slots)
            return
        sent = 0
        if not self._outbox and not self._mute:
            try:
                sent = batch.area.send(self.socket, slots, batch.lengths)
            except OSError as error:
                self._send_failed(error)
            self.delivered += sent
            if sent == len(slots):
                return
        for slot in slots[sent:]:
            self._queue(batch.packet(slot))

    def _deliver_wrapped(self, sender: Sender, batch: Batch, slots: Sequence[int]) -> None:
        wrapper = sender.wrapper
        sent = 0
        if not self._outbox and not self._mute:
            try:
                sent = batch.area.send_wrapped(self.socket, wrapper, slots, batch.lengths)
            except OSError as error:
                self._send_failed(error)
            self.delivered += sent
        for slot in slots[sent:]:
            self._queue(wrapper + batch.packet(slot))

    def deliver_packet(self, sender: Sender, packet: bytes) -> None:
        """Send or queue one packet. Implements :class:`Receiver`."""
        if sender is self and not self._echo:
            return
        if self._senders:
            packet = sender.wrapper + packet
        if not self._outbox and not self._mute:
            try:
                if self._hub.gather.send(self.socket, (packet,)):
                    self.delivered += 1
                    return
            except OSError as error:
                self._send_failed(error)
        self._queue(packet)

    def answer(self, packet: bytes) -> None:
        """Send or queue an answer to a control message: never lost while the client is there."""
        if not self._outbox and not self._mute:
            try:
                if self._hub.gather.send(self.socket, (packet,)):
                    return
            except OSError as error:
                self._send_failed(error)
        if not self._mute and not self._waiting().push_answer(packet):
            raise PacketError("too many unread answers")

    def _waiting(self) -> Outbox:
        """The outbox, with a watcher that empties it."""
        if self._outbox is None:
            self._outbox = Outbox(self._hub.limits)
        if self._writer is None:
            self._writer = self._hub.loop.io(self.socket.fileno(), WRITE)
            self._writer.start(self._on_writable)
        return self._outbox

    def _queue(self, packet: bytes) -> None:
        if self._mute or not self._waiting().push(packet):
            self._lose(1)

    def _lose(self, count: int) -> None:
        self.lost += count

    def _on_writable(self) -> None:
        """Send on what waits, one batch of it."""
        outbox = self._outbox
        assert outbox is not None
        packets = outbox.first(self._hub.limits.batch)
        try:
            sent = self._hub.gather.send(self.socket, packets)
        except OSError as error:
            self._send_failed(error)
            if self._mute:
                return
            if error.errno != errno.EMSGSIZE:
                self._pause_sending()
                return
            outbox.pop(1)
            self._lose(1)
        else:
            outbox.pop(sent)
            self.delivered += sent
        if not outbox:
            self._stop_writer()
            self._hub.flushed()

    def _send_failed(self, error: OSError) -> None:
        """A send failed for another reason than that the receiver is slow."""
        if error.errno in (errno.ENOBUFS, errno.ENOMEM, errno.EMSGSIZE):
            return
        # Such as EPIPE or ECONNRESET: the other end is gone, or takes nothing. Whatever it sent before is still
        # read, up to the packet of length zero that ends it.
        self._mute = True
        if self._outbox is not None:
            self._lose(len(self._outbox))
            self._outbox = None
        self._stop_writer()
        self._hub.flushed()

    def _pause_sending(self) -> None:
        """The kernel had no memory: it would call the socket writable all the same, so let time pass."""
        self._writer.stop()
        self._retry = self._hub.loop.timer(self._hub.limits.send_retry)
        self._retry.start(self._resume_sending)

    def _resume_sending(self) -> None:
        self._retry.close()
        self._retry = None
        if self._writer is not None:
            self._writer.start(self._on_writable)

    def _stop_writer(self) -> None:
        for watcher in (self._writer, self._retry):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._writer = self._retry = None

    def close(self) -> None:
        """Close the socket. For the hub, which forgets the connection first."""
        if self.closed:
            return
        self.closed = self._mute = True
        self._reader.stop()
        self._reader.close()
        self._stop_writer()
        if self._outbox is not None:
            self._lose(len(self._outbox))
            self._outbox = None
        self.socket.close()
