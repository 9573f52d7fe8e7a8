"""Hubs of this process, so that a client that would wait for one of them in vain raises an error."""

from __future__ import annotations

import os
import socket
import sys
from weakref import WeakValueDictionary

from ..errors import StateError
from .peers import peer_credentials
from .threads import unpatched


class Serving:
    """A hub that was started in this process, and the thread that started it. The hub keeps it."""

    def __init__(self, listener: socket.SocketType) -> None:
        self._thread: int = unpatched("_thread", "get_native_id")()  # which no later thread has
        _all[listener.getsockname()] = self

    def check_here(self, address: str) -> None:
        """Raise :exc:`~sbuslib.errors.StateError` if the hub cannot serve a caller that waits without gevent.

        It could if the standard library was patched: then all waiting is in gevent.
        """
        if unpatched("_thread", "get_native_id")() == self._thread and not _is_patched():
            raise StateError(
                f"{address}: this thread would wait for a hub that only this thread can serve: wait in another thread, "
                "or use sbuslib.Client, which waits in gevent"
            )


_all: WeakValueDictionary[str | bytes, Serving] = WeakValueDictionary()


def serving(sock: socket.SocketType) -> Serving | None:
    """The hub at the other end of a connection, if it is one of this process."""
    try:
        hub = _all.get(sock.getpeername()) if _all else None
        return hub if hub is not None and peer_credentials(sock).pid == os.getpid() else None
    except OSError:
        return None  # the connection has ended


def _is_patched() -> bool:
    """Whether waiting for a socket waits in gevent, in the whole program."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("select"))
