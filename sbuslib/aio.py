"""The client for asyncio: the verbs of the other clients, awaited."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from functools import update_wrapper
from threading import get_ident
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from .clients.face import ClientFace
from .clients.fd_publishers import AioDescriptorExchange, AioFileExchange, AioFrameExchange
from .clients.hub_view import AioHubView
from .clients.leadership import time_left
from .clients.operations import Operations
from .clients.runtime import Runtime
from .errors import StateError
from .kernel.vectors import ONE_PACKET_FLAGS
from .limits import PACKET_BYTES
from .wire.packets import Key, Message

__all__ = ["Client"]

P = ParamSpec("P")
R = TypeVar("R")


async def _wait_for(future: asyncio.Future[bool], timeout: float | None) -> bool:
    """Wait until a future is set; ``False`` after ``timeout`` seconds."""
    if timeout is None:
        return await future
    if timeout <= 0:
        await asyncio.sleep(0)  # a task that asks again and again does not keep others from running
        return False
    timer = asyncio.get_running_loop().call_later(timeout, _set, future, False)
    try:
        return await future
    finally:
        timer.cancel()


def _set(future: asyncio.Future[bool] | None, result: bool) -> None:
    if future is not None and not future.done():  # the task may be cancelled, and not know yet
        future.set_result(result)


class _Waiter:
    """Waiter of one task, used once."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken: asyncio.Future[bool] = asyncio.Future()  # of the running loop; to ask for it takes longer

    async def wait(self, timeout: float | None) -> bool:
        return await _wait_for(self._woken, timeout)

    def wake(self) -> None:
        _set(self._woken, True)


class _Runtime(Runtime):
    """Runtime of tasks."""

    OWNER = "the event loop that connected it"
    AWAITS = True
    WORKERS = 16
    is_begun = False

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of all tasks that may use the client."""
        self._reader: asyncio.Future[bool] | None = None  # of the task that leads
        self._receive: Callable[[], bool | None] = lambda: True  # receives for it
        self._came: bool | Exception | None = None  # its result
        self._watched = -1  # the descriptor that the event loop watches for reading

    def begin(self) -> None:
        """Begin to use the client, by tasks of the running event loop."""
        self.loop, self.is_begun = asyncio.get_running_loop(), True

    def find_caller(self) -> asyncio.AbstractEventLoop | None:
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            return None

    def make_waiter(self) -> _Waiter:
        return _Waiter()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)

    async def join(self, running: asyncio.Task[None], timeout: float | None = None) -> None:
        if running is not asyncio.current_task():
            await asyncio.wait([running], timeout=timeout)  # either may be cancelled without the other

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def in_time(self, function: Callable[[Any], Any], argument: Any, until: float | None) -> Any:
        result = function(argument)
        if not isinstance(result, Awaitable):
            return result
        try:
            async with asyncio.timeout(time_left(until)) as scope:
                return await result
        except TimeoutError:
            if scope.expired():
                raise TimeoutError("ended, as its caller has given up") from None
            raise

    async def wait(self, fd: int, events: int, timeout: float | None) -> bool:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[bool] = loop.create_future()
        reads = events == select.POLLIN
        (loop.add_reader if reads else loop.add_writer)(fd, _set, ready, True)
        try:
            return await _wait_for(ready, timeout)
        finally:
            (loop.remove_reader if reads else loop.remove_writer)(fd)

    async def read(self, fd: int, receive: Callable[[], bool | None], deadline: float | None) -> bool | None:
        loop = asyncio.get_running_loop()
        self._reader, self._receive, self._came = loop.create_future(), receive, None
        # The event loop keeps watching: to start and stop it for each wait would cost more than to receive.
        if self._watched < 0:
            loop.add_reader(fd, self._on_readable)
            self._watched = fd

        try:
            if not await _wait_for(self._reader, time_left(deadline)):
                return None
        finally:
            self._reader = None
        if isinstance(self._came, Exception):
            raise self._came
        return bool(self._came)

    def _on_readable(self) -> None:
        """Receive for the task that has the lead: until it runs, the event loop would call this again and again."""
        reader = self._reader
        if reader is None:
            assert self.loop is not None
            self.loop.remove_reader(self._watched)
            self._watched = -1
        elif not reader.done():
            try:
                self._came = self._receive()
            except Exception as error:
                self._came = error
            if self._came is not None:
                reader.set_result(True)

    def let_go(self, fd: int) -> None:
        if self.loop is not None and not self.loop.is_closed():
            self.loop.remove_reader(fd)
        self._watched = -1

    def interrupt(self) -> None:
        self._came = True
        if self.loop is not None and not self.loop.is_closed():
            _set(self._reader, True)


def awaited(verb: Callable[Concatenate[Operations, P], R]) -> Callable[Concatenate[Client, P], R]:
    """Make a verb of the client: it is that of its core."""

    def hand_on(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return verb(self._core, *args, **kwargs)

    update_wrapper(hand_on, verb)
    return hand_on


class _Closed:
    """Awaitable of a client that was closed: it is done at once."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


