"""What only Redis has: users and passwords, and two connections that fail each by itself."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
import redis.asyncio

from sbuslib.aio import Client
from sbuslib.bridge import AioBridge, BrokerOptions

from .conftest import Buses, ready, until
from .servers import redis_server


async def test_a_password_is_asked_for(buses: Buses, folder: str, caplog: pytest.LogCaptureFixture) -> None:
    server = redis_server(
        folder, "--user", "me", "on", ">right/word", "allchannels", "+@all", "--requirepass", "all"
    ).start()
    place = f"127.0.0.1:{server.port}"

    known = [
        AioBridge(buses[0], f"redis://{place}", export=[b"a"], options=BrokerOptions(user="me", password="right/word")),
        AioBridge(buses[0], f"redis://me:right%2Fword@{place}", export=[b"b"]),
        AioBridge(buses[0], f"redis://{place}", export=[b"c"], options=BrokerOptions(password="all")),
    ]
    stranger = AioBridge(buses[0], f"redis://me:wrong-word@{place}", export=[b"d"])
    async with AsyncExitStack() as stack:
        await asyncio.gather(*map(stack.enter_async_context, [*known, stranger]))
        await ready(*known)
        await until(lambda: "invalid username-password pair" in caplog.text)
        assert not stranger.statistics().connected
    assert "word@" not in caplog.text
    assert "wrong-word" not in caplog.text


@pytest.mark.parametrize("stream", [None, "stream"])
async def test_a_bridge_that_sends_and_receives_goes_on_after_an_outage(
    buses: Buses, folder: str, stream: str | None
) -> None:
    """The connection for what is sent fails when the one that receives is there again already."""
    server = redis_server(folder).start()
    url, options = f"redis://127.0.0.1:{server.port}", BrokerOptions(stream=stream)

    async with (
        AioBridge(buses[0], url, export=[b"a"], import_=[b"b"], options=options) as one,
        AioBridge(buses[1], url, export=[b"b"], import_=[b"a"], options=options) as two,
        Client(buses[0]) as here,
        Client(buses[1]) as there,
    ):
        await ready(one, two)

        async def cross() -> None:
            before = one.statistics().imported, two.statistics().imported
            while one.statistics().imported == before[0] or two.statistics().imported == before[1]:
                await here.publish(b"a", b"")
                await there.publish(b"b", b"")
                await asyncio.sleep(0.01)

        await cross()
        server.kill()
        await until(lambda: not one.statistics().connected and not two.statistics().connected)
        server.start()
        await until(lambda: one.statistics().connected and two.statistics().connected)
        await cross()


async def test_a_stream_that_refuses_messages_says_so_and_they_are_kept(
    buses: Buses, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = redis_server(folder).start()
    url = f"redis://127.0.0.1:{server.port}"

    async with (
        redis.asyncio.Redis.from_url(url) as other,
        AioBridge(buses[0], url, export=[b"a"], options=BrokerOptions(stream="stream")) as one,
        Client(buses[0]) as here,
    ):
        await ready(one)
        await other.set("stream", "no stream")
        await here.publish(b"a", b"private")
        await until(lambda: "WRONGTYPE" in caplog.text)
        assert "private" not in caplog.text
        await other.delete("stream")
        await until(lambda: one.statistics().exported == 1)


async def test_a_server_whose_answers_cannot_be_read_is_an_outage(
    buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [b":\r\n", b"$x\r\n", b"*1\r\n%1\r\n", b"\xff\xff\r\n", b"*2\r\n$-1\r\n:1\r\n"]
    left = iter(answers)
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        answer = next(left, None)
        writer.write(answer or b"")
        if answer is None:
            over.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with AioBridge(buses[0], url, import_=[b"a"]) as one:
            running = asyncio.create_task(one.run())
            await until(lambda: over.is_set() or running.done())
            assert not running.done()
