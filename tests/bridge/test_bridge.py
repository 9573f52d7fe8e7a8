"""Buses that are joined by real servers of each kind."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from itertools import chain
from typing import Any

import pytest
from support import HubThread

from sbuslib.aio import Client
from sbuslib.bridge import AioBridge, nats, redis
from sbuslib.errors import UsageError
from sbuslib.keys.own_keys import CONTROL, LOST
from sbuslib.wire.packets import Message

from .conftest import KINDS, Buses, Cluster, joined, ready, receive, until

with_origins = pytest.mark.parametrize(
    "cluster", [kind for kind in KINDS if kind not in ("mqtt 3.1.1", "redis")], indirect=True
)


def bridge(address: str, cluster: Cluster, export: Any = (), import_: Any = (), **options: Any) -> AioBridge:
    return AioBridge(address, cluster.url, export=export, import_=import_, options=cluster.options, **options)


def random_keys(chance: random.Random, count: int, start: bytes) -> list[bytes]:
    """Keys of all bytes that a key may have, under ``start``."""
    alphabet = [bytes([byte]) for byte in range(1, 256)]
    found = [start + b"".join(alphabet).replace(b"/", b"/x"), start, start + b"//", start + "né/日".encode()]
    alphabet += [b"/"] * 60 + [b"*", b"%", b".", b"+", b"#", b">"] * 5
    while len(found) < count:
        key = start + b"".join(chance.choices(alphabet, k=chance.randrange(30)))
        if b"!" not in key.split(b"/"):
            found.append(key)
    return found


async def publish(address: str, name: bytes, keys: list[bytes], count: int = 200) -> list[tuple[bytes, bytes]]:
    """Publish random messages. Each says who published it, and is like no other."""
    chance = random.Random(name)
    sent = [(chance.choice(keys), b"%b %d %b" % (name, number, chance.randbytes(40))) for number in range(count)]
    async with Client(address) as client:
        for start in range(0, len(sent), 100):
            await client.publish_many(sent[start : start + 100])
            await asyncio.sleep(0)
    return sent


def by_publisher(messages: list[Message]) -> list[list[tuple[bytes, bytes]]]:
    found: dict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)
    for message in messages:
        found[message.payload.partition(b" ")[0]].append((message.key, message.payload))
    return sorted(found.values())


async def test_random_messages_come_once_each_in_the_order_of_each_publisher(cluster: Cluster, buses: Buses) -> None:
    async with (
        bridge(buses[0], cluster, [b"a/"], [b"b/"]) as one,
        bridge(buses[1], cluster, [b"b/"], [b"a/"]) as two,
        Client(buses[0]) as at_one,
        Client(buses[1]) as at_two,
    ):
        await ready(one, two)
        await at_one.subscribe(b"b/")
        await at_two.subscribe(b"a/")
        keys = [random_keys(random.Random(1), 60, start) for start in (b"a/", b"b/")]
        sent = await asyncio.gather(
            *(publish(buses[where], b"%d%d" % (where, who), keys[where]) for where in (0, 1) for who in (0, 1))
        )
        assert by_publisher(await receive(at_two, 400)) == sorted(sent[:2])
        assert by_publisher(await receive(at_one, 400)) == sorted(sent[2:])
        await until(lambda: one.statistics().exported == two.statistics().exported == 400)
        for statistics in (one.statistics(), two.statistics()):
            assert (statistics.imported, statistics.lost) == (400, {})


@with_origins
async def test_buses_that_export_and_import_everything_get_each_message_once(cluster: Cluster, folder: str) -> None:
    """Three buses, two bridges at each: none of them brings a message back, and none doubles it."""
    addresses = [f"{folder}/{name}" for name in "abc"]
    async with AsyncExitStack() as stack:
        bridges, clients = [], []
        for address in addresses:
            stack.enter_context(HubThread(address))
            bridges += [await stack.enter_async_context(bridge(address, cluster, [b""], [b""])) for _ in range(2)]
            clients.append(await stack.enter_async_context(Client(address)))
            await clients[-1].subscribe(b"k/")
        await ready(*bridges)
        await until(lambda: all(one.statistics().spares == 1 for one in bridges))
        keys = [b"k/%d" % number for number in range(10)]
        sent = await asyncio.gather(
            *(publish(address, b"%d" % number, keys, 60) for number, address in enumerate(addresses))
        )
        for client in clients:
            got = await receive(client, 180)
            assert sorted((message.key, message.payload) for message in got) == sorted(chain(*sent))
        # What would still come, would come before this.
        for number, address in enumerate(addresses):
            await publish(address, b"last%d" % number, [b"k/last"], 1)
        for client in clients:
            assert {message.key for message in await receive(client, 3)} == {b"k/last"}


@pytest.mark.parametrize("cluster", ["mqtt 3.1.1", "redis"], indirect=True)
async def test_a_broker_without_origins_refuses_lists_that_overlap(cluster: Cluster, buses: Buses) -> None:
    with pytest.raises(UsageError, match="overlap"):
        async with bridge(buses[0], cluster, [b"a/"], [b"*/b"]):
            pass


async def test_secrets_and_what_was_not_asked_for_do_not_cross(cluster: Cluster, buses: Buses) -> None:
    lists = [b"", b"a/"], [b"a/t*", b"!a/", b"last"]
    async with joined(buses, cluster.url, *lists, options=cluster.options) as (one, _, here, there):
        await there.subscribe(b"", b"!/cred////x")
        keys = [b"a/x", b"!/cred////x", b"!a/b", b"b", b"a/t1", b"a/t1/2", b"last"]
        await here.publish_many([(key, b"") for key in keys])
        assert [message.key for message in await receive(there, 2)] == [b"a/t1", b"last"]
        assert one.statistics().refused == {"reserved key": 1}


async def test_nobody_at_a_broker_speaks_as_a_bridge_or_another_program_of_this_bus(
    cluster: Cluster, buses: Buses
) -> None:
    """The stranger is a bridge of another bus that exports whatever it likes."""
    forged = [LOST, b"alerts/lost", b"queue/jobs/work", b"journal/stopped", b"kombu/queue/celery"]
    sides = [b"a", *forged], [b"a", b"sbus*/", b"alerts*/", b"queue/", b"journal/", b"kombu*/"]
    async with joined(buses, cluster.url, *sides, options=cluster.options) as (_, two, here, there):
        await there.subscribe(b"")
        await here.publish_many([*((key, b"outage 1000 0") for key in forged), (b"a", b"end")])
        while (message := await there.receive()).key != b"a":
            is_status = message.key.startswith(b"sbus-bridge/")  # which an MQTT broker keeps of each bridge
            assert message.key == CONTROL or is_status, "only the heartbeats of this bus"
        await until(lambda: two.statistics().refused == {"key of our programs": len(forged)})
        assert await there.receive_many(timeout=0) == []


async def test_only_claims_that_are_trusted_come_in(cluster: Cluster, buses: Buses) -> None:
    async def imported(trust: list[bytes]) -> bool:
        async with joined(buses, cluster.url, options=cluster.options, trust=trust) as (_, two, here, _):
            await here.publish(b"a", b"1")
            await until(lambda: two.statistics().imported or two.statistics().refused)
            assert two.statistics().imported or two.statistics().refused == {"untrusted": 1}
            return bool(two.statistics().imported)

    me = f"{socket.gethostname()}/{os.getuid()}/{os.getpid()}".encode()
    assert await imported([b"elsewhere/", me]) == cluster.has_origins
    assert not await imported([b"elsewhere/", b"*/%d/" % (os.getuid() + 1)])


async def test_what_an_absent_broker_does_not_get_is_kept_up_to_a_bound(cluster: Cluster, buses: Buses) -> None:
    cluster.server.kill()
    async with (
        bridge(buses[0], cluster, [b"a"], keep_bytes=36_600) as one,
        bridge(buses[1], cluster, (), [b"a"]) as two,
        Client(buses[0]) as here,
    ):
        await here.publish_many([(b"a", b"%09d" % number) for number in range(150)])
        await until(lambda: one.statistics().kept + sum(one.statistics().lost.values()) == 150)
        kept = one.statistics().kept
        assert 90 < kept < 120  # small messages count with what they take in memory
        assert one.statistics().lost == {"outage": 150 - kept}
        assert one._sending.kept_bytes <= 36_600
        cluster.server.start()
        await ready(two, one)
        await until(lambda: one.statistics().kept == 0)
        assert one.statistics().exported == kept


async def test_a_bridge_that_is_closed_says_what_it_lost(
    cluster: Cluster, buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.server.kill()
    async with Client(buses[0]) as watching:
        await watching.subscribe(b"sbus/bridge/lost")
        async with bridge(buses[0], cluster, [b"a"]) as one, Client(buses[0]) as here:
            await here.publish_many([(b"a", b"")] * 10)
            await here.sync()
        assert one.statistics().lost == {"outage": 10}
        assert "lost 10 (outage)" in caplog.text
        cause, count, since = (await watching.receive()).payload.split()
        assert (cause, count) == (b"outage", b"10")
        assert time.time() - 1_000 < float(since) < time.time()


async def test_a_bridge_closes_in_time_while_its_server_stands_still(
    cluster: Cluster, buses: Buses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has written is more than fits into the socket."""
    monkeypatch.setattr(nats, "_CONFIRM_SECONDS", 0.05)

    async with bridge(buses[0], cluster, [b"a"], [b"b"]) as one, Client(buses[0]) as here:
        await ready(one)
        cluster.server.pause()
        await here.publish_many([(b"a", b"first")] + [(b"a", bytes(190_000))] * 199)
        await until(lambda: one.statistics().kept + sum(one.statistics().lost.values()) == 200)
        await one.close(0.1)
        assert sum(one.statistics().lost.values()) == 200


