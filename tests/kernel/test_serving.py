"""Clients of a hub of their own process, which would wait for it in vain, say so."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable

import pytest
from support import PATIENCE, in_thread, python, stalled_hub

from sbuslib import Client, Hub, aio, blocking
from sbuslib.errors import StateError
from sbuslib.kernel import serving
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


def test_a_hub_that_is_stopped_while_a_client_connects_is_no_hub_that_was_left_alone(address: str) -> None:
    """The client finds that the connection has ended, and connects again."""
    with HubThread(address), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connecting:
        connecting.connect(address)
        found = serving.serving(connecting)
        assert found is not None
        found.check_alive(address)
    found.check_alive(address)


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


@pytest.mark.parametrize("kind", CONNECT)
def test_a_hub_whose_thread_has_ended_is_told(address: str, kind: str) -> None:
    hub = Hub(address)
    thread = threading.Thread(target=hub.start)
    thread.start()
    thread.join()
    try:
        with pytest.raises(StateError, match="the thread that started this hub has ended, so nobody serves it"):
            CONNECT[kind](address)
        assert isinstance(in_thread(lambda: CONNECT[kind](address)), StateError)
    finally:
        hub._abandon()
        os.unlink(address)


def test_a_warning_tells_where_the_thread_is_that_does_not_serve(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sbuslib.clients.channel.PATIENCE", 0.05)
    with caplog.at_level(logging.WARNING, "sbuslib.clients"), stalled_hub(address):
        for _ in range(2):
            with pytest.raises(TimeoutError, match="its event loop does not run"):
                blocking.Client(address, timeout=0.2)
    (told,) = caplog.messages
    assert "its event loop does not run: its thread is at " in told
    assert "threading.py" in told


def test_a_client_that_only_waits_for_messages_is_told_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with HubThread(address) as server, server.client() as client:
        client.subscribe(b"room/1")
        monkeypatch.setattr("sbuslib.clients.channel.PATIENCE", 0.01)
        with pytest.raises(TimeoutError):
            client.receive(timeout=0.05)
    assert caplog.messages == []


def test_a_hub_that_was_stopped_is_no_longer_known(address: str) -> None:
    with Hub(address) as hub:
        assert address in serving._all
        hub.stop()
        assert address not in serving._all
