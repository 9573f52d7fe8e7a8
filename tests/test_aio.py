"""The asyncio client: its verbs, tasks and event loops that share it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from clients.makers import run
from support import PATIENCE, HubThread, own_key, python

from sbuslib import aio
from sbuslib.errors import (
    DisconnectedError,
    KeyFormatError,
    PayloadError,
    StateError,
    UsageError,
)
from sbuslib.limits import PACKET_BYTES
from sbuslib.wire.packets import Message


def test_publish_and_receive(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as one, aio.Client(address) as other:
            await one.subscribe(b"a/*", b"b")
            await other.publish(b"a/1", b"x")
            await other.publish(b"c")
            await other.publish(b"b")
            assert await one.receive(PATIENCE) == Message(b"a/1", b"x")
            assert await one.receive(PATIENCE) == Message(b"b", b"")
            with pytest.raises(TimeoutError, match=r"0\.01"):
                await one.receive(0.01)
            await one.unsubscribe(b"b")
            await one.sync()
            await other.publish(b"b", b"no")
            await other.publish(b"a/2", b"yes")
            assert (await one.receive(PATIENCE)).payload == b"yes"

    run(test())


def test_a_client_knows_its_credentials_and_its_hub(server: HubThread, address: str) -> None:
    async def test() -> None:
        client = await aio.Client(address)
        assert client.credentials == await client.whoami() == own_key()
        assert (client.address, client.epoch, client.closed) == (address, 1, False)
        assert client.features is not None
        assert client.features.hub_id == server.hub.hub_id
        assert client.fileno() == client.socket.fileno() >= 0
        assert [await client.sync(), await client.sync("tree")] == ["local", "tree"]
        assert (await client.statistics()).hub_id.encode() == server.hub.hub_id
        with pytest.raises(UsageError):
            await client.sync("moon")
        client.close()
        client.close()
        assert client.closed

    run(test())


def test_wrong_arguments_raise_and_leave_the_client_usable(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            with pytest.raises(KeyFormatError):
                await client.publish(b"a\0b")
            for _ in range(2):  # when the key is new, and when it is known
                with pytest.raises(PayloadError):
                    await client.publish(b"a", bytes(PACKET_BYTES))
                with pytest.raises(PayloadError):
                    await client.publish(b"a", "text")  # type: ignore[arg-type]
                with pytest.raises(KeyFormatError):
                    await client.publish([b"a"])  # type: ignore[arg-type]
                await client.publish(b"a", bytearray(b"x"))  # type: ignore[arg-type]
            with pytest.raises(KeyFormatError):
                await client.subscribe(b"a", b"b\0")
            with pytest.raises(UsageError):
                await client.subscribe()
            with pytest.raises(UsageError):
                await client.flood_control(soft="never")  # type: ignore[arg-type]
            assert server.call(server.hub.statistics).patterns == 0
            assert await client.whoami() == own_key()
        with pytest.raises(StateError):
            await client
        with pytest.raises(DisconnectedError):
            await client.publish(b"a")

    run(test())


def test_echo_senders_and_flood_control(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            await client.subscribe(b"a")
            await client.echo(False)
            await client.flood_control(soft="discard", hard="error", order="stack")
            await client.publish(b"a", b"own")
            await client.senders()
            await client.echo()
            await client.publish(b"a", b"x")
            assert await client.receive(PATIENCE) == Message(b"a", b"x", own_key())
            (told,) = server.call(server.hub.statistics).per_client
            assert (told.soft, told.hard, told.order) == ("discard", "error", "stack")

    run(test())


def test_publish_many_and_receive_many(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            await client.subscribe(b"")
            pairs = [(b"k%d" % (number % 7), b"%d" % number) for number in range(1_000)]
            assert await client.publish_many(iter(pairs)) == 1_000
            got: list[Message] = []
            while len(got) < 1_000:
                some = await client.receive_many(300, PATIENCE)
                assert 0 < len(some) <= 300
                got += some
            assert [(message.key, message.payload) for message in got] == pairs
            assert await client.publish_many([]) == 0

    run(test())


def test_sending_waits_for_room_while_the_event_loop_runs(server: HubThread, address: str) -> None:
    """Sending waits for room, and the event loop runs meanwhile."""

    async def test() -> None:
        async with aio.Client(address) as reader, aio.Client(address) as writer:
            await reader.flood_control(soft="block")
            await reader.subscribe(b"k")
            messages = [(b"k", bytes(50_000))] * 300
            sending = asyncio.create_task(writer.publish_many(messages))
            got = [len((await reader.receive(PATIENCE)).payload) for _ in range(300)]
            assert got == [50_000] * 300
            assert await sending == 300
            assert server.call(server.hub.statistics).lost == {}

    run(test())


def test_iteration_ends_with_close(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            await client.subscribe(b"a")
            await client.publish_many([(b"a", b"1"), (b"a", b"2")])
            got = []
            async for message in client:
                got.append(message.payload)
                if len(got) == 2:
                    client.close()
            assert got == [b"1", b"2"]

    run(test())


def test_several_tasks_share_a_client(server: HubThread, address: str) -> None:
    async def test() -> None:
        got: list[bytes] = []
        async with aio.Client(address) as client:
            await client.subscribe(b"a")

            async def take() -> None:
                got.extend([(await client.receive(PATIENCE)).payload for _ in range(200)])

            async def ask() -> None:
                for _ in range(40):
                    assert await client.whoami() == own_key()
                    assert await client.sync() == "local"

            async def say(who: int) -> None:
                for number in range(200):
                    await client.publish(b"a", b"%d %d" % (who, number))

            async with asyncio.TaskGroup() as group:
                for job in (take(), take(), take(), ask(), ask(), say(0), say(1), say(2)):
                    group.create_task(job)
        assert len(got) == len(set(got)) == 600

    run(test())


def test_the_asyncio_client_never_imports_gevent(address: str) -> None:
    code = """
import asyncio, sys
from sbuslib import aio
async def main():
    async with aio.Client(sys.argv[1]) as client:
        await client.subscribe(b"a")
        await client.publish(b"a", b"x")
        print((await client.receive(10)).payload, "gevent" in sys.modules)
asyncio.run(main())
"""
    with HubThread(address):
        assert python("-c", code, address) == "b'x' False\n"


def test_event_loops_in_several_threads(server: HubThread, address: str) -> None:
    outcome: list[bytes] = []

    async def test() -> None:
        async with aio.Client(address) as client:
            outcome.append(await client.whoami())

    threads = [threading.Thread(target=run, args=(test(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcome == [own_key()] * 3
