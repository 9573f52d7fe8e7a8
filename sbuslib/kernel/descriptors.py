"""File descriptors that a peer sends with a packet (``SCM_RIGHTS``). This library has no use for them.

If the receiver of a packet does not take its descriptors, the kernel closes them inside the receive call. That can
take long: a TCP socket with unsent data and ``SO_LINGER`` is closed only after a time that its owner chose. The event
loop of the receiver would wait for it, and so would all other clients.

Since Linux 6.16 a socket can refuse descriptors (``SO_PASSRIGHTS``): the sender gets ``EPERM``, and nothing arrives.
Accepted sockets inherit that from their listener. All sockets of this library refuse.

A :class:`GuardedSocket` is a connection over which descriptors may still come: on an older kernel, or where the peer
connected before the listener refused, as to a socket of the service manager. It takes the descriptors, and they are
closed in another thread, see :mod:`.closers`. The receiver sees a length of :data:`WITH_DESCRIPTORS`.
"""

from __future__ import annotations

import os
import socket
import struct
from _socket import SocketType  # in the socket module it is gevent's, where gevent has patched that
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from .closers import close_later, is_behind
from .peers import peer_credentials

Control: TypeAlias = tuple[int, int, bytes]
"""Control message of the kernel beside a packet: level, type and data."""

WITH_DESCRIPTORS: Final = 1 << 30
"""In place of the length of a packet that came with descriptors. No packet is as long."""

CONTROL_BYTES: Final = 2_048
"""Room for the control data of one packet: 253 descriptors, of 4 bytes each, are the most that the kernel lets through;
besides, the sender's credentials, a time and a security label where the listener of another asked for them."""

_SO_PASSRIGHTS = 83  # which the socket module has no name for
_SCM_PIDFD = 4  # the same
_HEADER = struct.Struct("@Nii")  # struct cmsghdr of cmsg(3): length with this header, level, type
_NO_LINGER = struct.pack("@ii", 0, 0)  # struct linger of socket(7)


def refuse_descriptors(sock: socket.SocketType) -> bool:
    """Have the kernel refuse descriptors from now on. ``True`` if it did before, so that none can be waiting."""
    try:
        if not sock.getsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS):
            return True
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError:
        pass  # an older kernel
    return False


class GuardedSocket(SocketType):
    """A non-blocking connection whose peer may send descriptors. They are taken, and closed in another thread."""

    __slots__ = ("_process",)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.setblocking(False)
        self._process = os.getpid()  # that opened it: a fork closes its copy alone

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As of any socket; but returns :data:`WITH_DESCRIPTORS` for a packet that came with descriptors."""
        size, control, received, _ = self.recvmsg_into([buffer], CONTROL_BYTES, flags | socket.MSG_CMSG_CLOEXEC)
        sent, descriptors = descriptors_in(control, received)
        if descriptors:
            close_elsewhere(descriptors, peer_credentials(self).uid)
        return WITH_DESCRIPTORS if sent else size

    def disown(self) -> None:
        """Let :meth:`close` close this descriptor alone, as another process has the connection, too."""
        self._process = 0

    def close(self) -> None:
        """Close the connection. Unread packets are received first, as the kernel would close what they hold.

        It stays open while descriptors that its user sent before do not close, as these would not either. In
        another process, as in the child of a fork, it closes the descriptor alone: the packets live on.
        """
        if self.fileno() >= 0 and self._process == os.getpid():
            with suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)  # from here on nothing is added
            user = peer_credentials(self).uid
            pending = [] if is_behind(user) else next(_unread(self), None)
            if pending is not None:
                rest = SocketType(fileno=self.detach())
                close_later(user, partial(_close_rest, pending, rest), len(pending) + 1)
        super().close()


def disown(sock: socket.SocketType) -> None:
    """Let closing a socket close this descriptor alone, as another process has the connection, too."""
    if isinstance(sock, GuardedSocket):
        sock.disown()


def control_in(data: bytes) -> Iterator[Control]:
    """Iterate over the control messages in a buffer of the kernel."""
    place = 0
    while place + _HEADER.size <= len(data):
        size, level, kind = _HEADER.unpack_from(data, place)
        if size < _HEADER.size:
            break
        yield level, kind, data[place + _HEADER.size : place + size]
        place += -(-size // struct.calcsize("N")) * struct.calcsize("N")


def descriptors_in(control: Iterable[Control], flags: int) -> tuple[bool, list[int]]:
    """Whether the sender of a packet sent descriptors, and those that this process got with it.

    ``flags`` are the receive call's: descriptors may have been cut off, as this process can have no more.
    """
    sent = bool(flags & socket.MSG_CTRUNC)
    descriptors = array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind in (socket.SCM_RIGHTS, _SCM_PIDFD):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
            sent = sent or kind == socket.SCM_RIGHTS
    return sent, descriptors.tolist()


def close_elsewhere(descriptors: list[int], user: int) -> None:
    """Close descriptors that this user sent, in another thread, where a slow close delays nothing else."""
    if descriptors:
        close_later(user, partial(_close_all, descriptors), len(descriptors))


def _unread(sock: socket.SocketType) -> Iterator[list[int]]:
    """Receive all that waits at a connection that was shut down; the descriptors of each packet that has any."""
    with suppress(OSError):
        # With SO_PASSCRED each packet, an empty one too, comes with its sender's credentials; the end does not.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        while True:
            try:
                _, control, received, _ = sock.recvmsg(1, CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
            except ConnectionResetError:
                continue  # reported once, before packets that wait
            if not control:
                break
            _, descriptors = descriptors_in(control, received)
            if descriptors:
                yield descriptors


def _close_rest(descriptors: list[int], sock: socket.SocketType) -> None:
    """Close the first descriptors that were unread at a connection, then those after them, then it."""
    _close_all(descriptors)
    for more in _unread(sock):
        _close_all(more)
    sock.close()


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        _close(descriptor)


def _close(descriptor: int) -> None:
    """Close a descriptor. Of a socket, ``SO_LINGER`` is switched off first, so that this does not wait."""
    with suppress(OSError):
        sock = SocketType(fileno=descriptor)
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        sock.detach()
    with suppress(OSError):
        os.close(descriptor)
