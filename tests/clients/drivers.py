"""One script, three ways to wait: each test of the table runs with the clients for gevent, for threads and for asyncio.

A script is a coroutine that awaits each verb. The clients that block have done it by then, and it never suspends.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import ExitStack, suppress
from typing import Any, Self

import gevent
import pytest
from clients.makers import run as run_in_event_loop
from support import PATIENCE, HubThread, own_key

from sbuslib import Client, aio, blocking
from sbuslib.clients.runtime import run

__all__ = ["Bus", "FakeHub", "script"]


class Done:
    """What a verb that blocks has returned: to be awaited, or used with ``async with``."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self._result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    async def __aenter__(self) -> Any:
        self._result.__enter__()
        return self._result

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._result.__exit__(kind, error, trace)


class Awaited:
    """A client that blocks, or an object of one, so that its verbs are awaited."""

    def __init__(self, core: Any) -> None:
        object.__setattr__(self, "core", core)

    def __getattr__(self, name: str) -> Any:
        value = wrapped(getattr(self.core, name))
        return (lambda *args, **kwargs: Done(wrapped(value(*args, **kwargs)))) if callable(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.core, name, value)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for message in self.core:
            yield message

    def __enter__(self) -> None:
        self.core.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.core.__exit__(kind, error, trace)


def wrapped(value: Any) -> Any:
    """An object with verbs of its own, to be awaited, too."""
    module = type(value).__module__
    return Awaited(value) if module in ("sbuslib.clients.endpoint", "sbuslib.clients.batch") else value


class Bus:
    """Where a script plays: the clients of one kind, all of which are closed at the end."""

    kind: type[Any]

    def __init__(self, address: str) -> None:
        self.address = address
        self._made: list[Any] = []

    async def client(self, **options: Any) -> Any:
        made = self.kind(options.pop("to", self.address), **options)
        self._made.append(made)
        return Awaited(made)

    def play(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            run(work)
        finally:
            for made in self._made:
                made.close()

    def core(self, client: Any) -> Any:
        """The client itself."""
        return client.core

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Something to await: the end of a coroutine that runs beside."""
        raise NotImplementedError

    def carried_out(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What a handler returns that does ``work``."""
        return run(work)


class GeventBus(Bus):
    kind = Client

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any:
        running = gevent.spawn(run, work)
        return Lazy(lambda: running.get(timeout=PATIENCE))


class BlockingBus(Bus):
    kind = blocking.Client

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any:
        results: list[Any] = []

        def carry_out() -> None:
            try:
                results.append(run(work))
            except BaseException as error:
                results.append(error)

        thread = threading.Thread(target=carry_out, daemon=True)
        thread.start()

        def join() -> Any:
            thread.join(PATIENCE)
            (result,) = results
            if isinstance(result, BaseException):
                raise result
            return result

        return Lazy(join)


class AioBus(Bus):
    kind = aio.Client

    async def client(self, **options: Any) -> Any:
        made = self.kind(options.pop("to", self.address), **options)
        self._made.append(made)
        return await made

    def play(self, work: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            try:
                await work
            finally:
                for made in self._made:
                    made.close()

        run_in_event_loop(whole())

    def core(self, client: Any) -> Any:
        return client

    def carried_out(self, work: Coroutine[Any, Any, Any]) -> Any:
        return work

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.ensure_future(work)


class Lazy:
    """Something whose end is waited for where it is awaited."""

    def __init__(self, join: Callable[[], Any]) -> None:
        self._join = join

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self._join()


def script(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that plays a script, ``async def test_...(bus, server, ...)``, with each kind of client.

    ``server`` is a hub in another thread; a script that has no such parameter starts hubs itself. Others are fixtures.
    """
    names = [*inspect.signature(work).parameters]
    fixtures = [name for name in names if name not in ("bus", "server")]

    def test(kind: type[Bus], address: str, **given: Any) -> None:
        bus = kind(address)
        with ExitStack() as stack:
            if "server" in names:
                given["server"] = stack.enter_context(HubThread(address))
            bus.play(work(bus, **given))

    parameters = ["kind", "address", *fixtures]
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    test.__signature__ = inspect.Signature([inspect.Parameter(name, kinds) for name in parameters])  # type: ignore[attr-defined]
    test.__name__, test.__doc__ = work.__name__, work.__doc__
    mark = pytest.mark.parametrize("kind", [GeventBus, BlockingBus, AioBus], ids=["gevent", "blocking", "aio"])
    marked: Callable[..., None] = mark(test)
    return marked


class FakeHub:
    """A hub without features, in a thread, that greets one client and says what it is told to.

    :param reads: whether it reads what comes after that.
    """

    def __init__(self, address: str, *, reads: bool = True) -> None:
        self._reads = reads
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen()
        self._peers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            peer, _ = self._listener.accept()
            self._peers.append(peer)
            while packet := peer.recv(1_000_000):
                if packet.startswith(b"CMSG !/cred/whoami"):
                    peer.send(b"CMSG !/cred/whoami\0" + own_key())
                    if not self._reads:
                        return

    def say(self, packet: bytes) -> None:
        self._peers[0].send(packet)

    def hear(self, flags: int) -> bytes:
        return self._peers[0].recv(500_000, flags)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (*self._peers, self._listener):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._thread.join(PATIENCE)
