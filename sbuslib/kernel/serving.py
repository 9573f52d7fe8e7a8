"""The hubs of this process: so that a client that would wait for one of them in vain can say so."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any, Final
from weakref import WeakValueDictionary

from ..errors import StateError
from .sockets import peer_credentials, unread_bytes
from .threads import unpatched

__all__ = ["PATIENCE", "Serving", "serving"]

logger = logging.getLogger("sbuslib.clients")

PATIENCE: Final = 1.0
"""Seconds after which a client looks whether the event loop of its hub runs. A loop may well be busy for less."""

_HOW = "let the thread that started it wait in gevent, such as in hub.serve_forever()"


class Serving:
    """A hub that was started in this process: by which thread, with which event loop of gevent. The hub keeps it."""

    def __init__(self, listener: socket.SocketType, loop: Any) -> None:
        self._thread: int = unpatched("_thread", "get_native_id")()  # which no later thread has, unlike the next
        self._ident: int = unpatched("_thread", "get_ident")()
        self._loop = loop
        self._told = False
        self.stopped = False
        """Set when the hub was stopped: then its connections end by themselves."""
        _all[listener.getsockname()] = self

    def is_here(self) -> bool:
        """Whether the calling thread is the hub's."""
        here: int = unpatched("_thread", "get_native_id")()
        return here == self._thread

    def check_here(self, address: str) -> None:
        """A caller is about to wait, not in gevent. Raise :exc:`~sbuslib.errors.StateError` if the hub cannot serve it.

        It could if the standard library was patched: then all waiting is in gevent.
        """
        if self.is_here() and not _is_patched():
            raise StateError(
                f"{address}: this thread would wait for a hub that only this thread can serve: wait in another thread, "
                "or use sbuslib.Client, which waits in gevent"
            )

    def check_alive(self, address: str) -> None:
        """Raise :exc:`~sbuslib.errors.StateError` if the hub's thread has ended."""
        if self.stopped:
            return
        # The first is true as soon as Python has ended the thread, the second although another has its identity now.
        if self._ident not in sys._current_frames() or not os.path.exists(f"/proc/self/task/{self._thread}"):
            raise StateError(f"{address}: the thread that started this hub has ended, so nobody serves it: {_HOW}")

    def rounds(self) -> int:
        """How often the event loop has looked for events; -1 where it does not count."""
        rounds: int = getattr(self._loop, "iteration", -1)
        return rounds

    def warn(self, address: str, sock: socket.SocketType, rounds: int) -> None:
        """Log a warning, once, if the event loop has not run since ``rounds`` though there is something to read."""
        if self._told or rounds < 0 or rounds != self.rounds() or not unread_bytes(sock):
            return
        self._told = True
        frame = sys._current_frames().get(self._ident)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})" if frame else "its end"
        logger.warning(
            "%s: this hub is in this process, and its event loop does not run: its thread is at %s: %s",
            address,
            where,
            _HOW,
        )


_all: WeakValueDictionary[str | bytes, Serving] = WeakValueDictionary()


def serving(sock: socket.SocketType) -> Serving | None:
    """The hub at the other end of a connection, if it is one of this process."""
    try:
        found = _all.get(sock.getpeername()) if _all else None
        return found if found is not None and peer_credentials(sock).pid == os.getpid() else None
    except OSError:
        return None  # the connection has ended


def _is_patched() -> bool:
    """Whether waiting for a socket waits in gevent, in the whole program."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("select"))
