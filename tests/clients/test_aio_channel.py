"""The connection of the asyncio client: tasks that wait for it, cancellation, hubs that go away, reconnection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from clients.makers import StartsHub, run
from support import PATIENCE, HubThread, own_key

from sbuslib import aio, blocking
from sbuslib.errors import (
    DisconnectedError,
)
from sbuslib.limits import ClientLimits

SWIFT = ClientLimits(reconnect_pause=0.005, reconnect_pause_most=0.01)


WAITING: dict[str, Callable[[aio.Client], Awaitable[object]]] = {
    "receive": lambda client: client.receive(),
    "receive_many": lambda client: client.receive_many(),
    "iteration": lambda client: anext(aiter(client)),
}


ASKING: dict[str, Callable[[aio.Client], Awaitable[object]]] = {
    "whoami": lambda client: client.hub.whoami(),
    "sync": lambda client: client.sync(),
    "subscribe": lambda client: client.subscribe(b"other"),
    "statistics": lambda client: client.hub.statistics(),
}


@pytest.mark.parametrize("verb", [*WAITING, *ASKING])
def test_a_cancelled_task_leaves_the_client_usable(server: HubThread, address: str, verb: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            await client.subscribe(b"a")
            for steps in range(6):
                asked = (WAITING | ASKING)[verb](client)
                task = asyncio.create_task(asked) if asyncio.iscoroutine(asked) else asyncio.ensure_future(asked)
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                await client.publish(b"a", b"%d" % steps)
                assert (await client.receive(timeout=PATIENCE)).payload == b"%d" % steps
                assert await client.hub.whoami() == own_key()

    run(test())


def test_the_lead_passes_on_when_its_holder_is_cancelled(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            await client.subscribe(b"a")
            leader = asyncio.create_task(client.receive())
            await asyncio.sleep(0)
            others = [asyncio.create_task(client.receive(timeout=PATIENCE)) for _ in range(3)]
            await asyncio.sleep(0)
            leader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leader
            await client.publish_many([(b"a", b"%d" % number) for number in range(3)])
            assert sorted([(await other).payload for other in others]) == [b"0", b"1", b"2"]

    run(test())


def test_a_publisher_that_is_cancelled_while_it_waits_for_room(address: str) -> None:
    async def test() -> None:
        with listening(address) as listener:
            connecting = asyncio.ensure_future(opened(address))
            peer = await greet(listener)
            client = await connecting
            with peer:
                messages = [(b"k", bytes(10_000))] * 10_000
                task = asyncio.create_task(client.publish_many(messages))
                other = asyncio.create_task(client.publish(b"k", bytes(10_000)))
                await asyncio.sleep(0.01)
                assert not task.done()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                while not other.done():  # the other one still gets through
                    with contextlib.suppress(BlockingIOError):
                        peer.recv(500_000)
                    await asyncio.sleep(0)
                await other
                client.close()

    run(test())


def test_a_timeout_of_the_caller_reaches_the_caller(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.01):
                    await client.receive(timeout=PATIENCE)
            assert str(caught.value) == ""
            assert await client.hub.whoami() == own_key()

    run(test())


@pytest.mark.parametrize("loop_is", ["idle", "closed", "closed under a task that waits"])
def test_close_where_no_event_loop_runs(server: HubThread, address: str, loop_is: str) -> None:
    async def open_one() -> aio.Client:
        client = await aio.Client(address)
        await client.subscribe(b"k")
        return client

    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    client = loop.run_until_complete(open_one())
    waiting = None
    if loop_is == "closed under a task that waits":
        waiting = loop.create_task(client.receive())
        loop.run_until_complete(asyncio.sleep(0))
        loop.set_exception_handler(lambda loop, context: None)
    if loop_is != "idle":
        loop.close()
    client.close()
    client.close()
    assert not client.connected
    if waiting is not None:
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    if loop_is == "idle":
        with pytest.raises(DisconnectedError):
            loop.run_until_complete(client.receive())
        loop.close()
    with blocking.Client(address) as asking:
        while asking.hub.statistics().clients > 1:
            pass  # the hub sees the end in its own time


def test_tasks_that_use_a_client_before_its_first_hub_wait_with_it(address: str) -> None:
    async def test() -> None:
        client = aio.Client(address, reconnect=True, limits=SWIFT)

        async def connect() -> None:
            await client

        with StartsHub(address):
            connecting = asyncio.create_task(connect())
            await asyncio.sleep(0)  # it has begun
            assert await client.hub.whoami() == own_key()
            await connecting
            assert client.epoch == 1
            client.close()

    run(test())


def test_a_client_that_waits_for_its_first_hub_can_be_closed(address: str) -> None:
    async def test() -> None:
        client = aio.Client(address, reconnect=True, limits=SWIFT, timeout=None)

        async def connect() -> None:
            await client

        connecting = asyncio.create_task(connect())
        await asyncio.sleep(0)
        client.close()
        with pytest.raises(DisconnectedError, match="the client is closed"):
            await connecting

    run(test())


def test_a_callback_is_not_cancelled_when_the_verb_that_calls_it_times_out(address: str) -> None:
    async def test() -> None:
        ended: list[str] = []

        async def on_reconnect(client: aio.Client) -> None:
            try:
                with contextlib.suppress(TimeoutError):
                    await client.receive(timeout=0.1)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            ended.append("by itself")

        with HubThread(address):
            client = await aio.Client(address, reconnect=True, limits=SWIFT, on_reconnect=on_reconnect)
        with HubThread(address):
            while not ended:
                with contextlib.suppress(TimeoutError):
                    await client.receive(timeout=0.05)
        assert ended == ["by itself"]
        client.close()

    run(test())


@contextlib.contextmanager
def listening(address: str, backlog: int = 16) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
        yield listener


async def opened(address: str, **options: Any) -> aio.Client:
    return await aio.Client(address, **options)


async def greet(listener: socket.socket) -> socket.socket:
    """Accept a client and answer its whoami, as the C daemon would."""
    peer, _ = await asyncio.get_running_loop().sock_accept(listener)
    peer.setblocking(False)
    while not (await asyncio.get_running_loop().sock_recv(peer, 1_000)).startswith(b"CMSG !/cred/whoami"):
        pass
    peer.send(b"CMSG !/cred/whoami\0" + own_key())
    return peer
