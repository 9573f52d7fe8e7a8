"""The connection of the gevent and the blocking client: callers that share it, hubs that go away, reconnection."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

import gevent
import pytest
from clients.makers import Make, MakeClient, greeted
from gevent.event import Event
from support import PATIENCE, WHOAMI, FakeHub, HubThread, eventually, own_key

from sbuslib import Client, Hub
from sbuslib.clients.reconnect import CONNECT_PAUSE, CONNECT_PAUSE_MOST
from sbuslib.errors import (
    DisconnectedError,
)
from sbuslib.kernel.sockets import Listener, wait
from sbuslib.limits import ClientLimits
from sbuslib.wire.addresses import PathAddress

SWIFT = ClientLimits(reconnect_pause=0.001, reconnect_pause_most=0.002)


def test_notices_are_told_to_a_client_that_receives_with_flags(server: HubThread, make: Make) -> None:
    notices: list[object] = []
    client = make(on_notice=notices.append)
    client.sync()  # by now the hub knows that it wants notices
    server.call(server.hub.tree.set_prefix, b"!/cred/1/2/3/")
    assert wait(client.socket, select.POLLIN, PATIENCE)
    with pytest.raises(BlockingIOError):
        client.receive(flags=socket.MSG_DONTWAIT)
    assert len(notices) == 1


def test_a_full_backlog_is_waited_out(address: str, client: MakeClient) -> None:
    """The client pauses between its attempts."""
    listener = Listener(PathAddress(address), backlog=0)
    pauses: list[float] = []

    class Counting(Client):
        async def _sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 5:
                first.close()
                hub.start()  # which accepts, and so makes room
            await super()._sleep(seconds)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
        first.connect(address)
        hub = Hub(listener)
        try:
            with Counting(address, timeout=20) as late:
                assert late.hub.whoami() == own_key()
        finally:
            hub.stop()
    assert len(pauses) >= 5
    assert all(CONNECT_PAUSE <= pause <= CONNECT_PAUSE_MOST for pause in pauses)


def test_a_daemon_without_features(fake: FakeHub, client: MakeClient) -> None:
    plain, peer = greeted(fake, client)
    assert plain.hub.features is None
    subscribing = gevent.spawn(plain.subscribe, b"a")
    assert peer.receive() == b"SUB a"
    assert peer.receive() == WHOAMI + b"\0"  # which comes after the SUB, and so does its answer
    assert not subscribing.ready()
    peer.send(WHOAMI + b"\0" + own_key())
    subscribing.get(timeout=10)


def test_a_hub_with_features_that_are_unknown_here(fake: FakeHub, client: MakeClient) -> None:
    modern, peer = greeted(fake, client, b"hub/sync time/travel id=1 path=1")
    assert modern.hub.features is not None
    assert b"time/travel" in modern.hub.features.words
    peer.send(b"CMSG time/travel\0 back", b"MSG a\0x")
    assert modern.receive(timeout=10).payload == b"x"


def test_there_are_pauses_between_connections_to_a_hub_that_always_closes_them(fake: FakeHub) -> None:
    """The hub accepts, greets and closes each connection. The client must still pause between them.

    So it is when the hub refuses what the client restores.
    """
    pauses: list[float] = []

    class Counting(Client):
        async def _sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            await super()._sleep(seconds)

    connections = 0
    subscribed = Event()

    def serve() -> None:
        nonlocal connections
        first = fake.greet()
        subscribed.wait()
        first.close()
        while True:
            with fake.greet() as peer:
                assert peer.receive() == b"SUB a"
            connections += 1

    serving = gevent.spawn(serve)
    with Counting(fake.socket.getsockname(), reconnect=True, limits=SWIFT) as client:
        client._session.held[b"a"] = 1
        subscribed.set()
        receiving = gevent.spawn(client.receive)
        eventually(lambda: connections >= 40)
        receiving.kill()
        serving.kill()
    assert len(pauses) >= 30


def test_close_ends_a_reconnection(hub: Hub, client: MakeClient) -> None:
    loyal = client(reconnect=True, limits=SWIFT, timeout=None)
    hub.stop()
    receiving = gevent.spawn(loyal.receive)
    gevent.sleep(0.01)
    loyal.close()
    with pytest.raises(DisconnectedError):
        receiving.get(timeout=10)


def test_an_error_in_on_reconnect_reaches_the_caller(make_hub: Callable[..., Hub], client: MakeClient) -> None:
    def fail(who: object) -> None:
        raise KeyError("caller's")

    hub = make_hub()
    loyal = client(reconnect=True, limits=SWIFT, on_reconnect=fail)
    loyal.subscribe(b"a")
    hub.stop()
    hub.start()
    with pytest.raises(KeyError, match="caller's"):
        loyal.receive(timeout=10)
    loyal.sync()
    hub.publish(b"a", b"x")
    assert loyal.receive(timeout=10).payload == b"x"


def test_a_subscription_made_during_a_reconnection_counts_once(fake: FakeHub, client: MakeClient) -> None:
    loyal, peer = greeted(fake, client, reconnect=True, limits=SWIFT)
    peer.close()
    receiving = gevent.spawn(loyal.receive)
    again = fake.accept()
    assert again.receive() == b"CMSG hub/features\0"
    assert again.receive() == WHOAMI + b"\0"
    subscribing = gevent.spawn(loyal.subscribe, b"a")  # while the new connection waits for its first answer
    gevent.sleep(0)
    again.send(WHOAMI + b"\0" + own_key())
    said: list[bytes] = []
    while not said or not said[-1].startswith(WHOAMI):
        said.append(again.receive())
    again.send(WHOAMI + b"\0" + own_key())
    subscribing.get(timeout=10)
    again.send(b"MSG end\0")
    receiving.get(timeout=10)
    said += iter(lambda: again.receive() if select.select([again.socket], [], [], 0)[0] else None, None)
    assert said.count(b"SUB a") == 1


def test_subscribe_over_a_reconnection_returns_when_it_is_in_force(fake: FakeHub, client: MakeClient) -> None:
    loyal, peer = greeted(fake, client, b"hub/sync id=1 path=1", reconnect=True, limits=SWIFT)
    subscribing = gevent.spawn(loyal.subscribe, b"a")
    assert peer.receive() == b"SUB a"
    peer.close()
    again = fake.greet(b"hub/sync id=1 path=1")
    assert again.receive() == b"SUB a"
    for _ in range(50):
        gevent.sleep(0)
    assert not subscribing.ready(), "it returned, though this hub has not acknowledged anything"
    question = again.receive()
    assert question.startswith(b"CMSG ")
    again.send(question if question.startswith(b"CMSG hub/sync") else WHOAMI + b"\0" + own_key())
    subscribing.get(timeout=10)