class Client(ClientFace):
    """A client of a hub for asyncio. Any number of tasks may share it, all of the event loop that connected it.

    ::

        async with Client("/tmp/bus") as client:      # or: client = await Client("/tmp/bus")
            async with client.subscribe("room/") as rooms:
                async for message in rooms: ...

    ``timeout`` bounds connecting, sending and questions to the hub; ``reconnect`` looks for the hub again when it goes
    away, and subscribes again; ``hub_user`` is the user that the hub must run as. These and the other parameters are
    those of :class:`sbuslib.Client`, and so are the errors. ``on_reconnect`` and ``on_disconnect`` are called, and
    awaited when they return an awaitable; functions that handle messages, requests and jobs may be coroutine functions.
    A task that is cancelled in any of the methods leaves the client usable.
    """

    _RUNTIME = _Runtime
    _thread = 0  # of the event loop

    def __await__(self) -> Generator[object, None, Self]:
        return self._enter().__await__()

    async def _enter(self) -> Self:
        runtime, connection = self._runtime, self._connection
        connection.check_owner()
        if runtime.is_begun or connection.is_closed:
            raise StateError("a client connects once")
        runtime.begin()
        self._thread = get_ident()
        await connection.open()
        return self

    async def __aenter__(self) -> Self:
        return await self._enter()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages as they come, until the client is closed. Leaving the loop loses none.

        Raises :exc:`~sbuslib.errors.DisconnectedError` when the hub closes the connection.
        """
        while True:
            is_quick = self._inbox and get_ident() == self._thread
            message = self._inbox.popleft() if is_quick else await self._core.next()
            if message is None:
                return
            yield message

    @property
    def _runtime(self) -> _Runtime:
        runtime = self._connection.runtime
        assert isinstance(runtime, _Runtime)
        return runtime

    def close(self) -> Awaitable[None]:
        """Close the connection. Messages published before are still delivered. It may be awaited, and need not.

        May be called from a task of the client's event loop, and by any caller when that loop does not run, as after
        :func:`asyncio.run`; else raises :exc:`~sbuslib.errors.StateError`. In the child of a fork, the parent's
        connection stays open.
        """
        loop = self._runtime.loop
        if loop is not None and not loop.is_running():
            self._connection.disown()
        if loop is not None and loop.is_closed():
            self._connection.leadership.abandon()  # no task is left to give it back
        self._connection.close()
        return _Closed()

    # -- its verbs ----------------------------------------------------------------------------------

    async def publish(self, key: Key, payload: bytes = b"", *, flags: int = 0) -> None:
        sock = self._connection.socket
        if type(payload) is bytes and not flags and get_ident() == self._thread:
            # Mostly there is room, and nothing to wait for. Here only the thread is checked: to ask for the event loop
            # takes six times as long, and is done where a task waits.
            try:
                packet = self._headers[key] + payload
                if len(packet) <= PACKET_BYTES:
                    sock.send(packet, ONE_PACKET_FLAGS)
                    return
            except (KeyError, TypeError, OSError):
                pass
        await self._core.publish(key, payload, flags=flags)

    publish.__doc__ = Operations.publish.__doc__

    async def receive(self, *, timeout: float | None = None, flags: int = 0) -> Message:
        if not flags and get_ident() == self._thread:
            try:
                return self._inbox.popleft()
            except IndexError:
                pass
        return await self._core.receive(timeout=timeout, flags=flags)

    receive.__doc__ = Operations.receive.__doc__

    publish_many = awaited(Operations.publish_many)
    subscribe = awaited(Operations.subscribe)
    receive_many = awaited(Operations.receive_many)
    request = awaited(Operations.request)
    request_many = awaited(Operations.request_many)
    serve = awaited(Operations.serve)
    presence = awaited(Operations.presence)
    present = awaited(Operations.present)
    last = awaited(Operations.last)
    queue = awaited(Operations.queue)
    sync = awaited(Operations.sync)
    drain = awaited(Operations.drain)

    @property
    def frames(self) -> AioFrameExchange:
        """Publishes buffers of any size, and subscribes to them."""
        return AioFrameExchange(self._core)

    @property
    def descriptors(self) -> AioDescriptorExchange:
        """Publishes open files, pipes and sockets, and subscribes to them."""
        return AioDescriptorExchange(self._core)

    @property
    def files(self) -> AioFileExchange:
        """Sends files of any size, and receives them."""
        return AioFileExchange(self._core)

    @property
    def hub(self) -> AioHubView:
        """The hub: its features, and questions to it."""
        return AioHubView(self._core)
