"""A client for programs without gevent: it blocks the calling thread, and any number of threads may share it."""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine
from contextlib import AbstractContextManager, suppress
from typing import Any

from .clients.endpoint import Endpoint
from .clients.runtime import Runtime, run
from .kernel.sockets import in_pieces, wait

__all__ = ["Client"]


class _Waiter:
    """Waiter of one thread, used once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held until the thread is woken
        self._lock.acquire()

    async def wait(self, timeout: float | None) -> bool:
        if timeout is None:
            return self._lock.acquire()
        return in_pieces(lambda seconds: self._lock.acquire(timeout=seconds), timeout, threading.TIMEOUT_MAX)

    def wake(self) -> None:
        with suppress(RuntimeError):  # it was woken already
            self._lock.release()


class _Runtime(Runtime):
    """Runtime of threads."""

    SHARES_TURNS = False

    def start(self, work: Coroutine[Any, Any, None]) -> threading.Thread:
        thread = threading.Thread(target=run, args=(work,), daemon=True)
        thread.start()
        return thread

    async def join(self, running: threading.Thread, timeout: float | None = None) -> None:
        if running is not threading.current_thread():
            running.join(timeout)

    def make_waiter(self) -> _Waiter:
        return _Waiter()

    def find_waiting(self) -> object:
        return threading.get_ident()

    def make_lock(self) -> AbstractContextManager[object]:
        return threading.RLock()

    async def wait(self, fd: int, events: int, timeout: float | None) -> bool:
        return wait(fd, events, timeout)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Client(Endpoint):
    """A client of a hub, without gevent. It blocks the calling thread, and any threads may share it.

    ::

        with Client("/tmp/bus", reconnect=True) as client:
            with client.subscribe("room/") as rooms:
                client.publish("room/1/temp", b"21.5")
                message = rooms.receive(timeout=5)      # or: for message in rooms: ...
                print(message.key, message.payload)

    ``timeout`` bounds connecting, sending and questions to the hub; ``reconnect`` looks for the hub again when it goes
    away, and subscribes again; ``hub_user`` is the user that the hub must run as. These and the other parameters are
    those of :class:`sbuslib.Client`, and so are the errors.
    """

    _RUNTIME = _Runtime
