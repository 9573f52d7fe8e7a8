"""Waits until a socket that took no more packets is writable, and then for a turn of its user."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

from .running import Running

WRITE: Final = 2
"""gevent's name for libev's EV_WRITE."""

SEND_RETRY: Final = 0.02
"""Seconds to wait where the kernel has no memory for a packet, though it calls the socket writable."""


class SendWatcher:
    """Calls a function while a socket is writable, in turns of a user.

    Made when something has to wait, and closed once nothing does.
    """

    __slots__ = ("_retry", "_running", "_send_on", "_uid", "_writer", "closed")

    def __init__(self, running: Running, uid: int, sock: socket.SocketType, send_on: Callable[[], None]) -> None:
        self._running = running
        self._uid = uid
        self._send_on = send_on
        self.closed = False  # nothing waits any more
        self._retry: Any = None  # the timer of a pause, during one
        self._writer = running.loop.io(sock.fileno(), WRITE)  # stopped while it waits for a turn, or during a pause
        self._writer.start(self._on_writable)

    def _on_writable(self) -> None:
        scheduler = self._running.scheduler
        if scheduler.may_go():
            self._send_on()
        else:
            self._writer.stop()
            scheduler.postpone(self._uid, self._take_turn)

    def _take_turn(self) -> None:
        if not self.closed and self._retry is None:
            self._writer.start(self._on_writable)
            self._send_on()

    def wait_for_memory(self) -> None:
        """The kernel had no memory, and would call the socket writable all the same: let some time pass."""
        self._writer.stop()
        if self._retry is None:
            self._retry = self._running.loop.timer(SEND_RETRY)
            self._retry.start(self._end_pause)

    def _end_pause(self) -> None:
        self._retry.close()
        self._retry = None
        self._writer.start(self._on_writable)

    def close(self) -> None:
        self.closed = True
        if self._retry is not None:
            self._retry.close()
        self._writer.close()
