"""Messages on their way to receivers. All are :class:`Messages`.

There are four kinds: in the receive buffer where they were received (:class:`InBuffer`), copied (:class:`Copied`, or
:class:`Single` for one), and many in one packet (:class:`Batched`). Each kind can send and copy itself, so a receiver
need not know the kind. Copies and batches of messages are made once, however many receivers ask for them.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from ..kernel.packet_writer import PacketWriter
from ..kernel.receive_buffer import PlainReceiveBuffer
from ..kernel.vectors import ONE_PACKET_FLAGS
from ..wire.batches import Batch, coalesce
from ..wire.columns import Columns

COALESCED = 8
"""Fewest messages of one turn that are put into one packet for a receiver that takes batches. Making a batch costs a
few sends."""

COALESCED_BYTES = 65_536
"""Most bytes of a coalesced packet. Beyond that, copying costs more than the calls that it saves."""


class Messages:
    """One or more messages of one sender, in order."""

    __slots__ = ()
    is_batch = False
    """Whether all of them are in one packet."""
    count: int

    @property
    def size(self) -> int:
        """Bytes of all of them, if each is a packet."""
        raise NotImplementedError

    @property
    def shortest(self) -> int:
        """The length of the shortest, or less."""
        raise NotImplementedError

    def send(self, sock: socket.SocketType) -> int:
        """Send them until the kernel would block. Returns how many messages went. Raises :exc:`OSError`."""
        raise NotImplementedError

    def send_wrapped(self, sock: socket.SocketType, wrapper: bytes) -> int:
        """As :meth:`send`, with ``wrapper`` before each packet."""
        raise NotImplementedError

    def after(self, sent: int) -> Messages:
        """The messages after the first ``sent``, which :meth:`send` returned."""
        assert not sent, "one packet goes whole or not at all"
        return self

    def packets(self) -> list[bytes]:
        """A packet for each message, copied. Each packet is copied once, however many receivers keep it."""
        raise NotImplementedError

    def columns(self) -> Columns | Sequence[bytes]:
        """Their columns if a batch of them exists already, else packets: for a receiver that keeps all of them."""
        return self.packets()

    def keep(self) -> Messages:
        """The same messages, copied: they stay good after the turn."""
        raise NotImplementedError

    def as_batch(self) -> Messages | None:
        """The same messages as one packet; ``None`` if that is not worth it."""
        return None

    def as_packets(self) -> Messages:
        """The same messages, each as a packet."""
        return self


class Received:
    """The packets of one receive call. They are in the hub's receive buffer, and good until the turn ends."""

    __slots__ = ("_copies", "_shortest", "buffer", "lengths", "writer")

    def __init__(
        self, buffer: PlainReceiveBuffer, writer: PacketWriter, lengths: Sequence[int], shortest: int = 0
    ) -> None:
        self.buffer = buffer
        self.writer = writer
        self.lengths = lengths
        self._copies: dict[int, bytes] = {}  # by slot, as far as they were asked for
        self._shortest = shortest

    @property
    def shortest(self) -> int:
        if not self._shortest:
            self._shortest = min(self.lengths)
        return self._shortest

    def slice(self, slots: range) -> InBuffer:
        return InBuffer(self, slots)

    def packet(self, slot: int) -> bytes:
        copy = self._copies.get(slot)
        if copy is None:
            copy = self._copies[slot] = self.buffer.packet(slot, self.lengths[slot])
        return copy

    def packets(self, slots: Sequence[int]) -> list[bytes]:
        copies = self._copies
        if copies:
            return [self.packet(slot) for slot in slots]
        made = self.buffer.packets(slots, self.lengths)
        copies.update(zip(slots, made, strict=True))
        return made


class _Packets(Messages):
    """Messages that are a packet each, and may be coalesced."""

    __slots__ = ("_batch", "_writer")

    def __init__(self, writer: PacketWriter, batch: Batched | bool | None = None) -> None:
        self._writer = writer
        self._batch = batch  # the same as one packet, once asked for; False: not worth it

    def as_batch(self) -> Messages | None:
        if self._batch is None:
            few = self.count < COALESCED or self.size > COALESCED_BYTES
            made = None if few else coalesce(self.packets())
            self._batch = made is not None and Batched(self._writer, made)
        return self._batch or None  # type: ignore[return-value]


