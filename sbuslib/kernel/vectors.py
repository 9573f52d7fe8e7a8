"""``recvmmsg(2)`` and ``sendmmsg(2)`` through :mod:`ctypes`, and the message headers that they are given.

The headers of a :class:`Vector` are laid out once. For a call, only the fields that change are written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
from array import array
from collections.abc import Sequence
from typing import Any, Final

from ..limits import BATCH_MOST
from .descriptors import CONTROL_BYTES, close_elsewhere, control_in, descriptors_in
from .peers import peer_credentials

ONE_PACKET_FLAGS: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)  # '|' of plain numbers is far quicker
"""The flags of send(2) that every packet is sent with."""


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
WORD_FORMAT: Final = "Q" if _WORD == 8 else "I"
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


CALLS = _system_calls()


class Vector:
    """``count`` message headers of ``pieces`` iovecs each, and views of the fields that change."""

    def __init__(self, count: int, pieces: int = 1) -> None:
        #: The kernel's structures: a header points to its iovecs.
        self._iovecs = (_Iovec * (count * pieces))()
        self._headers = (_Mmsghdr * count)()  # one for each message
        iovecs = ctypes.addressof(self._iovecs)
        for n, message in enumerate(self._headers):
            message.header.iov = iovecs + n * pieces * ctypes.sizeof(_Iovec)
            message.header.iovlen = pieces
        words = memoryview(self._iovecs).cast("B").cast(WORD_FORMAT)
        #: For each piece, its address in each message.
        self.bases = [words[2 * piece :: 2 * pieces] for piece in range(pieces)]
        #: And its length in bytes.
        self.sizes = [words[2 * piece + 1 :: 2 * pieces] for piece in range(pieces)]
        headers = memoryview(self._headers).cast("B")
        #: Length of each received message.
        self.lengths = headers.cast("I")[_Mmsghdr.length.offset // 4 :: _ONE // 4]
        # Ready-made arguments: the address of each header, and each count.
        start = ctypes.addressof(self._headers)
        #: Indexed by the first message.
        self.addresses = [ctypes.c_void_p(start + n * _ONE) for n in range(count)]


class GuardedVector(Vector):
    """Message headers to receive with, with room for the kernel's control messages."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        #: Room for the control messages of each packet.
        self._control = mmap.mmap(-1, count * CONTROL_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        anchor = ctypes.c_char.from_buffer(self._control)
        start = ctypes.addressof(anchor)
        del anchor  # only the address was wanted; while it lives, the memory cannot be given back
        for n, message in enumerate(self._headers):
            message.header.control = start + n * CONTROL_BYTES
        headers = memoryview(self._headers).cast("B")
        #: Flags of each packet: whether something was cut off.
        self._flags = headers.cast("I")[_Msghdr.flags.offset // 4 :: _ONE // 4]
        #: Before a call, the size of the room for each packet; after it, the used part.
        self._control_sizes = headers.cast(WORD_FORMAT)[_Msghdr.controllen.offset // _WORD :: _ONE // _WORD]
        #: The latter.
        self._full = memoryview(array(WORD_FORMAT, [CONTROL_BYTES] * count))
        self.make_room(count)

    def make_room(self, count: int) -> None:
        """Set the sizes of the first headers anew: the kernel overwrites them with the used parts."""
        self._control_sizes[:count] = self._full[:count]

    def close_descriptors(self, sock: socket.SocketType, count: int) -> int:
        """Close the descriptors that came with the first packets of a socket.

        Returns how many packets came before them.
        """
        sizes = self._control_sizes[:count].tolist()
        flags = self._flags[:count].tolist()
        clean = count
        if any(sizes) or flags.count(socket.MSG_CMSG_CLOEXEC) < count:  # a flag that is there anyway
            passed: list[int] = []
            for n in reversed(range(count)):
                start = n * CONTROL_BYTES
                sent, descriptors = descriptors_in(control_in(self._control[start : start + sizes[n]]), flags[n])
                passed += descriptors
                if sent:
                    clean = n
            if passed:
                close_elsewhere(passed, peer_credentials(sock).uid)
        return clean


COUNTS: Final = [ctypes.c_uint(n) for n in range(BATCH_MOST + 1)]
NO_WAIT: Final = ctypes.c_int(ONE_PACKET_FLAGS)
NO_WAIT_RECEIVE: Final = ctypes.c_int(socket.MSG_DONTWAIT)
NO_WAIT_GUARDED: Final = ctypes.c_int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)


def has_calls() -> bool:
    return CALLS is not None and os.environ.get("SBUS_SYSCALLS") != "plain"


def send_each(sock: socket.SocketType, packets: Sequence[bytes | memoryview], flags: int = ONE_PACKET_FLAGS) -> int:
    """Send packets one by one. Returns the number sent. Raises only an error of the first."""
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
