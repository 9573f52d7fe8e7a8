"""Threads, forks and users: who may wait where, and what the system tells of them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest
from support import PATIENCE, python

from sbuslib import Client, Hub, aio, blocking
from sbuslib.errors import AddressError, StateError, UsageError
from sbuslib.kernel.forks import abandon_in_child, disconnect_copy
from sbuslib.kernel.hosts import HostPort, is_loopback, parse_host_port
from sbuslib.kernel.users import resolve_user
from sbuslib.testing import HubThread

# -- Clients of a hub of their own process, which would wait for it in vain, say so


async def connect_aio(address: str) -> None:
    async with aio.Client(address):
        pass


CONNECT: dict[str, Callable[[str], None]] = {
    "blocking": lambda address: blocking.Client(address).close(),
    "aio": lambda address: asyncio.run(connect_aio(address)),
}


@pytest.mark.parametrize("kind", CONNECT)
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
    print(client.hub.whoami() == hub.whoami())
"""
    assert python("-c", code) == "True\n"


# -- What the child of a fork gives up, and its parent keeps


class Owner:
    def __init__(self, sock: socket.SocketType) -> None:
        self.socket = sock


def test_the_child_has_a_socket_whose_other_end_has_gone(pair: tuple[socket.SocketType, socket.SocketType]) -> None:
    one, other = pair
    owner = Owner(one)
    abandon_in_child(owner, lambda owner: disconnect_copy(owner.socket))
    number = one.fileno()
    other.send(b"for the parent")
    child = os.fork()
    if not child:
        os._exit(0 if one.fileno() == number and one.recv(100) == b"" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert one.recv(100) == b"for the parent"


def test_an_owner_that_has_gone_is_not_called() -> None:
    here, there = os.pipe()

    def tell(owner: object) -> None:
        os.write(there, b"called")

    owner = Owner(socket.SocketType())
    abandon_in_child(owner, tell)
    del owner
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    os.close(there)
    assert os.read(here, 10) == b""
    os.close(here)


def test_a_closed_socket_stays_closed(pair: tuple[socket.SocketType, socket.SocketType]) -> None:
    one, _ = pair
    one.close()
    disconnect_copy(one)
    assert one.fileno() < 0


# -- Users by name or id


def test_a_user_is_found_by_name_and_by_id() -> None:
    assert resolve_user("root") == resolve_user(0) == resolve_user("0") == 0
    assert resolve_user(12345) == resolve_user("12345") == 12345  # need not exist


@pytest.mark.parametrize(
    "user",
    ["no such user", "", " ", "-1", "²", "ro\0ot", -1, 2**32 - 1, 2**32, True, False, None, 1.5, b"root", [0]],
)
def test_an_unknown_user_is_refused(user: object) -> None:
    with pytest.raises(UsageError):
        resolve_user(user)  # type: ignore[arg-type]


# -- Addresses of TCP


@pytest.mark.parametrize(
    "address", ["", "host", "1.2.3.4", "h:x", "h:65536", "::1:80", "[::1]", "a b:1", "h:-1", "h:+1"]
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(AddressError):
        parse_host_port(address)


def test_addresses_are_read_and_written() -> None:
    for text, host, port in (("h:1", "h", 1), (":80", "127.0.0.1", 80), ("[::1]:65535", "::1", 65_535)):
        address = parse_host_port(text)
        assert address == HostPort(host, port)
        assert parse_host_port(str(address)) == address


def test_loopback_addresses_are_told_from_others() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("192.0.2.1")
    assert not is_loopback("0.0.0.0")
    with pytest.raises(AddressError, match="cannot be the name of a host"):
        is_loopback("a..b")
