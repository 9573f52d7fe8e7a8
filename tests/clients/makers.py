"""Helpers for tests of clients: fixtures that make them, fake hubs that greet them, event loops that run them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeAlias

import gevent
from support import PATIENCE, FakeHub, HubThread, Peer

from sbuslib import Client, blocking
from sbuslib.clients.endpoint import Endpoint

Make: TypeAlias = Callable[..., Endpoint]
"""The fixture ``make``: a client of the kind that is tested."""

MakeClient: TypeAlias = Callable[..., Client]
"""The fixture ``client``."""


class StartsHub(logging.Handler):
    """Starts a hub as soon as a client logs that it waits for one, so that nobody has to guess when it does."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.server = HubThread(address)
        self.logged: list[str] = []
        self._logger = logging.getLogger("sbuslib.clients")

    def emit(self, record: logging.LogRecord) -> None:
        self.logged.append(record.getMessage())
        if "waiting for a hub" in self.logged[-1] and len(self.logged) == 2:  # not at the first attempt
            self.server.__enter__()

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(logging.NOTSET)
        self.server.stop()


class Starved:
    """A socket whose first ``failures`` sends of packets that start with ``about`` fail for want of memory."""

    def __init__(self, sock: Any, about: bytes, failures: float) -> None:
        self._socket, self._about, self._failures = sock, about, failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send(self, packet: bytes, flags: int = 0) -> int:
        if bytes(packet).startswith(self._about) and self._failures > 0:
            self._failures -= 1
            raise OSError(errno.ENOBUFS, "no memory")
        sent: int = self._socket.send(packet, flags)
        return sent


def spawn(client: Endpoint, function: Callable[[], object]) -> Any:
    """Run a function beside the caller, in what a client of this kind waits in."""
    if not isinstance(client, blocking.Client):
        return gevent.spawn(function)
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def greeted(fake: FakeHub, client: MakeClient, features: bytes = b"", **options: Any) -> tuple[Client, Peer]:
    """A client of a fake hub, and the hub's end of the connection."""
    greeting = gevent.spawn(fake.greet, features)
    connected = client(**options)
    return connected, greeting.get()


def fill(client: Client) -> None:
    """Send until the other end, which does not read, takes no more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            client.publish(b"a", bytes(10_000), flags=socket.MSG_DONTWAIT)


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in an event loop of its own. No task or watcher may be left in it."""

    async def whole() -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        async with asyncio.timeout(2 * PATIENCE):
            await test
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others
        assert not failures

    asyncio.run(whole())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)
