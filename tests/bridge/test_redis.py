"""What only Redis has: users and passwords."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from sbuslib.bridge import AioBridge, EngineOptions

from .servers import redis_server
from .test_bridge import Buses, ready, until


def test_a_password_is_asked_for(buses: Buses, folder: str, caplog: pytest.LogCaptureFixture) -> None:
    server = redis_server(folder, "--user", "me", "on", ">right/word", "allchannels", "+@all", "--requirepass", "all")
    server.start()
    place = f"127.0.0.1:{server.port}"

    async def run() -> None:
        known = [
            AioBridge(
                buses[0], f"redis://{place}", export=[b"a"], options=EngineOptions(user="me", password="right/word")
            ),
            AioBridge(buses[0], f"redis://me:right%2Fword@{place}", export=[b"b"]),
            AioBridge(buses[0], f"redis://{place}", export=[b"c"], options=EngineOptions(password="all")),
        ]
        stranger = AioBridge(buses[0], f"redis://me:wrong-word@{place}", export=[b"d"])
        async with AsyncExitStack() as stack:
            await asyncio.gather(*map(stack.enter_async_context, [*known, stranger]))
            await ready(*known)
            await until(lambda: "invalid username-password pair" in caplog.text)
            assert not stranger.statistics().connected

    try:
        asyncio.run(run())
    finally:
        server.kill()
    assert "word@" not in caplog.text
    assert "wrong-word" not in caplog.text
