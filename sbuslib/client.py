"""The client for gevent applications: it blocks the calling greenlet, and greenlets of one thread may share it."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gevent
from gevent.hub import Waiter
from gevent.socket import wait_write
from gevent.timeout import Timeout

from .clients.endpoint import Endpoint
from .clients.patterns import Running

__all__ = ["Client"]


class _Waiter:
    """What one greenlet waits with, once: the event loop switches to it directly."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: Any = Waiter()

    def wait(self, timeout: float | None) -> bool:
        waiter = self._waiter
        if timeout is None:
            return bool(waiter.get())
        timer = waiter.hub.loop.timer(timeout)
        timer.start(waiter.switch, False)
        try:
            return bool(waiter.get())
        finally:
            timer.stop()
            timer.close()

    def wake(self) -> None:
        self._waiter.hub.loop.run_callback(self._waiter.switch, True)


class _WaitTimeoutError(Exception):
    """The timeout of a client itself, which is told apart from a timeout of the caller."""


class Client(Endpoint):
    """A client of a hub that blocks the calling greenlet. See :class:`~sbuslib.clients.endpoint.Endpoint`.

    Any number of greenlets may share it, all of the thread that made it; in another thread every verb raises
    :exc:`~sbuslib.errors.StateError`. A :class:`gevent.Timeout` of the caller passes through every method, and leaves
    the client usable.
    """

    _WAITS_IN_GEVENT = True
    _watcher: Any = None

    def _find_caller(self) -> object:
        return gevent.get_hub()

    def spawn(self, function: Callable[[], object]) -> Running:
        return gevent.spawn(function)

    def publish(self, key: bytes, payload: bytes = b"", *, flags: int = 0) -> None:
        """Publish one message; waits while the hub has no room for it.

        See :meth:`~sbuslib.clients.endpoint.Endpoint.publish`.
        """
        if gevent.get_hub() is not self._owner:
            self._check_caller()
        super().publish(key, payload, flags=flags)

    def _make_waiter(self) -> _Waiter:
        return _Waiter()

    def _make_lock(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _wait(self, sock: socket.SocketType, events: int, timeout: float | None) -> bool:
        try:
            if events == select.POLLIN:
                # One greenlet reads at a time, so one watcher serves for as long as the socket does.
                hub = gevent.get_hub()
                if self._watcher is None:
                    self._watcher = hub.loop.io(sock.fileno(), 1)
                if timeout is None:
                    hub.wait(self._watcher)
                    return True
                with Timeout(timeout, _WaitTimeoutError):
                    hub.wait(self._watcher)
            else:
                wait_write(sock.fileno(), timeout, _WaitTimeoutError())
        except _WaitTimeoutError:
            return False
        return True

    def _sleep(self, seconds: float) -> None:
        gevent.sleep(seconds)

    def _release_socket(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None
        super()._release_socket()
