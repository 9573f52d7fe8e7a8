"""Peers that send file descriptors with their packets: no other client waits while they are closed.

Each case runs on this kernel, which may refuse descriptors, and as on one that is older than Linux 6.16 and cannot.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from descriptors import MOST, Closers, can_refuse, ends, lingering, refusing, send_with
from support import PATIENCE, WHOAMI, Connect, FakeHub, MakeHub, Peer, eventually, own_key

from sbuslib import Client, Hub, Relay, aio, blocking
from sbuslib.errors import PeerError
from sbuslib.kernel.closers import MOST_KEPT, close_later, is_behind

HOSTILE, OTHER = 12_345, 12_346

# -- a hub ---------------------------------------------------------------------------------------------------


@refusing
def test_a_sender_of_descriptors_gets_an_error_and_stays_connected(hub: Hub, connect: Connect) -> None:
    reader, sender = connect(), connect()
    reader.subscribe(b"k")
    with lingering() as (slow, _), pytest.raises(PermissionError):
        send_with(sender.socket, b"MSG k\0with", [slow.fileno()])
    sender.publish(b"k", b"without")
    assert reader.receive() == b"MSG k\0without"
    sender.barrier()
    assert hub.statistics().clients == 2
    assert not hub.statistics().violations


def test_on_an_old_kernel_the_hub_disconnects_the_sender_of_descriptors(
    old_kernel: None, make_hub: MakeHub, connect: Connect, closers: Closers
) -> None:
    hub = make_hub()
    reader, sender = connect(), connect()
    reader.subscribe(b"k")
    sender.send(b"CMSG notices/on")
    sender.barrier()
    with lingering() as (slow, other):
        sender.publish(b"k", b"before")
        send_with(sender.socket, b"MSG k\0with", [slow.fileno()] * MOST)
        sender.publish(b"k", b"after")
        slow.close()
        assert reader.receive() == b"MSG k\0before"
        assert sender.receive() == b"CMSG notice/kicked\0descriptors sent"
        assert sender.is_disconnected()
        eventually(lambda: len(closers.closed) == MOST)
        assert closers.elsewhere
        assert ends(other)
    assert hub.statistics().violations == {"descriptors sent": 1}
    reader.publish(b"k", b"the hub goes on")
    assert reader.receive() == b"MSG k\0the hub goes on"


def test_a_client_that_connected_before_the_hub_cannot_hold_it(
    address: str, connect: Connect, closers: Closers
) -> None:
    """As with socket activation: a client has connected and sent before the hub runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as passed, lingering() as (slow, other):
        passed.bind(address)
        passed.listen()
        modest, hostile = connect(), connect()
        modest.send(b"SUB k", b"MSG k\0early")
        send_with(hostile.socket, b"MSG k\0with", [slow.fileno()])
        slow.close()
        with Hub(passed) as hub:
            assert modest.receive() == b"MSG k\0early"
            assert hostile.is_disconnected()
            eventually(lambda: closers.closed)
            assert closers.elsewhere
            assert ends(other)
            assert hub.statistics().violations == {"descriptors sent": 1}
            if can_refuse():
                with pytest.raises(PermissionError):
                    send_with(modest.socket, b"MSG k\0with", [0])
            modest.publish(b"k", b"late")
            assert modest.receive() == b"MSG k\0late"


def test_on_an_old_kernel_the_hub_takes_no_client_of_a_user_whose_descriptors_do_not_close(
    old_kernel: None, make_hub: MakeHub, connect_as: Callable[..., Peer]
) -> None:
    """Else each of its connections could leave 253 more of them open."""
    hub = make_hub(mode=0o777)
    modest, goes_on = connect_as(OTHER), threading.Event()
    close_later(HOSTILE, goes_on.wait, MOST_KEPT)
    try:
        hostile = connect_as(HOSTILE)
        assert hostile.receive() == b"CMSG notice/kicked\0descriptors sent"
        assert hostile.is_disconnected()
        modest.barrier()
        assert hub.statistics().violations == {"descriptors sent": 1}
    finally:
        goes_on.set()
    eventually(lambda: not is_behind(HOSTILE))
    connect_as(HOSTILE).barrier()


# -- a client, and a relay -----------------------------------------------------------------------------------


class HostileHub:
    """A fake hub in a thread of its own, which greets one client and sends it descriptors."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen()
        self._listener.settimeout(PATIENCE)
        self.refused = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._listener, self._listener.accept()[0] as client, lingering() as (slow, _):
            client.settimeout(PATIENCE)
            while client.recv(1_000) != WHOAMI + b"\0":
                pass
            client.send(WHOAMI + b"\0" + own_key())
            try:
                send_with(client, b"MSG k\0with", [slow.fileno()])
            except PermissionError:
                self.refused = True
                client.send(b"MSG k\0without")
            with suppress(ConnectionResetError):  # of a client that has not read everything
                while client.recv(1_000):
                    pass

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
def hostile(address: str) -> Iterator[HostileHub]:
    hub = HostileHub(address)
    yield hub
    hub.join()


def receive(kind: type[Any], address: str) -> bytes:
    async def receive_in_loop() -> bytes:
        async with kind(address) as client:
            return (await client.receive(timeout=PATIENCE)).payload  # type: ignore[no-any-return]

    if kind is aio.Client:
        return asyncio.run(receive_in_loop())
    with kind(address) as client:
        return client.receive(timeout=PATIENCE).payload  # type: ignore[no-any-return]


each_kind = pytest.mark.parametrize("kind", [Client, blocking.Client, aio.Client], ids=["gevent", "blocking", "aio"])


@refusing
@each_kind
def test_a_client_refuses_descriptors(hostile: HostileHub, address: str, kind: type[Any]) -> None:
    assert receive(kind, address) == b"without"
    hostile.join()
    assert hostile.refused


@each_kind
def test_a_client_on_an_old_kernel_ends_the_connection(
    old_kernel: None, hostile: HostileHub, address: str, closers: Closers, kind: type[Any]
) -> None:
    with pytest.raises(PeerError, match="descriptors"):
        receive(kind, address)
    hostile.join()
    eventually(lambda: closers.closed)
    assert closers.elsewhere


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_relay(request: pytest.FixtureRequest, folder: str, hub: Hub, closers: Closers, kernel: str) -> None:
    if kernel == "old":
        request.getfixturevalue("old_kernel")
    with FakeHub(f"{folder}/above") as above:
        relay = Relay(hub, f"{folder}/above")
        relay.start()
        link = above.accept()
        assert link.receive()
        refuses = can_refuse() and kernel == "new"
        if refuses:
            with pytest.raises(PermissionError):
                send_with(link.socket, b"MSG k\0with", [0])
        else:
            send_with(link.socket, b"MSG k\0with", [0])
            while link.receive():
                pass
            eventually(lambda: closers.closed)
            assert closers.elsewhere
        relay.stop()
