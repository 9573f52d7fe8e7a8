"""Many packets with one system call: memory in which they are received, and from which they are sent.

An :class:`Area` is a block of memory cut into slots, one packet each. One ``recvmmsg(2)`` fills many slots, and one
``sendmmsg(2)`` sends many of them on, straight from where they lie; both through :mod:`ctypes`, with every header laid
out once. A :class:`PacketWriter` sends packets that lie elsewhere. Where the calls are missing, :class:`PlainArea` does
the same with a call for each packet. ``SBUS_SYSCALLS=plain`` in the environment asks for that one, to tell faults
apart.

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
import os
import socket
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final

from ..limits import BATCH_MOST, CONTROL_EXTRA, PACKET_BYTES
from .descriptors import CONTROL_BYTES, WITH_DESCRIPTORS, GuardedSocket, close_elsewhere, control_in, descriptors_in

__all__ = ["LONGEST_HEAD", "ONE_PACKET_FLAGS", "SLOT_BYTES", "Area", "PacketWriter", "PlainArea", "make_area"]

SLOT_BYTES: Final = PACKET_BYTES + CONTROL_EXTRA
LONGEST_HEAD: Final = 128
"""Of a packet, in bytes: most that :meth:`PlainArea.heads` gives. Longer headers of messages are rare."""
ONE_PACKET_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
"""Of send(2): what every send of ours has."""


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Msghdr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.c_void_p),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Mmsghdr(ctypes.Structure):
    _fields_ = (("header", _Msghdr), ("length", ctypes.c_uint32))


_WORD: Final = ctypes.sizeof(ctypes.c_size_t)
_WORD_FORMAT: Final = "Q" if _WORD == 8 else "I"
_ONE: Final = ctypes.sizeof(_Mmsghdr)


def _system_calls() -> tuple[Any, Any] | None:
    """``recvmmsg`` and ``sendmmsg``, or ``None`` where the C library has not both.

    Through ``PyDLL``, which keeps the interpreter's lock: the calls never wait, and giving the lock up
    would let a busy thread keep it for its whole switch interval, five milliseconds for each batch. The first
    leaves its error where ctypes.get_errno() finds it: mostly it is that nothing is there.
    """
    try:
        receive, send = ctypes.PyDLL(None, use_errno=True).recvmmsg, ctypes.PyDLL(None).sendmmsg
    except AttributeError:
        return None
    receive.restype = send.restype = ctypes.c_int  # and no argtypes: arguments come as ready-made ctypes values
    return receive, send


_CALLS = _system_calls()


class _Vector:
    """``count`` message headers of ``pieces`` iovecs each, and views of the fields that change."""

    def __init__(self, count: int, pieces: int = 1) -> None:
        self._iovecs = (_Iovec * (count * pieces))()
        self._headers = (_Mmsghdr * count)()
        iovecs = ctypes.addressof(self._iovecs)
        for n, message in enumerate(self._headers):
            message.header.iov = iovecs + n * pieces * ctypes.sizeof(_Iovec)
            message.header.iovlen = pieces
        words = memoryview(self._iovecs).cast("B").cast(_WORD_FORMAT)
        self.bases = [words[2 * piece :: 2 * pieces] for piece in range(pieces)]
        self.sizes = [words[2 * piece + 1 :: 2 * pieces] for piece in range(pieces)]
        headers = memoryview(self._headers).cast("B")
        self.lengths = headers.cast("I")[_Mmsghdr.length.offset // 4 :: _ONE // 4]
        # Ready-made arguments: the address of each header, and each count.
        start = ctypes.addressof(self._headers)
        self.addresses = [ctypes.c_void_p(start + n * _ONE) for n in range(count)]


class _GuardedVector(_Vector):
    """Message headers to receive with, which have room for what the kernel adds to each packet."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._control = mmap.mmap(-1, count * CONTROL_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        anchor = ctypes.c_char.from_buffer(self._control)
        start = ctypes.addressof(anchor)
        del anchor  # only the address was wanted; while it lives, the memory cannot be given back
        for n, message in enumerate(self._headers):
            message.header.control = start + n * CONTROL_BYTES
        headers = memoryview(self._headers).cast("B")
        self._flags = headers.cast("I")[_Msghdr.flags.offset // 4 :: _ONE // 4]
        self._control_sizes = headers.cast(_WORD_FORMAT)[_Msghdr.controllen.offset // _WORD :: _ONE // _WORD]
        self._full = memoryview(array(_WORD_FORMAT, [CONTROL_BYTES] * count))
        self.make_room(count)

    def make_room(self, count: int) -> None:
        """Say that the first headers have room: the kernel writes there how much of it has been used."""
        self._control_sizes[:count] = self._full[:count]

    def close_descriptors(self, count: int) -> int:
        """Have all descriptors that came with the first packets closed; how many packets came before the first such."""
        sizes = self._control_sizes[:count].tolist()
        flags = self._flags[:count].tolist()
        clean = count
        if any(sizes) or flags.count(socket.MSG_CMSG_CLOEXEC) < count:  # a flag that is there anyway
            found: list[int] = []
            for n in reversed(range(count)):
                start = n * CONTROL_BYTES
                sent, descriptors = descriptors_in(control_in(self._control[start : start + sizes[n]]), flags[n])
                found += descriptors
                if sent:
                    clean = n
            close_elsewhere(found)
        return clean


_COUNTS: Final = [ctypes.c_uint(n) for n in range(BATCH_MOST + 1)]
_NO_WAIT: Final = ctypes.c_int(ONE_PACKET_FLAGS)
_NO_WAIT_RECEIVE: Final = ctypes.c_int(socket.MSG_DONTWAIT)
_NO_WAIT_GUARDED: Final = ctypes.c_int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)


class PlainArea:
    """Slots to receive packets into and to send them from, with one system call for each packet.

    ``data`` is the memory, ``offsets`` the place of each slot in it. A packet longer than a slot is cut, and
    tells so by a length of more than ``slot_bytes``: each slot has one spare byte.
    """

    def __init__(self, slots: int = 64, slot_bytes: int = SLOT_BYTES) -> None:
        self.slots = slots
        self.slot_bytes = slot_bytes
        # An odd number of cache lines beyond whole pages, so that the starts of the slots, which is all
        # that short packets touch, do not compete for the same few sets of the processor's cache.
        stride = -(-(slot_bytes + 1) // mmap.PAGESIZE) * mmap.PAGESIZE + 3 * 64
        # Private, so that a fork does not share it; reserved and backed only as far as packets reach.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self.data = mmap.mmap(-1, slots * stride, flags=flags)
        self.data.madvise(mmap.MADV_NOHUGEPAGE)
        self.offsets = [slot * stride for slot in range(slots)]
        self._head_getter = cache(self._make_head_getter)
        self._views = [memoryview(self.data)[offset : offset + slot_bytes + 1] for offset in self.offsets]

    def close(self) -> None:
        """Give the memory back."""
        for view in self._views:
            view.release()
        self.data.close()

    def receive(self, sock: socket.SocketType, most: int | None = None) -> list[int]:
        """Fill slots from the first on with what waits at ``sock``; the length of each packet.

        Empty when nothing waits. A length of zero is the end of the connection; nothing follows it.
        Raises :exc:`OSError` when the kernel does, but for ``ECONNRESET``, which ends nothing.
        """
        lengths: list[int] = []
        for view in self._views[:most]:
            try:
                length = self._receive_one(sock, view)
            except BlockingIOError:
                break
            except OSError:
                if lengths:
                    break  # what has come is not to be lost; the next call meets the error
                raise
            lengths.append(length)
            if length in (0, WITH_DESCRIPTORS):
                break
        return lengths

    def receive_first(self, sock: socket.SocketType, flags: int) -> int:
        """Receive one packet with flags of recv(2) into the first slot; its length.

        Raises :exc:`BlockingIOError` when nothing waits.
        """
        return self._receive_one(sock, self._views[0], flags)

    @staticmethod
    def _receive_one(sock: socket.SocketType, into: memoryview, flags: int = 0) -> int:
        """Receive one packet; its length. Raises :exc:`BlockingIOError` when nothing waits."""
        while True:
            try:
                return sock.recv_into(into, 0, flags)
            except ConnectionResetError:
                continue  # reported once; what the peer sent before it closed comes next

    def send(self, sock: socket.SocketType, slots: Sequence[int], lengths: Sequence[int]) -> int:
        """Send the packets in ``slots``; how many went before the kernel would have blocked.

        ``lengths`` is what :meth:`receive` gave. Raises :exc:`OSError`, of which ``EMSGSIZE`` concerns the
        first packet alone.
        """
        return _each(sock, [self._views[slot][: lengths[slot]] for slot in slots])

    def send_wrapped(
        self, sock: socket.SocketType, wrapper: bytes, slots: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """As :meth:`send`, with ``wrapper`` before each packet."""
        return _each(sock, [wrapper + self._views[slot][: lengths[slot]] for slot in slots])

    def first(self, length: int) -> memoryview:
        """The packet in the first slot, where it lies."""
        return self._views[0][:length]

    def heads(self, count: int, size: int) -> Sequence[bytes]:
        """The first ``size`` bytes of each of the first ``count`` slots, at most :data:`LONGEST_HEAD`.

        Where a packet is shorter, what follows it is left from before: whoever looks has to look at its length too.
        """
        heads = self._head_getter(size)(self.data)
        return heads if count == self.slots else heads[:count]

    def _make_head_getter(self, size: int) -> Callable[[mmap.mmap], tuple[bytes, ...]]:
        # One call for all slots: a loop over them would take several times as long.
        getter: Any = itemgetter(*[slice(offset, offset + size) for offset in self.offsets])
        return getter if self.slots > 1 else lambda data: (getter(data),)

    def packets(self, slots: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Copies of the packets in ``slots``."""
        data, offsets = self.data, self.offsets
        if isinstance(slots, range):
            some = slice(slots.start, slots.stop)
            return [data[start : start + length] for start, length in zip(offsets[some], lengths[some], strict=True)]
        return [data[offsets[slot] : offsets[slot] + lengths[slot]] for slot in slots]

    def packet(self, slot: int, length: int) -> bytes:
        """A copy of the packet in ``slot``."""
        offset = self.offsets[slot]
        return self.data[offset : offset + length]


class Area(PlainArea):
    """Slots to receive packets into and to send them from, many for each system call."""

    def __init__(self, slots: int = 64, slot_bytes: int = SLOT_BYTES) -> None:
        super().__init__(slots, slot_bytes)
        if _CALLS is None:
            raise OSError(errno.ENOSYS, "this C library has no recvmmsg and sendmmsg")
        self._receive_call, self._send_call = _CALLS
        anchor = ctypes.c_char.from_buffer(self.data)
        start = ctypes.addressof(anchor)
        del anchor  # only the address was wanted; while it lives, the memory cannot be given back
        self._starts = array(_WORD_FORMAT, [start + offset for offset in self.offsets])
        self._incoming = _Vector(slots)
        self._guarded: _GuardedVector | None = None  # made for the first guarded socket
        self._outgoing = _Vector(slots)
        self._laid_out: Sequence[int] | None = None  # the slots that _outgoing has the lengths of
        self._sizes = [0] * slots  # what _outgoing has: comparing costs a tenth of laying out anew
        self._wrapped = _Vector(slots, pieces=2)
        for vector, piece in ((self._incoming, 0), (self._outgoing, 0), (self._wrapped, 1)):
            vector.bases[piece][:] = memoryview(self._starts)
        self._incoming.sizes[0][:] = memoryview(array(_WORD_FORMAT, [slot_bytes + 1] * slots))

    def receive(self, sock: socket.SocketType, most: int | None = None) -> list[int]:
        self._laid_out = None
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
        count = self._receive_call(sock.fileno(), incoming.addresses[0], _COUNTS[wanted], _NO_WAIT_RECEIVE, None)
        if count > 0:
            lengths: list[int] = incoming.lengths[:count].tolist()
            return lengths
        if count < 0 and ctypes.get_errno() == errno.EAGAIN:
            return []
        return super().receive(sock, 1)  # which raises the error, if it is one

    def _receive_guarded(self, sock: GuardedSocket, wanted: int) -> list[int]:
        if self._guarded is None:
            self._guarded = _GuardedVector(self.slots)
            self._guarded.bases[0][:] = self._incoming.bases[0]
            self._guarded.sizes[0][:] = self._incoming.sizes[0]
        guarded = self._guarded
        guarded.make_room(wanted)
        count = self._receive_call(sock.fileno(), guarded.addresses[0], _COUNTS[wanted], _NO_WAIT_GUARDED, None)
        if count <= 0:
            return super().receive(sock, 1)  # for which nothing is there, or which raises the error
        lengths: list[int] = guarded.lengths[:count].tolist()
        clean = guarded.close_descriptors(count)
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
        if slots is self._laid_out:
            pass  # as for the receiver before
        elif slots[-1] - first + 1 == count:
            sizes = lengths[first : first + count]
            if sizes != self._sizes[first : first + count]:
                self._sizes[first : first + count] = sizes
                outgoing.sizes[0][first : first + count] = memoryview(array(_WORD_FORMAT, sizes))
            self._laid_out = slots
        else:
            # Packets of one sender that are not neighbours: lay the headers out anew, for this call only.
            self._laid_out = None
            starts = self._starts
            outgoing.bases[0][:count] = memoryview(array(_WORD_FORMAT, [starts[slot] for slot in slots]))
            sizes = self._sizes[:count] = [lengths[slot] for slot in slots]
            outgoing.sizes[0][:count] = memoryview(array(_WORD_FORMAT, sizes))
            sent = self._send_call(sock.fileno(), outgoing.addresses[0], _COUNTS[count], _NO_WAIT)
            outgoing.bases[0][:count] = memoryview(starts)[:count]
            return sent if sent > 0 else super().send(sock, slots[:1], lengths)
        sent = self._send_call(sock.fileno(), outgoing.addresses[first], _COUNTS[count], _NO_WAIT)
        return sent if sent > 0 else super().send(sock, slots[:1], lengths)

    def send_wrapped(
        self, sock: socket.SocketType, wrapper: bytes, slots: Sequence[int], lengths: Sequence[int]
    ) -> int:
        count = len(slots)
        wrapped = self._wrapped
        pointer = ctypes.cast(ctypes.c_char_p(wrapper), ctypes.c_void_p).value
        assert pointer is not None
        wrapped.bases[0][:count] = memoryview(array(_WORD_FORMAT, [pointer]) * count)
        wrapped.sizes[0][:count] = memoryview(array(_WORD_FORMAT, [len(wrapper)]) * count)
        wrapped.bases[1][:count] = memoryview(array(_WORD_FORMAT, [self._starts[slot] for slot in slots]))
        wrapped.sizes[1][:count] = memoryview(array(_WORD_FORMAT, [lengths[slot] for slot in slots]))
        sent = self._send_call(sock.fileno(), wrapped.addresses[0], _COUNTS[count], _NO_WAIT)
        return sent if sent > 0 else super().send_wrapped(sock, wrapper, slots[:1], lengths)


def make_area(slots: int = 64, slot_bytes: int = SLOT_BYTES) -> PlainArea:
    """The fastest area that this system has, unless ``SBUS_SYSCALLS=plain`` asks for the other."""
    return (Area if _batches() else PlainArea)(slots, slot_bytes)


def _batches() -> bool:
    return _CALLS is not None and os.environ.get("SBUS_SYSCALLS") != "plain"


def _each(sock: socket.SocketType, packets: Sequence[bytes | memoryview], flags: int = ONE_PACKET_FLAGS) -> int:
    """Send packets one by one; how many went. Raises only what concerns the first."""
    sent = 0
    for packet in packets:
        try:
            sock.send(packet, flags)
        except BlockingIOError:
            break
        except OSError:
            if not sent:
                raise
            break
        sent += 1
    return sent


class PacketWriter:
    """Sends packets that lie anywhere in memory, many with one call. Not for several threads at once.

    They are copied into one block first, which costs less than telling the kernel the place of each.
    """

    SIZE: Final = 64
    BLOCK_BYTES: Final = 256 * 1024

    def __init__(self) -> None:
        self._laid_out: Sequence[bytes | memoryview] | None = None  # what the block holds, if it is to be sent again
        self._vector: _Vector | None = None
        if _batches():
            self._vector = _Vector(self.SIZE)
            self._block = mmap.mmap(-1, self.BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            anchor = ctypes.c_char.from_buffer(self._block)
            self._start = ctypes.addressof(anchor)

    def send(
        self, sock: socket.SocketType, packets: Sequence[bytes | memoryview], flags: int = ONE_PACKET_FLAGS
    ) -> int:
        """Send ``packets`` in order; how many went before the kernel would have blocked.

        Raises :exc:`OSError` for the first packet alone, of which ``EMSGSIZE`` says that it is too long.
        """
        if self._vector is None or len(packets) == 1 or flags != ONE_PACKET_FLAGS:
            return _each(sock, packets, flags)
        sent = 0
        while sent < len(packets):
            some = packets[sent : sent + self.SIZE]
            tried, went = self._send(sock, self._vector, some)
            if went <= 0:
                # Nothing went: the plain call tells why, or sends what is too long for the block.
                try:
                    tried, went = 1, _each(sock, some[:1])
                except OSError:
                    if not sent:
                        raise
                    break
            sent += went
            if went < tried:
                break
        return sent

    def send_to_many(self, sock: socket.SocketType, packets: Sequence[bytes | memoryview]) -> int:
        """As :meth:`send`, of packets that go to one receiver after the other: they are laid out for the first alone.

        ``packets`` is the same object each time, and does not change.
        """
        if self._vector is None or not 1 < len(packets) <= self.SIZE:
            return self.send(sock, packets)
        if packets is not self._laid_out:
            if self._lay_out(self._vector, packets) < len(packets):
                return self.send(sock, packets)
            self._laid_out = packets
        sent = self._call(sock, self._vector, len(packets))
        return sent if sent > 0 else _each(sock, packets[:1])

    def _send(self, sock: socket.SocketType, vector: _Vector, packets: Sequence[bytes | memoryview]) -> tuple[int, int]:
        """Send as many of ``packets`` as fit the block: how many those were, and how many went."""
        count = self._lay_out(vector, packets)
        return (count, self._call(sock, vector, count)) if count else (0, 0)

    def _lay_out(self, vector: _Vector, packets: Sequence[bytes | memoryview]) -> int:
        """Put as many of ``packets`` into the block as fit: how many."""
        self._laid_out = None
        sizes = array(_WORD_FORMAT, map(len, packets))
        ends = list(accumulate(sizes))
        count = bisect_right(ends, self.BLOCK_BYTES)
        if count:
            sizes = sizes[:count]
            self._block[: ends[count - 1]] = b"".join(packets[:count])
            starts = array(_WORD_FORMAT, accumulate(sizes, initial=self._start))
            vector.bases[0][:count] = memoryview(starts)[:count]
            vector.sizes[0][:count] = memoryview(sizes)
        return count

    @staticmethod
    def _call(sock: socket.SocketType, vector: _Vector, count: int) -> int:
        assert _CALLS is not None
        sent: int = _CALLS[1](sock.fileno(), vector.addresses[0], _COUNTS[count], _NO_WAIT)
        return sent
