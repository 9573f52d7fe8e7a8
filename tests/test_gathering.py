"""A gevent client that gathers what one turn of the event loop published."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable

import gevent
import pytest
from support import PATIENCE, FakeHub, Peer, eventually

from sbuslib import Client, Hub
from sbuslib.batches import BATCH, Bundle
from sbuslib.errors import DisconnectedError, KeyFormatError, PayloadError
from sbuslib.limits import PACKET_BYTES, ClientLimits

Connect = Callable[..., Peer]
MakeClient = Callable[..., Client]

FEATURES = b"batch/on hub/sync id=1 path=1"


@pytest.fixture
def gathering(hub: Hub, client: MakeClient) -> Client:
    made = client()
    made.gather()
    return made


def greet(fake: FakeHub, client: MakeClient, features: bytes = FEATURES, **options: object) -> tuple[Peer, Client]:
    """A false hub's end of a connection, and a client that gathers at the other."""
    connecting = gevent.spawn(client, **options)
    peer = fake.greet(features)
    made: Client = connecting.get(timeout=PATIENCE)
    made.gather()
    if b"batch/on" in features:
        assert peer.receive() == b"CMSG batch/on\0"
    return peer, made


def opened(packet: bytes) -> list[bytes]:
    return Bundle.parse(packet).plain if packet.startswith(BATCH) else [packet]


def test_what_one_turn_published_goes_at_its_end(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        for number in range(100):
            made.publish(b"a/%d" % (number % 3), b"%d" % number)
        expected = [b"MSG a/%d\0%d" % (number % 3, number) for number in range(100)]
        assert opened(peer.receive()) == expected
        made.publish(b"alone")
        assert peer.receive() == b"MSG alone\0"


def test_flush_sends_at_once(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        made.publish(b"k", b"1")
        made.publish(b"k", b"2")
        made.flush()
        made.flush()
        assert opened(os.read(peer.socket.fileno(), 1_000)) == [b"MSG k\x001", b"MSG k\x002"]


def test_it_is_not_the_default_and_may_be_turned_off(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        connecting = gevent.spawn(client)
        peer = fake.greet(FEATURES)
        made = connecting.get(timeout=PATIENCE)
        assert peer.receive() == b"CMSG batch/on\0"
        made.publish(b"k", b"1")
        assert os.read(peer.socket.fileno(), 1_000) == b"MSG k\x001"
        made.flush()
        made.gather()
        made.publish(b"k", b"2")
        with pytest.raises(BlockingIOError):
            os.read(peer.socket.fileno(), 1_000)
        made.gather(False)
        made.publish(b"k", b"3")
        assert [peer.receive(), peer.receive()] == [b"MSG k\x002", b"MSG k\x003"]


def test_what_else_is_sent_comes_after_it(hub: Hub, gathering: Client, connect: Connect) -> None:
    reader = connect()
    reader.subscribe(b"")
    gathering.publish(b"k", b"1")
    gathering.publish_many([(b"k", b"2"), (b"k", b"3")])
    gathering.publish(b"k", b"4")
    gathering.publish(b"k", b"5", flags=socket.MSG_DONTWAIT)
    gathering.publish(b"k", b"6")
    message = gathering.prepare_message(b"k")
    message.payload[:1] = b"7"
    message.send(1)
    gathering.publish(b"k", b"8")
    gathering.subscribe(b"never")  # which ends with an answer, so that all is in force
    assert [packet[-1:] for packet in reader.pending()] == [b"%d" % number for number in range(1, 9)]


def test_a_fault_shows_at_once(gathering: Client, hub: Hub) -> None:
    inbox = hub.subscribe(b"")
    for key, payload, error in [
        (b"a\0", b"", KeyFormatError),
        (b"!/x", b"", KeyFormatError),
        ("a", b"", KeyFormatError),
        (b"k", "text", PayloadError),
        (b"k", 3, PayloadError),
        (b"k", bytes(PACKET_BYTES - 5), PayloadError),
    ]:
        gathering.publish(b"k", b"good")
        with pytest.raises(error):
            gathering.publish(key, payload)  # type: ignore[arg-type]
    gathering.publish(b"k", bytes(PACKET_BYTES - 6))
    gathering.publish(b"k", bytearray(b"mutable"))  # type: ignore[arg-type]
    gathering.flush()
    assert [inbox.get(PATIENCE).payload for _ in range(8)] == [b"good"] * 6 + [bytes(PACKET_BYTES - 6), b"mutable"]


def test_no_more_is_gathered_than_may_be(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client, limits=ClientLimits(batch_messages=10, batch_bytes=1_000))
        made.timeout = 0.01
        done = 0
        try:
            while True:
                made.publish(b"k", b"%05d" % done)
                done += 1
        except TimeoutError:
            pass
        assert len(made._gathered) < 12
        made.timeout = PATIENCE
        got: list[bytes] = []
        while len(got) < done:
            got += opened(peer.receive())
        assert got == [b"MSG k\0%05d" % number for number in range(done)]
        eventually(lambda: not made._gathered and made._later is None)


def test_a_hub_without_batches_gets_plain_packets(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client, b"")
        for number in range(200):
            made.publish(b"k", b"%d" % number)
        assert [peer.receive() for _ in range(200)] == [b"MSG k\0%d" % number for number in range(200)]


def test_close_sends_what_was_gathered(hub: Hub, client: MakeClient) -> None:
    inbox = hub.subscribe(b"")
    made = client()
    made.gather()
    made.publish(b"k", b"1")
    made.close()
    assert inbox.get(PATIENCE).payload == b"1"
    with pytest.raises(DisconnectedError):
        made.publish(b"k", b"2")
    made.close()


def test_what_is_lost_with_the_connection_is_told(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        peer.close()
        for _ in range(3):
            made.publish(b"k")
        eventually(lambda: made._failure is not None)
        with pytest.raises(DisconnectedError, match="are lost: 3"):
            made.publish(b"k")
        made.publish(b"k")
        with pytest.raises(DisconnectedError, match="are lost: 1"):
            made.close()
        assert made.closed
    gc.collect()


def test_what_was_gathered_outlasts_a_reconnection(address: str, client: MakeClient) -> None:
    """To a hub that takes no batches, at that."""
    with FakeHub(address) as fake:
        peer, made = greet(fake, client, reconnect=True)
        peer.close()
        for number in range(5):
            made.publish(b"k", b"%d" % number)
        again = fake.greet()
        assert [again.receive() for _ in range(5)] == [b"MSG k\0%d" % number for number in range(5)]


def test_any_number_of_greenlets_may_share_it(hub: Hub, gathering: Client) -> None:
    inbox = hub.subscribe(b"")

    def publish(who: int) -> None:
        for number in range(50):
            gathering.publish(b"k/%d" % who, b"%d" % number)
            if number % 7 == who:
                gevent.sleep(0)
            if number % 20 == who:
                gathering.sync()

    gevent.joinall([gevent.spawn(publish, who) for who in range(5)], raise_error=True)
    gathering.sync()
    got = [inbox.get(0) for _ in range(250)]
    for who in range(5):
        mine = [message.payload for message in got if message.key == b"k/%d" % who]
        assert mine == [b"%d" % number for number in range(50)]
