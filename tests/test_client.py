"""The gevent client: greenlets, timeouts of the caller, and hubs that do not answer or come back."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable

import gevent
import pytest
from clients.makers import MakeClient, fill, greeted
from gevent.event import Event
from support import WHOAMI, FakeHub, Peer, eventually, own_key

from sbuslib import Client, Hub
from sbuslib import client as client_module
from sbuslib.clients.reconnect import CONNECT_PAUSE, CONNECT_PAUSE_MOST
from sbuslib.errors import DisconnectedError
from sbuslib.kernel.sockets import Listener
from sbuslib.limits import ClientLimits
from sbuslib.wire.addresses import PathAddress

SWIFT = ClientLimits(reconnect_pause=0.001, reconnect_pause_most=0.002)


class Patience(gevent.Timeout):
    """A timeout that the caller sets."""


RUNTIME: dict[str, Callable[[Client], object]] = {
    "receive": lambda client: client.receive(),
    "receive with timeout": lambda client: client.receive(timeout=30),
    "receive with flags": lambda client: client.receive(flags=socket.MSG_PEEK),
    "receive_many": lambda client: client.receive_many(),
    "iteration": lambda client: next(iter(client)),
    "whoami": lambda client: client.hub.whoami(),
    "sync": lambda client: client.sync(),
    "subscribe": lambda client: client.subscribe(b"a"),
}
SENDING: dict[str, Callable[[Client], object]] = {
    "publish": lambda client: client.publish(b"a", b"x"),
    "publish_many": lambda client: client.publish_many([(b"a", b"x")] * 5),
}


@pytest.mark.parametrize("method", SENDING)
def test_the_callers_timeout_passes_while_waiting_for_room(fake: FakeHub, client: MakeClient, method: str) -> None:
    stuck, peer = greeted(fake, client)
    fill(stuck)
    with pytest.raises(Patience) as caught, Patience(0.005) as patience:
        SENDING[method](stuck)
    assert caught.value is patience
    peer.send(b"MSG a\0x")
    assert stuck.receive(timeout=10).payload == b"x"


@pytest.mark.parametrize("method", RUNTIME)
def test_the_callers_timeout_leaves_other_greenlets_waiting(fake: FakeHub, client: MakeClient, method: str) -> None:
    """The greenlet that reads for all may leave at any time. Another one then takes the lead."""
    shared, peer = greeted(fake, client)

    def impatient() -> None:
        with pytest.raises(Patience) as caught, Patience(0.005) as patience:
            RUNTIME[method](shared)
        assert caught.value is patience

    leading = gevent.spawn(impatient)
    gevent.sleep(0)
    patient = gevent.spawn(shared.receive, timeout=10)
    leading.get()
    peer.send(b"MSG a\0x")
    assert patient.get().payload == b"x"


def test_the_callers_timeout_passes_while_connecting(fake: FakeHub, client: MakeClient) -> None:
    with pytest.raises(Patience), Patience(0.005):
        client()
    assert fake.accept().receive() == b"CMSG hub/features\0"


@pytest.mark.parametrize("method", ["whoami", "sync", "subscribe"])
def test_a_hub_that_does_not_answer(fake: FakeHub, client: MakeClient, method: str) -> None:
    mute, _ = greeted(fake, client)
    mute.timeout = 0.01
    with pytest.raises(TimeoutError, match="did not answer"):
        RUNTIME[method](mute)


@pytest.mark.parametrize("method", SENDING)
def test_sending_continues_when_there_is_room_again(fake: FakeHub, client: MakeClient, method: str) -> None:
    stuck, peer = greeted(fake, client, timeout=20)
    fill(stuck)
    sending = gevent.spawn(SENDING[method], stuck)
    gevent.sleep(0)
    assert not sending.ready()
    while peer.receive().startswith(b"MSG a\0" + bytes(100)):
        pass
    sending.get()


def test_a_full_backlog_is_waited_out(address: str, client: MakeClient) -> None:
    """The client pauses between its attempts."""
    listener = Listener(PathAddress(address), backlog=0)
    pauses: list[float] = []

    class Counting(client_module._Runtime):
        async def sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 5:
                first.close()
                hub.start()  # which accepts, and so makes room
            await super().sleep(seconds)

    class Patient(Client):
        _RUNTIME = Counting

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
        first.connect(address)
        hub = Hub(listener)
        try:
            with Patient(address, timeout=20) as late:
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


# -- reconnect=True -------------------------------------------------------------------------------------


def test_a_timeout_while_reconnecting_loses_no_subscription(fake: FakeHub, client: MakeClient) -> None:
    """The caller gives up between the new connection and its first answer. The next caller must finish it."""
    loyal, peer = greeted(fake, client, reconnect=True, limits=SWIFT)
    subscribing = gevent.spawn(loyal.subscribe, b"a")
    assert [peer.receive(), peer.receive()][0] == b"SUB a"
    peer.send(WHOAMI + b"\0" + own_key())
    subscribing.get()
    peer.close()
    with contextlib.suppress(Patience), Patience(0.02):
        loyal.receive()
    receiving = gevent.spawn(loyal.receive, timeout=5)
    said: list[bytes] = []

    def serve() -> None:
        """Greet the client on each connection that it makes, and note what it says."""
        while True:
            gevent.spawn(hear, fake.accept())

    def hear(peer: Peer) -> None:
        while packet := peer.receive():
            said.append(packet)
            if packet.startswith(WHOAMI):
                peer.send(WHOAMI + b"\0" + own_key())
            elif packet == b"SUB a":
                peer.send(b"MSG a\0x")

    serving = gevent.spawn(serve)
    try:
        assert receiving.get().payload == b"x"
    finally:
        serving.kill()
        receiving.kill()
    assert b"SUB a" in said


def test_there_are_pauses_between_connections_to_a_hub_that_always_closes_them(fake: FakeHub) -> None:
    """The hub accepts, greets and closes each connection. The client must still pause between them.

    So it is when the hub refuses what the client restores.
    """
    pauses: list[float] = []

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
    with Client(fake.socket.getsockname(), reconnect=True, limits=SWIFT) as client:
        rest = client._connection.leadership.rest

        async def counting(seconds: float) -> bool:
            pauses.append(seconds)
            return await rest(seconds)

        client._connection.leadership.rest = counting  # type: ignore[method-assign]
        client._connection.session.held[b"a"] = 1
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
