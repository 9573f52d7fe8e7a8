"""Closing sockets that other threads wait for.

If one thread closed a socket while another one polls it, the kernel could give the descriptor to a new socket, and the
poll would be about that one. So the last caller that waits for a socket closes it.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["HeldSockets"]


class HeldSockets:
    """The sockets of one client that callers wait for."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        """``lock`` can be taken again by the thread that holds it."""
        self._lock = lock  # over what follows
        self._waiting: Counter[socket.SocketType] = Counter()  # callers that wait for each
        self._to_close: set[socket.SocketType] = set()  # by the last of them

    @contextmanager
    def holding(self, sock: socket.SocketType) -> Iterator[None]:
        """Keep a socket open for as long as the block runs."""
        with self._lock:
            self._waiting[sock] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[sock] -= 1
                if not self._waiting[sock]:
                    del self._waiting[sock]
                    if sock in self._to_close:
                        self._to_close.remove(sock)
                        sock.close()

    def close(self, sock: socket.SocketType) -> None:
        """Close a socket: now, or when nobody holds it any more."""
        with self._lock:
            if sock in self._waiting:
                self._to_close.add(sock)
            else:
                sock.close()
