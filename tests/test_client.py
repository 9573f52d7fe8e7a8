"""The gevent client: greenlets, and timeouts of the caller."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import gevent
import pytest
from clients.makers import MakeClient, fill, greeted
from support import WHOAMI, FakeHub, Peer, own_key

from sbuslib import Client
from sbuslib.limits import ClientLimits

SWIFT = ClientLimits(reconnect_pause=0.001, reconnect_pause_most=0.002)


class Patience(gevent.Timeout):
    """A timeout that the caller sets."""


WAITING: dict[str, Callable[[Client], object]] = {
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


@pytest.mark.parametrize("method", WAITING)
def test_the_callers_timeout_leaves_other_greenlets_waiting(fake: FakeHub, client: MakeClient, method: str) -> None:
    """The greenlet that reads for all may leave at any time. Another one then takes the lead."""
    shared, peer = greeted(fake, client)

    def impatient() -> None:
        with pytest.raises(Patience) as caught, Patience(0.005) as patience:
            WAITING[method](shared)
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
    mute, _ = greeted(fake, client, timeout=0.01)
    with pytest.raises(TimeoutError, match="did not answer"):
        WAITING[method](mute)


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
