"""Waits until a socket that took no more packets is writable."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

__all__ = ["SEND_RETRY", "WRITE", "SendWatcher"]

WRITE: Final = 2
"""gevent's name for libev's EV_WRITE."""

SEND_RETRY: Final = 0.02
"""Seconds to wait where the kernel has no memory for a packet, though it calls the socket writable."""


class SendWatcher:
    """Calls a function while a socket is writable. Made when something has to wait, and closed once nothing does."""

    __slots__ = ("_loop", "_on_writable", "_retry", "_writer")

    def __init__(self, loop: Any, sock: socket.SocketType, on_writable: Callable[[], None]) -> None:
        self._loop = loop
        self._on_writable = on_writable
        self._retry: Any = None  # the timer of a pause, during one
        self._writer = loop.io(sock.fileno(), WRITE)  # stopped during a pause
        self._writer.start(on_writable)

    def pause(self) -> None:
        self._writer.stop()

    def go_on(self) -> None:
        """Call the function now, and again while the socket is writable."""
        if self._retry is None:
            self._writer.start(self._on_writable)
            self._on_writable()

    def wait_for_memory(self) -> None:
        """The kernel had no memory, and would call the socket writable all the same: let some time pass."""
        self._writer.stop()
        if self._retry is None:
            self._retry = self._loop.timer(SEND_RETRY)
            self._retry.start(self._retry_now)

    def _retry_now(self) -> None:
        self._close_retry()
        self._writer.start(self._on_writable)

    def _close_retry(self) -> None:
        if self._retry is not None:
            self._retry.stop()
            self._retry.close()
            self._retry = None

    def close(self) -> None:
        self._close_retry()
        self._writer.stop()
        self._writer.close()
