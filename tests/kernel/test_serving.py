"""Clients of a hub of their own process, which would wait for it in vain, say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from support import PATIENCE, python

from sbuslib import Client, Hub, aio, blocking
from sbuslib.errors import StateError
from sbuslib.testing import HubThread


async def connect_aio(address: str) -> None:
    async with aio.Client(address):
        pass


def connect_blocking(address: str) -> None:
    blocking.Client(address).close()


def connect_gevent(address: str) -> None:
    Client(address).close()


CONNECT: dict[str, Callable[[str], None]] = {
    "blocking": connect_blocking,
    "aio": lambda address: asyncio.run(connect_aio(address)),
    "gevent": connect_gevent,
}


@pytest.mark.parametrize("kind", ["blocking", "aio"])
def test_a_client_that_would_stop_the_thread_of_its_hub_says_so(hub: Hub, address: str, kind: str) -> None:
    with pytest.raises(StateError, match="this thread would wait for a hub that only this thread can serve"):
        CONNECT[kind](address)
    with Client(address) as client:
        client.sync()


def test_a_client_of_another_thread_may_not_wait_in_the_thread_of_its_hub(address: str) -> None:
    with HubThread(address) as server, server.client() as client:
        client.subscribe(b"room/1")

        def wait() -> None:
            with pytest.raises(TimeoutError):
                client.receive(timeout=0)
            with pytest.raises(StateError, match="this thread would wait"):
                client.receive(timeout=PATIENCE)

        server.call(wait)
        client.publish(b"room/1", b"x")
        assert client.receive(timeout=PATIENCE).payload == b"x", "the client is as good as before"


def test_a_patched_program_may_use_any_client_in_the_thread_of_its_hub(address: str) -> None:
    code = f"""
from gevent import monkey; monkey.patch_all()
from sbuslib import Hub, blocking
with Hub({address!r}) as hub, blocking.Client({address!r}) as client:
    print(client.whoami() == hub.whoami())
"""
    assert python("-c", code) == "True\n"
