"""``Bridge``: the bridge for programs that use gevent or threads. It runs :class:`.bridge.AioBridge` in a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import gevent
from gevent.threadpool import ThreadPool

from ..clients.endpoint import Endpoint
from ..errors import StateError, UsageError
from ..federation.membership import BridgeStatistics
from ..hub import Hub
from ..limits import check_seconds
from .bridge import AioBridge

_LOOK_SECONDS: Final = 0.005
"""Polling interval while a greenlet waits for the thread."""


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
        self._loop: asyncio.AbstractEventLoop | None = None  # of the thread, from then on
        self._pool = ThreadPool(1)  # the thread
        self._running: Any = None  # its result

    def __enter__(self) -> Bridge:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        self._wait(lambda: self._bridge is not None)

    async def _run(self) -> None:
        async with self._make() as bridge:
            self._loop, self._bridge = asyncio.get_running_loop(), bridge
            await bridge.run()

    def _wait(self, condition: Callable[[], object]) -> None:
        """Let other greenlets run until this holds. Raises the error that ended the bridge."""
        while not condition():
            self.check()
            gevent.sleep(_LOOK_SECONDS)

    def wait_ready(self) -> None:
        """Wait until the broker is connected and all subscriptions are in force.

        Raises the error that ended the bridge.
        """
        bridge = self._get()
        self._wait(lambda: bridge.is_ready)
        self.check()

    def stop(self, timeout: float = 5.0) -> None:
        """End the bridge.

        Messages that the bus has sent are exported, for at most ``timeout`` seconds; the rest is lost.
        """
        timeout = check_seconds(timeout, "timeout")
        loop, bridge = self._loop, self._bridge
        if loop is not None and bridge is not None:
            with suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(lambda: loop.create_task(bridge.close(timeout)))
        if self._running is not None:
            self._running.wait()
        self._pool.kill()

    close = stop

    def check(self) -> None:
        """Raise the error that ended the bridge: :exc:`~sbuslib.errors.DisconnectedError` if the bus has gone."""
        if self._running is not None and self._running.ready():
            self._running.get()

    def statistics(self) -> BridgeStatistics:
        """Counts since the bridge was made. Frozen, and true for this instant only."""
        return self._get().statistics()

    def _get(self) -> AioBridge:
        if self._bridge is None:
            raise StateError("the bridge is not started")
        return self._bridge
