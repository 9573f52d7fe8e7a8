"""A descriptor that is readable while a client has something to receive, for programs with their own event loop."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from socket import SocketType
from typing import Any
from weakref import finalize

from ..kernel.threads import unpatched


class Readiness:
    """Readable while a connection is, or while messages wait inside of the client: an epoll(7) of both."""

    def __init__(self) -> None:
        self._poll: Any = unpatched("select", "epoll")()  # of the connection, and of what follows
        self._inside = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable while messages wait inside
        self._is_shown = False  # whether it is
        finalize(self, os.close, self._inside)
        self._poll.register(self._inside, select.EPOLLIN)

    def fileno(self) -> int:
        number: int = self._poll.fileno()
        return number

    def watch(self, sock: SocketType) -> None:
        """Watch this connection from now on."""
        self._poll.register(sock.fileno(), select.EPOLLIN)

    def leave(self, sock: SocketType) -> None:
        """Watch this connection no more."""
        with suppress(OSError, ValueError):  # it was closed, or never watched
            self._poll.unregister(sock.fileno())

    def show(self, is_inside: bool) -> None:
        """Set whether messages wait inside."""
        if is_inside and not self._is_shown:
            os.eventfd_write(self._inside, 1)
        elif self._is_shown and not is_inside:
            os.eventfd_read(self._inside)
        self._is_shown = is_inside
