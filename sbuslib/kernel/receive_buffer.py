"""Many packets with one system call: memory in which they are received, and from which they are sent.

A :class:`ReceiveBuffer` is a block of memory cut into slots, one packet each. One ``recvmmsg(2)`` fills many slots, and
one ``sendmmsg(2)`` sends many of them on, straight from where they lie. Where these calls are missing,
:class:`PlainReceiveBuffer` makes one call for each packet. ``SBUS_SYSCALLS=plain`` in the environment asks for that, to
narrow down faults. A :class:`~sbuslib.kernel.packet_writer.PacketWriter` sends packets that lie elsewhere in memory.

**Two traps.** When a peer closes with input unread, the kernel reports ``ECONNRESET`` on the next call
in either direction, once, before the packets that the peer had sent; so a receive that meets it tries
again. And at the end of a connection ``recvmmsg`` does not stop: it fills every slot with length zero.

From a :class:`~sbuslib.kernel.descriptors.GuardedSocket` a packet may come with file descriptors. Such a packet has the
length :data:`~sbuslib.kernel.descriptors.WITH_DESCRIPTORS`, and is the last of those that are received with it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import socket
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, Final

from ..limits import CONTROL_EXTRA, PACKET_BYTES
from .descriptors import WITH_DESCRIPTORS, GuardedSocket
from .vectors import (
    CALLS,
    COUNTS,
    NO_WAIT,
    NO_WAIT_GUARDED,
    NO_WAIT_RECEIVE,
    ONE_PACKET_FLAGS,
    WORD_FORMAT,
    GuardedVector,
    Vector,
    has_calls,
    send_each,
)

SLOT_BYTES: Final = PACKET_BYTES + CONTROL_EXTRA
LONGEST_HEAD: Final = 128
"""Of a packet, in bytes: most that :meth:`PlainReceiveBuffer.heads` gives. Longer headers of messages are rare."""


class PlainReceiveBuffer:
    """Slots to receive packets into and to send them from, with one system call for each packet.

    ``data`` is the memory, ``offsets`` the place of each slot in it. A packet longer than a slot is cut, which shows as
    a length of more than ``slot_bytes``: each slot has one spare byte.
    """

    def __init__(self, slots: int = 64, slot_bytes: int = SLOT_BYTES) -> None:
        self.slots = slots
        self.slot_bytes = slot_bytes
        # An odd number of cache lines beyond whole pages, so that the starts of the slots, which is all
        # that short packets touch, do not compete for the same few sets of the processor's cache.
        stride = -(-(slot_bytes + 1) // mmap.PAGESIZE) * mmap.PAGESIZE + 3 * 64
        # Private, so that a fork does not share it; reserved and backed only as far as packets reach.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        #: The memory of all slots.
        self.data = mmap.mmap(-1, slots * stride, flags=flags)
        self.data.madvise(mmap.MADV_NOHUGEPAGE)
        #: Where each slot begins, in bytes.
        self.offsets = [slot * stride for slot in range(slots)]
        #: Getters of the first bytes of so many slots.
        self._head_getter = cache(self._make_head_getter)
        #: Each slot with its spare byte, to receive into.
        self._views = [memoryview(self.data)[offset : offset + slot_bytes + 1] for offset in self.offsets]

        self._received: list[int] = []  # lengths of the packets that came last, one call for each

    def close(self) -> None:
        """Give the memory back."""
        for view in self._views:
            view.release()
        self.data.close()

    def receive(self, sock: socket.SocketType, most: int | None = None) -> list[int]:
        """Fill slots from the first on with packets that wait at ``sock``; return the length of each packet.

        Empty when nothing waits. A length of zero is the end of the connection; nothing follows it.
        Raises :exc:`OSError` when the kernel does, but for ``ECONNRESET``, which ends nothing.
        """
        lengths = self._received = []
        for view in self._views[:most]:
            try:
                length = self._receive_packet(sock, view)
            except BlockingIOError:
                break
            except OSError:
                if lengths:
                    break  # keep the packets that came; the next call meets the error
                raise
            lengths.append(length)
            if length in (0, WITH_DESCRIPTORS):
                break
        return lengths

    def received(self) -> list[int]:
        """Return what the last :meth:`receive` did, for a caller that an exception of a signal handler kept from it.

        Empty when it received nothing, and after :meth:`forget_received`.
        """
        return [*self._received]

    def forget_received(self) -> None:
        """Note that the caller is done with the received packets."""
        self._received = []

    @staticmethod
    def _receive_packet(sock: socket.SocketType, into: memoryview) -> int:
        """Receive one packet; return its length. Raises :exc:`BlockingIOError` when nothing waits."""
        while True:
            try:
                return sock.recv_into(into)
            except ConnectionResetError:
                continue  # reported once; what the peer sent before it closed comes next

    def send(self, sock: socket.SocketType, slots: Sequence[int], lengths: Sequence[int]) -> int:
        """Send the packets in ``slots``; return how many went before the kernel would have blocked.

        ``lengths`` are those that :meth:`receive` returned. Raises :exc:`OSError`; ``EMSGSIZE``: the first packet is
        too long.
        """
        return send_each(sock, [self._views[slot][: lengths[slot]] for slot in slots])

    def send_wrapped(
        self, sock: socket.SocketType, wrapper: bytes, slots: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """As :meth:`send`, with ``wrapper`` before each packet."""
        return send_each(sock, [wrapper + self._views[slot][: lengths[slot]] for slot in slots])

    def heads(self, count: int, size: int) -> Sequence[bytes]:
        """Return the first ``size`` bytes of each of the first ``count`` slots, at most :data:`LONGEST_HEAD`.

        Behind the end of a shorter packet there are bytes of an earlier one: the caller has to look at the length.
        """
        heads = self._head_getter(size)(self.data)
        return heads if count == self.slots else heads[:count]

    def _make_head_getter(self, size: int) -> Callable[[mmap.mmap], tuple[bytes, ...]]:
        # One call for all slots: a loop over them would take several times as long.
        getter: Any = itemgetter(*[slice(offset, offset + size) for offset in self.offsets])
        return getter if self.slots > 1 else lambda data: (getter(data),)

    def packets(self, slots: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Return copies of the packets in ``slots``."""
        data, offsets = self.data, self.offsets
        if isinstance(slots, range):
            chosen = slice(slots.start, slots.stop)
            return [
                data[start : start + length] for start, length in zip(offsets[chosen], lengths[chosen], strict=True)
            ]
        return [data[offsets[slot] : offsets[slot] + lengths[slot]] for slot in slots]

    def packet(self, slot: int, length: int) -> bytes:
        """Return a copy of the packet in ``slot``."""
        offset = self.offsets[slot]
        return self.data[offset : offset + length]


