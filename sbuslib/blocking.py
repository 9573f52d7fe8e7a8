"""A client for programs without gevent: it blocks the calling thread, and any number of threads may share it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from .clients.endpoint import Endpoint
from .clients.patterns import Running
from .kernel.sockets import wait

__all__ = ["Client"]


class _Waiter:
    """What one thread waits with, once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout: float | None) -> bool:
        return self._lock.acquire(timeout=-1 if timeout is None else timeout)

    def wake(self) -> None:
        self._lock.release()


class Client(Endpoint):
    """A client of a hub, without gevent. It blocks the calling thread, and any threads may share it.

    ::

        with Client("/tmp/bus", reconnect=True) as client:
            client.subscribe(b"room/")
            client.publish(b"room/1/temp", b"21.5")
            message = client.receive(timeout=5)       # or: for message in client: ...
            print(message.key, message.payload)

    ``timeout`` bounds connecting, sending and questions to the hub; ``reconnect`` looks for the hub again when it goes
    away, and subscribes again; ``hub_user`` is the user that the hub must run as. These and the other parameters are
    those of :class:`sbuslib.Client`, and so are the errors.
    """

    _WAITS_IN_GEVENT = False

    def spawn(self, function: Callable[[], object]) -> Running:
        thread = threading.Thread(target=function, daemon=True)
        thread.start()
        return thread

    def _make_waiter(self) -> _Waiter:
        return _Waiter()

    def _make_lock(self) -> AbstractContextManager[object]:
        return threading.RLock()

    def _wait(self, sock: socket.SocketType, events: int, timeout: float | None) -> bool:
        return wait(sock, events, timeout)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)