async def test_a_spare_takes_over_without_loss_from_a_bridge_that_is_closed(cluster: Cluster, buses: Buses) -> None:
    async with (
        bridge(buses[0], cluster, [b"a"]) as older,
        joined(buses, cluster.url, options=cluster.options) as (spare, _, here, there),
    ):
        await older.ready()
        await until(lambda: older.statistics().spares == spare.statistics().spares == 1)
        published = 0

        async def load() -> None:
            nonlocal published
            while True:
                await here.publish_many([(b"a", b"%d" % (published + more)) for more in range(20)])
                published += 20
                await asyncio.sleep(0.001)

        loading = asyncio.create_task(load())
        await until(lambda: older.statistics().exported > 100)
        await older.close()
        await until(lambda: spare.statistics().exported > 100)
        loading.cancel()
        await asyncio.wait([loading])
        missing = {b"%d" % number for number in range(published)}
        while missing:
            missing -= {message.payload for message in await receive(there, 1)}


async def test_each_failure_is_logged_once_for_each_outage(
    buses: Buses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "_CONNECT_SECONDS", 3_600.0)  # an attempt that is given up would cost an answer
    answers = [b"-ERR 'one'\r\n", b"-ERR 'two'\r\n"] * 3 + [b"PONG\r\n"] + [b"-ERR 'one'\r\n"] * 3
    left = iter(answers)
    done, over = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1000}\r\n')
        await reader.readuntil(b"PING\r\n")
        answer = next(left, b"")
        writer.write(answer)
        if not answer:
            over.set()
        if answer.startswith(b"PONG"):
            for _ in range(2):
                await reader.readuntil(b"PING\r\n")
                writer.write(answer)
            await done.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with AioBridge(buses[0], url, export=[b"a"]) as one:
            await ready(one)
            await until(lambda: not one._broker._warned)
            done.set()
            await until(over.is_set)
    assert re.findall("'(one|two)'", caplog.text) == ["one", "two", "one"]


