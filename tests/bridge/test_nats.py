"""What only NATS has: clusters, streams, ways to say who we are."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support import PATIENCE

from sbuslib.aio import Client
from sbuslib.bridge import AioBridge, EngineOptions

from .servers import Server, free_port, nats_server
from .test_bridge import Buses, receive, until


def test_a_cluster_of_three_goes_on_when_one_is_killed(buses: Buses, folder: str) -> None:
    routes = [free_port() for _ in range(3)]
    servers = [
        nats_server(
            folder,
            *("--cluster_name", "three", "--cluster", f"nats://127.0.0.1:{route}"),
            *("--routes", ",".join(f"nats://127.0.0.1:{other}" for other in routes if other != route)),
            streams=False,
        )
        for route in routes
    ]
    url = "nats://" + ",nats://".join(f"127.0.0.1:{server.port}" for server in servers)

    def server_of(bridge: AioBridge) -> Server:
        port = bridge._engine._client.connected_url.port  # type: ignore[attr-defined]
        return next(server for server in servers if server.port == port)

    async def run() -> None:
        async with (
            AioBridge(buses[0], url, export=[b"a/"]) as one,
            AioBridge(buses[1], url, import_=[b"a/"]) as two,
            Client(buses[0]) as here,
            Client(buses[1]) as there,
        ):
            await one.ready()
            await two.ready()
            await there.subscribe(b"a/")
            published = 0

            async def carry(most: float) -> None:
                """Publish until so many have come."""
                nonlocal published
                async with asyncio.timeout(PATIENCE):
                    while two.statistics().imported < most:
                        await here.publish_many([(b"a/%d" % key, b"%d" % published) for key in range(10)])
                        published += 10
                        await asyncio.sleep(0.001)

            await carry(300)  # the servers find each other meanwhile
            server_of(one).kill()
            await until(lambda: one.statistics().connected)
            await carry(two.statistics().imported + 300)

            await here.publish(b"a/last")  # comes after all others
            got = await receive(there, 1)
            while got[-1].key != b"a/last":
                got += await receive(there, 1)
            del got[-1]
            assert len({(message.key, message.payload) for message in got}) == len(got)
            # Before the servers had found each other, nobody heard what was published.
            first = {message.key: int(message.payload) for message in reversed(got)}
            unheard = sum(number // 10 for number in first.values())
            lost = [*one.statistics().lost.values(), *two.statistics().lost.values()]
            assert unheard + len(got) + sum(lost) == published

    for server in servers:
        server.start(wait=False)
    try:
        for server in servers:
            server.wait()
        asyncio.run(run())
    finally:
        for server in servers:
            server.kill()


def test_a_bridge_goes_on_where_it_stopped_in_a_stream(buses: Buses, folder: str) -> None:
    server = nats_server(folder)
    server.start()
    options = EngineOptions(stream="S", name="b")
    url = f"nats://127.0.0.1:{server.port}"

    async def run() -> None:
        async with AioBridge(buses[0], url, export=[b"a"], options=options) as one, Client(buses[0]) as here:
            await one.ready()
            for part in range(3):
                async with Client(buses[1]) as there, AsyncExitStack() as stack:
                    await there.subscribe(b"a")
                    two = AioBridge(buses[1], url, import_=[b"a"], options=options)
                    await (await stack.enter_async_context(two)).ready()
                    await here.publish(b"a", b"%d here" % part)
                    wanted = [b"%d here" % part] if not part else [b"%d away" % (part - 1), b"%d here" % part]
                    assert [message.payload for message in await receive(there, len(wanted))] == wanted
                await here.publish(b"a", b"%d away" % part)
                await until(lambda: not one.statistics().kept)

    try:
        asyncio.run(run())
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--user", "me", "--pass", "word"], {"user": "me", "password": "word"}),
        (["--auth", "secret"], {"token": "secret"}),
    ],
)
def test_a_server_that_asks_who_we_are_is_told(
    buses: Buses, folder: str, caplog: pytest.LogCaptureFixture, arguments: list[str], options: dict[str, Any]
) -> None:
    server = nats_server(folder, *arguments)
    server.start()

    async def run() -> None:
        url = f"nats://127.0.0.1:{server.port}"
        async with AioBridge(buses[0], url, export=[b"a"], options=EngineOptions(**options)) as one:
            await one.ready()
        wrong = {name: "wrong-" + value for name, value in options.items()}
        async with AioBridge(buses[0], url, export=[b"a"], options=EngineOptions(**wrong)) as one:
            await until(lambda: "Authorization" in caplog.text)
            assert not one.statistics().connected
        assert "wrong-" not in caplog.text

    try:
        asyncio.run(run())
    finally:
        server.kill()
