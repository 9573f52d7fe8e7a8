"""The asyncio client: its verbs, tasks and event loops that share it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from clients.makers import run
from support import PATIENCE, HubThread, own_key, python

from sbuslib import Client, aio
from sbuslib.errors import StateError


def test_sending_waits_for_room_while_the_event_loop_runs(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address, soft="block") as reader, aio.Client(address) as writer:
            await reader.subscribe(b"k")
            messages = [(b"k", bytes(50_000))] * 300
            sending = asyncio.create_task(writer.publish_many(messages))
            got = [len((await reader.receive(timeout=PATIENCE)).payload) for _ in range(300)]
            assert got == [50_000] * 300
            assert await sending == 300
            assert server.call(server.hub.statistics).lost == {}

    run(test())


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


def test_event_loops_in_several_threads(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            assert await client.hub.whoami() == own_key()

    with ThreadPoolExecutor() as threads:
        list(threads.map(run, [test() for _ in range(3)]))


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
