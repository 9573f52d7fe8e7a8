"""What several test modules need about file descriptors that are sent with packets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from support import PATIENCE

PASSRIGHTS = 83
MOST = 253
"""Descriptors that the kernel lets through with one packet."""


def can_refuse() -> bool:
    """Whether this kernel has ``SO_PASSRIGHTS``: since Linux 6.16."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.getsockopt(socket.SOL_SOCKET, PASSRIGHTS)
        except OSError:
            return False
    return True


refusing = pytest.mark.skipif(not can_refuse(), reason="this kernel is older than Linux 6.16")


class Closers:
    """Which descriptors were closed, and that none was closed in this thread."""

    def __init__(self) -> None:
        self.closed: list[int] = []
        self._own = threading.get_ident()
        self.elsewhere = True

    def note(self, descriptor: int) -> None:
        self.elsewhere = self.elsewhere and threading.get_ident() != self._own
        self.closed.append(descriptor)


@contextmanager
def lingering() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP socket that the kernel closes only after a second, as what it has sent is not read; and its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    other.settimeout(PATIENCE)
    sock.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            sock.send(bytes(65_536))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))
    with sock, other:  # the other end is closed first, for which nobody waits
        yield sock, other


def ends(other: socket.socket) -> bool:
    """Whether what the other end of a connection sent has an end: nobody has that socket any more."""
    while other.recv(1 << 20):
        pass
    return True


def send_with(sock: Any, packet: bytes, sent: list[int]) -> None:
    """Send a packet with copies of these descriptors."""
    socket.send_fds(sock, [packet], sent)
