"""``Bridge``: the bridge for programs that use gevent or threads. It runs :class:`.bridge.AioBridge` in a thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from gevent.threadpool import ThreadPool

from ..clients.endpoint import Endpoint
from ..errors import StateError, UsageError
from ..hub import Hub
from .bridge import AioBridge, BridgeStatistics

__all__ = ["Bridge"]

T = TypeVar("T")


class Bridge:
    """Joins a bus to a broker, for as long as it is started.

    ::

        with Hub("/tmp/bus") as hub, Bridge(hub, "nats://127.0.0.1", export=[b"room/"], import_=[b"alarm/"]): ...

    **Threads:** one, with an event loop of asyncio and a client of its own, which connects to the hub's address. No
    greenlet of the hub ever waits for the broker; the methods wait as greenlets do.

    :param bus: a hub of this process that is started, a client, or an address.

    The other parameters and the errors are those of :class:`~.bridge.AioBridge`.
    """

    def __init__(self, bus: Hub | Endpoint | str | os.PathLike[str] | None, url: str, **options: Any) -> None:
        address = bus.address if isinstance(bus, (Hub, Endpoint)) else bus
        if address is None and isinstance(bus, Hub):
            raise UsageError("start the hub of the bridge first")
        # Called in the thread, whose event loop it belongs to.
        self._make: Callable[[], AioBridge] = lambda: AioBridge(address, url, **options)
        self._bridge: AioBridge | None = None  # once it has joined the bus
        self._loop: asyncio.AbstractEventLoop | None = None  # of the thread
        self._begun = threading.Event()  # set when the bridge has joined the bus, or failed
        self._pool = ThreadPool(2)  # one thread for the bridge, one to wait for it
        self._running: Any = None  # the result of the bridge's thread

    def __enter__(self) -> Bridge:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def started(self) -> bool:
        """Whether messages cross, or are kept until they can."""
        return self._running is not None and not self._running.ready()

    def start(self) -> None:
        """Join the bus, and go on: a missing broker is waited for. Raises as entering an ``AioBridge``."""
        if self._running is not None:
            raise StateError("a bridge is started once")
        self._running = self._pool.spawn(asyncio.run, self._run())
        self._pool.spawn(self._begun.wait).get()
        if self._bridge is None:
            self._running.get()

    async def _run(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
            async with self._make() as bridge:
                self._bridge = bridge
                self._begun.set()
                await bridge.run()
        finally:
            self._begun.set()

    def wait_ready(self) -> None:
        """Wait until the broker is connected and wants are known on both sides. Raises what ended the bridge."""
        self._do(self._get().ready())

    def stop(self, timeout: float = 5.0) -> None:
        """End the bridge. What the bus has sent is sent on, for at most ``timeout`` seconds; the rest is lost."""
        if self.started and self._bridge is not None:
            self._do(self._bridge.close(timeout))
        if self._running is not None:
            self._running.wait()
        self._pool.kill()

    close = stop

    def check(self) -> None:
        """Raise what ended the bridge: :exc:`~sbuslib.errors.DisconnectedError` when the bus has gone."""
        if self._running is not None and self._running.ready():
            self._running.get()

    def statistics(self) -> BridgeStatistics:
        """Counts since the bridge was made. Frozen, and true for this instant only."""
        return self._get().statistics()

    def _get(self) -> AioBridge:
        if self._bridge is None:
            raise StateError("the bridge is not started")
        return self._bridge

    def _do(self, work: Any) -> None:
        """Do something in the bridge's thread, and wait for it as a greenlet does."""
        assert self._loop is not None
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._pool.spawn(done.result).get()