async def test_a_publisher_s_order_holds_over_several_patterns(cluster: Cluster, buses: Buses) -> None:
    lists = [b"a/"], [b"a/1/", b"a/2", b"a/3/*/x"]
    async with joined(buses, cluster.url, *lists, options=cluster.options) as (_, _, _, there):
        sent = await publish(buses[0], b"me", [b"a/1/x", b"a/1/y/z", b"a/2", b"a/3/t/x"])
        assert [(message.key, message.payload) for message in await receive(there, len(sent))] == sent


@pytest.mark.parametrize("cluster", [kind for kind in KINDS if "stream" in kind], indirect=True)
async def test_what_comes_stays_in_order_when_bridges_end_under_load(
    cluster: Cluster, buses: Buses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "_ASK_SECONDS", 0.002)  # a server is often slower than that, as a busy one is
    async with (
        bridge(buses[0], cluster, [b"a/"]) as one,
        Client(buses[0]) as here,
        Client(buses[1]) as there,
    ):
        await ready(one)
        await there.subscribe(b"a/")
        sent: list[bytes] = []
        got: list[bytes] = []
        for part in range(3):
            async with bridge(buses[1], cluster, (), [b"a/"]) as two:
                await ready(two)
                new = [b"%d %d" % (part, number) for number in range(600)]
                await here.publish_many([(b"a/%d" % (number % 7), text) for number, text in enumerate(new)])
                sent += new
                got += [message.payload for message in await receive(there, 50)]
            # It ends while the stream still sends.
        async with bridge(buses[1], cluster, (), [b"a/"]):
            got += [message.payload for message in await receive(there, len(sent) - len(got))]
        assert got == sent


@with_origins
async def test_from_a_broker_that_is_killed_under_load_nothing_comes_twice_or_out_of_order(
    cluster: Cluster, buses: Buses, monkeypatch: pytest.MonkeyPatch
) -> None:
    for broker in (nats, redis):
        monkeypatch.setattr(broker, "_AGAIN_SECONDS", 1.0)
    monkeypatch.setattr(nats, "_CONFIRM_SECONDS", 2.0)  # a stream that is just starting may never answer
    async with joined(buses, cluster.url, [b"a/"], options=cluster.options) as (one, two, here, there):
        published, stop = 0, False

        async def load() -> None:
            nonlocal published
            while not stop:
                await here.publish_many([(b"a/%d" % key, b"%d" % published) for key in range(10)])
                published += 10
                await asyncio.sleep(0.0005)

        loading = asyncio.create_task(load())
        await until(lambda: two.statistics().imported > 200)
        cluster.server.kill()
        await until(lambda: not one.statistics().connected)
        cluster.server.start()
        await until(lambda: one.statistics().connected and two.statistics().connected)
        before = two.statistics().imported
        await until(lambda: two.statistics().imported > before + 200)
        stop = True
        await loading
        await until(lambda: one.statistics().kept == 0)
        await here.publish(b"a/end")
        got: list[Message] = []
        while not got or got[-1].key != b"a/end":
            got += await receive(there, 1)
        got.pop()
        assert len(got) + 1 <= two.statistics().imported
        numbers: dict[bytes, list[int]] = defaultdict(list)
        for message in got:
            numbers[message.key].append(int(message.payload))
        for of_key in numbers.values():
            assert of_key == sorted(set(of_key))
        if cluster.kind == "redis stream":  # which writes each message to its disk before it confirms it
            assert len(got) == published
