"""The asyncio client: tasks and event loops that share it, cancellation, hubs that go away."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest
from clients.drivers import FakeHub
from clients.makers import StartsHub, run
from support import PATIENCE, HubThread, own_key, python

from sbuslib import Client, Request, aio, blocking
from sbuslib.clients.basic_operations import MOST_POSTED
from sbuslib.errors import DisconnectedError, StateError
from sbuslib.limits import ClientLimits

SWIFT = ClientLimits(reconnect_pause=0.005, reconnect_pause_most=0.01)


def test_the_asyncio_client_never_imports_gevent(address: str) -> None:
    code = """
import asyncio, sys
from sbuslib import aio
from sbuslib.errors import StateError
async def main():
    async with aio.Client(sys.argv[1]) as client:
        await client.subscribe(b"a")
        await client.publish(b"a", b"x")
        print((await client.receive(timeout=10)).payload, "gevent" in sys.modules)
asyncio.run(main())
"""
    with HubThread(address):
        assert python("-c", code, address) == "b'x' False\n"


def test_a_client_that_was_never_entered_says_so(address: str) -> None:
    async def test() -> None:
        client = aio.Client(address)
        for verb in (
            client.receive,
            client.hub.whoami,
            client.sync,
            client.hub.statistics,
            lambda: client.request("a"),
        ):
            with pytest.raises(StateError, match="not connected yet: use 'async with' the client, or await it"):
                await verb()
        for about in (client.publish, client.request, client.hub.is_wanted, client.queue("q").submit):
            with pytest.raises(StateError, match="not connected yet"):
                await about(b"a")
        await client.close()

    run(test())


def test_a_gevent_client_in_an_event_loop_says_which_to_take(server: HubThread, address: str) -> None:
    async def test() -> None:
        with pytest.raises(StateError, match=r"take sbuslib\.aio\.Client"):
            Client(address)

    run(test())


def test_a_coroutine_that_is_neither_awaited_nor_entered_is_warned_of(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            with pytest.warns(RuntimeWarning, match="was never awaited"):
                client.serve(b"svc", lambda question: b"")

    run(test())


VERBS: dict[str, Callable[[aio.Client], Awaitable[object]]] = {
    "receive": lambda client: client.receive(),
    "receive_many": lambda client: client.receive_many(),
    "iteration": lambda client: anext(aiter(client)),
    "whoami": lambda client: client.hub.whoami(),
    "sync": lambda client: client.sync(),
    "subscribe": lambda client: client.subscribe(b"other"),
    "statistics": lambda client: client.hub.statistics(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_cancelled_task_leaves_the_client_to_others(server: HubThread, address: str, verb: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            await client.subscribe(b"a")
            for steps in range(6):
                task = asyncio.ensure_future(VERBS[verb](client))
                other = asyncio.create_task(client.receive(timeout=PATIENCE))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                await client.publish(b"a", b"%d" % steps)
                assert (await other).payload == b"%d" % steps
                assert await client.hub.whoami() == own_key()

    run(test())


def test_a_caller_that_is_cancelled_takes_no_questions_of_others_with_it(
    server: HubThread, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with (
            aio.Client(address) as one,
            aio.Client(address) as other,
            other.serve(b"svc", lambda question: question.payload),
        ):
            await one.request(b"svc")
            send, has_room = one._connection.send, asyncio.Event()

            async def wait_for_room(packets: list[bytes], flags: int = 0) -> None:
                await has_room.wait()
                await send(packets, flags)

            monkeypatch.setattr(one._connection, "send", wait_for_room)
            asked = [b"%d" % number for number in range(MOST_POSTED + 1)]
            asking = [asyncio.create_task(one.request(b"svc", payload, timeout=PATIENCE)) for payload in asked]
            await asyncio.sleep(0)
            asking[-1].cancel()  # the one that sends what others have posted
            has_room.set()
            assert await asyncio.gather(*asking[:-1]) == asked[:-1]

    run(test())


def test_a_publisher_that_is_cancelled_while_it_waits_for_room(address: str) -> None:
    async def test() -> None:
        with FakeHub(address, reads=False) as fake:
            async with aio.Client(address) as client:
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
                        fake.hear(socket.MSG_DONTWAIT)
                    await asyncio.sleep(0)
                await other

    run(test())


@pytest.mark.parametrize("ending", ["stop", "drain"])
def test_a_task_that_nobody_cancelled_ends_a_service_that_was_cancelled(
    server: HubThread, address: str, ending: str
) -> None:
    async def test() -> None:
        client = await aio.Client(address)
        service = await client.serve(b"a", lambda question: b"")
        await asyncio.sleep(0)  # and its tasks have begun
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as asyncio.run does at its end
            task.cancel()
        await (service.stop() if ending == "stop" else client.drain())
        assert client.connected == (ending == "stop")
        await client.close()

    run(test())


def test_a_task_that_is_cancelled_as_it_stops_a_service_leaves_its_work_to_end(server: HubThread, address: str) -> None:
    async def test() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def answer(question: Request) -> bytes:
            begun.set()
            await go_on.wait()
            return b"done"

        async with aio.Client(address) as server_side, aio.Client(address) as client:
            service = await server_side.serve(b"a", answer)
            asking = asyncio.create_task(client.request(b"a", timeout=PATIENCE))
            await begun.wait()
            stopping = asyncio.create_task(service.stop())
            await server_side.sync()
            await server_side.sync()  # and stop() waits for the work by now
            stopping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stopping
            go_on.set()
            assert await asking == b"done"

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
        with StartsHub(address):
            connecting = asyncio.ensure_future(client)
            await asyncio.sleep(0)  # it has begun
            assert await client.hub.whoami() == own_key()
            await connecting
            assert client.epoch == 1
            client.close()

    run(test())


def test_a_client_that_waits_for_its_first_hub_can_be_closed(address: str) -> None:
    async def test() -> None:
        client = aio.Client(address, reconnect=True, limits=SWIFT, timeout=None)
        connecting = asyncio.ensure_future(client)
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