class ReceiveBuffer(PlainReceiveBuffer):
    """Slots to receive packets into and to send them from, many for each system call."""

    def __init__(self, slots: int = 64, slot_bytes: int = SLOT_BYTES) -> None:
        super().__init__(slots, slot_bytes)
        if CALLS is None:
            raise OSError(errno.ENOSYS, "this C library has no recvmmsg and sendmmsg")
        self._receive_call, self._send_call = CALLS
        anchor = ctypes.c_char.from_buffer(self.data)
        start = ctypes.addressof(anchor)
        del anchor  # only the address was wanted; while it lives, the memory cannot be given back

        # The memory that the kernel reads and writes never moves, so all is laid out once.
        self._starts = array(WORD_FORMAT, [start + offset for offset in self.offsets])
        self._incoming = Vector(slots)  # receives into slots
        self._guarded: GuardedVector | None = None  # made for the first guarded socket
        self._outgoing = Vector(slots)  # sends slots
        self._sizes = [0] * slots  # what _outgoing has: comparing costs a tenth of laying out anew
        self._wrapped = Vector(slots, pieces=2)  # sends slots, with the same head before each
        self._head = b""  # which that is: kept, since the kernel reads it from where it lies
        self._no_lengths = memoryview(array("I", [0] * slots))
        """What no packet at all has as lengths."""
        for vector, piece in ((self._incoming, 0), (self._outgoing, 0), (self._wrapped, 1)):
            vector.bases[piece][:] = memoryview(self._starts)
        self._incoming.sizes[0][:] = memoryview(array(WORD_FORMAT, [slot_bytes + 1] * slots))

    def receive(self, sock: socket.SocketType, most: int | None = None) -> list[int]:
        if most == 1:  # for which the plain call takes half the time
            try:
                return [sock.recv_into(self._views[0])]
            except BlockingIOError:
                return []
            except ConnectionResetError:
                return super().receive(sock, 1)

        wanted = self.slots if most is None or most > self.slots else most
        if type(sock) is GuardedSocket:
            return self._receive_guarded(sock, wanted)

        incoming = self._incoming
        count = self._receive_call(sock.fileno(), incoming.addresses[0], COUNTS[wanted], NO_WAIT_RECEIVE, None)
        if count > 0:
            lengths: list[int] = incoming.lengths[:count].tolist()
            return lengths
        if count < 0 and ctypes.get_errno() == errno.EAGAIN:
            return []
        return super().receive(sock, 1)  # which raises the error, if it is one

    def received(self) -> list[int]:
        # The kernel writes a length for each packet; those of calls before were set to 0.
        lengths: list[int] = (self._guarded or self._incoming).lengths.tolist()
        return (lengths[: lengths.index(0)] if 0 in lengths else lengths) or super().received()

    def forget_received(self) -> None:
        super().forget_received()
        lengths = (self._guarded or self._incoming).lengths
        if len(lengths) > 1 and lengths[1]:
            lengths[:] = self._no_lengths
        else:
            lengths[0] = 0

    def _receive_guarded(self, sock: GuardedSocket, wanted: int) -> list[int]:
        if self._guarded is None:
            self._guarded = GuardedVector(self.slots)
            self._guarded.bases[0][:] = self._incoming.bases[0]
            self._guarded.sizes[0][:] = self._incoming.sizes[0]
        guarded = self._guarded
        guarded.make_room(wanted)
        count = self._receive_call(sock.fileno(), guarded.addresses[0], COUNTS[wanted], NO_WAIT_GUARDED, None)
        if count <= 0:
            return super().receive(sock, 1)  # for which nothing is there, or which raises the error
        lengths: list[int] = guarded.lengths[:count].tolist()
        clean = guarded.close_descriptors(sock, count)
        if clean < count:
            lengths[clean:] = [WITH_DESCRIPTORS]
        return lengths

    def send(self, sock: socket.SocketType, slots: Sequence[int], lengths: Sequence[int]) -> int:
        count = len(slots)
        first = slots[0]
        if count == 1:  # for which the plain call takes two thirds of the time
            try:
                sock.send(self._views[first][: lengths[first]], ONE_PACKET_FLAGS)
            except BlockingIOError:
                return 0
            return 1
        outgoing = self._outgoing
        if slots[-1] - first + 1 == count:
            sizes = lengths[first : first + count]
            if sizes != self._sizes[first : first + count]:
                self._sizes[first : first + count] = sizes
                outgoing.sizes[0][first : first + count] = memoryview(array(WORD_FORMAT, sizes))
        else:
            # Packets of one sender that are not neighbours: lay the headers out anew, for this call only.
            starts = self._starts
            outgoing.bases[0][:count] = memoryview(array(WORD_FORMAT, [starts[slot] for slot in slots]))
            sizes = self._sizes[:count] = [lengths[slot] for slot in slots]
            outgoing.sizes[0][:count] = memoryview(array(WORD_FORMAT, sizes))
            sent = self._send_call(sock.fileno(), outgoing.addresses[0], COUNTS[count], NO_WAIT)
            outgoing.bases[0][:count] = memoryview(starts)[:count]
            return sent if sent > 0 else super().send(sock, slots[:1], lengths)
        sent = self._send_call(sock.fileno(), outgoing.addresses[first], COUNTS[count], NO_WAIT)
        return sent if sent > 0 else super().send(sock, slots[:1], lengths)

    def send_wrapped(
        self, sock: socket.SocketType, wrapper: bytes, slots: Sequence[int], lengths: Sequence[int]
    ) -> int:
        count, first = len(slots), slots[0]
        if count == 1:  # as in send()
            try:
                sock.sendmsg((wrapper, self._views[first][: lengths[first]]), (), ONE_PACKET_FLAGS)
            except BlockingIOError:
                return 0
            return 1
        wrapped = self._wrapped

        # 1. The head: mostly that of the last call.
        if wrapper is not self._head:
            pointer = ctypes.cast(ctypes.c_char_p(wrapper), ctypes.c_void_p).value
            assert pointer is not None
            self._head = wrapper
            wrapped.bases[0][:] = memoryview(array(WORD_FORMAT, [pointer]) * self.slots)
            wrapped.sizes[0][:] = memoryview(array(WORD_FORMAT, [len(wrapper)]) * self.slots)

        # 2. The packets, as in send().
        if slots[-1] - first + 1 == count:
            wrapped.sizes[1][first : first + count] = memoryview(array(WORD_FORMAT, lengths[first : first + count]))
            sent = self._send_call(sock.fileno(), wrapped.addresses[first], COUNTS[count], NO_WAIT)
        else:
            wrapped.bases[1][:count] = memoryview(array(WORD_FORMAT, [self._starts[slot] for slot in slots]))
            wrapped.sizes[1][:count] = memoryview(array(WORD_FORMAT, [lengths[slot] for slot in slots]))
            sent = self._send_call(sock.fileno(), wrapped.addresses[0], COUNTS[count], NO_WAIT)
            wrapped.bases[1][:count] = memoryview(self._starts)[:count]
        return sent if sent > 0 else super().send_wrapped(sock, wrapper, slots[:1], lengths)


def make_receive_buffer(slots: int = 64, slot_bytes: int = SLOT_BYTES) -> PlainReceiveBuffer:
    """Make the fastest receive buffer that this system has, unless ``SBUS_SYSCALLS=plain`` asks for the other."""
    return (ReceiveBuffer if has_calls() else PlainReceiveBuffer)(slots, slot_bytes)