class InBuffer(_Packets):
    """Messages where they were received. Good until the turn ends."""

    __slots__ = ("_received", "count", "slots")

    def __init__(self, received: Received, slots: Sequence[int]) -> None:
        super().__init__(received.writer)
        self._received = received
        self.slots = slots
        self.count = len(slots)  # messages

    @property
    def size(self) -> int:
        lengths, slots = self._received.lengths, self.slots
        if isinstance(slots, range):
            return sum(lengths[slots.start : slots.stop])
        return sum(map(lengths.__getitem__, slots))

    @property
    def shortest(self) -> int:
        return self._received.shortest

    def send(self, sock: socket.SocketType) -> int:
        received = self._received
        return received.buffer.send(sock, self.slots, received.lengths)

    def send_wrapped(self, sock: socket.SocketType, wrapper: bytes) -> int:
        received = self._received
        return received.buffer.send_wrapped(sock, wrapper, self.slots, received.lengths)

    def after(self, sent: int) -> InBuffer:
        return InBuffer(self._received, self.slots[sent:])

    def packets(self) -> list[bytes]:
        return self._received.packets(self.slots)

    def columns(self) -> Columns | Sequence[bytes]:
        if isinstance(self._batch, Batched):
            return self._batch.columns()
        received = self._received
        # Not remembered: the journal, which asks for this, is mostly the only receiver of all packets.
        return (
            received.packets(self.slots) if received._copies else received.buffer.packets(self.slots, received.lengths)
        )

    def keep(self) -> Copied:
        return Copied(self._writer, self.packets(), self._batch)


class Single(Messages):
    """One message, in a copy of its own.

    Most clients send one message at a time, so a hub that is not flooded mostly does this.
    """

    __slots__ = ("_packet",)
    count = 1

    def __init__(self, packet: bytes) -> None:
        self._packet = packet

    @property
    def size(self) -> int:
        return len(self._packet)

    @property
    def shortest(self) -> int:
        return len(self._packet)

    def send(self, sock: socket.SocketType) -> int:
        try:
            sock.send(self._packet, ONE_PACKET_FLAGS)
        except BlockingIOError:
            return 0
        return 1

    def send_wrapped(self, sock: socket.SocketType, wrapper: bytes) -> int:
        try:
            sock.sendmsg((wrapper, self._packet), (), ONE_PACKET_FLAGS)
        except BlockingIOError:
            return 0
        return 1

    def packets(self) -> list[bytes]:
        return [self._packet]

    def keep(self) -> Single:
        return self


class Copied(_Packets):
    """Messages that were copied, or came from elsewhere: a packet each."""

    __slots__ = ("_packets", "_shortest", "count")

    def __init__(self, writer: PacketWriter, packets: list[bytes], batch: Batched | bool | None = None) -> None:
        super().__init__(writer, batch)
        self._packets = packets
        self._shortest = 0  # once asked for
        self.count = len(packets)  # messages

    @property
    def size(self) -> int:
        return sum(map(len, self._packets))

    @property
    def shortest(self) -> int:
        if not self._shortest:
            self._shortest = min(map(len, self._packets))
        return self._shortest

    def send(self, sock: socket.SocketType) -> int:
        return self._writer.send(sock, self._packets)

    def send_wrapped(self, sock: socket.SocketType, wrapper: bytes) -> int:
        return self._writer.send(sock, [wrapper + packet for packet in self._packets])

    def after(self, sent: int) -> Copied:
        return Copied(self._writer, self._packets[sent:])

    def packets(self) -> list[bytes]:
        return self._packets

    def columns(self) -> Columns | Sequence[bytes]:
        return self._batch.columns() if isinstance(self._batch, Batched) else self._packets

    def keep(self) -> Copied:
        return self


class Batched(Messages):
    """Many messages in one packet."""

    __slots__ = ("_plain", "_writer", "batch", "count")
    is_batch = True

    def __init__(self, writer: PacketWriter, batch: Batch) -> None:
        self._writer = writer
        self._plain: Copied | None = None  # a packet each, once asked for
        self.batch = batch
        self.count = batch.count  # messages

    @property
    def size(self) -> int:
        return self.batch.expanded

    @property
    def shortest(self) -> int:
        return self.batch.least

    def send(self, sock: socket.SocketType) -> int:
        return self.count if self._writer.send(sock, (self.batch.view,)) else 0

    def send_wrapped(self, sock: socket.SocketType, wrapper: bytes) -> int:
        try:
            sock.sendmsg((wrapper, self.batch.view), (), ONE_PACKET_FLAGS)
        except BlockingIOError:
            return 0
        return self.count

    def packets(self) -> list[bytes]:
        return self.batch.plain

    def columns(self) -> Columns:
        return Columns(*self.batch.columns)

    def keep(self) -> Batched:
        return Batched(self._writer, self.batch.copy())

    def as_batch(self) -> Messages:
        return self if self.count > 1 else self.as_packets()

    def as_packets(self) -> Copied:
        if self._plain is None:
            # It does not refer to its batch: a cycle would keep up to 400,000 bytes until garbage is collected.
            self._plain = Copied(self._writer, self.batch.plain)
        return self._plain
