"""What the gevent and the blocking client share, each against a hub in another thread."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from clients.makers import Make, MakeClient, greeted
from support import FakeHub, HubThread, both_ways, own_key

from sbuslib.clients.endpoint import Endpoint
from sbuslib.errors import (
    AddressError,
    DisconnectedError,
    KeyFormatError,
    PayloadError,
    PeerError,
    UsageError,
)
from sbuslib.limits import PACKET_BYTES, ClientLimits
from sbuslib.wire.packets import Message


def test_publish_and_receive(server: HubThread, make: Make) -> None:
    one, other = make(), make()
    one.subscribe(b"a/*", b"b")
    other.publish(b"a/1", b"x")
    other.publish(b"c")
    other.publish(b"b")
    assert one.receive(10) == Message(b"a/1", b"x")
    assert one.receive(10) == Message(b"b", b"")
    with pytest.raises(TimeoutError, match=r"0\.01"):
        one.receive(0.01)
    with pytest.raises(TimeoutError):
        one.receive(0)


def test_a_client_knows_its_credentials_and_its_hub(
    server: HubThread, make: Make, address: str, kind: type[Endpoint]
) -> None:
    client = make()
    assert client.credentials == client.whoami() == own_key()
    assert client.address == address
    assert client.epoch == 1
    assert client.features is not None
    assert client.features.hub_id == server.hub.hub_id
    assert address in repr(client)
    assert not client.closed
    assert client.fileno() == client.socket.fileno() >= 0
    assert isinstance(client.socket, socket.SocketType)
    assert client.sync() == "local"
    assert client.sync("tree") == "tree"


def test_subscribe_is_in_force_when_it_returns(server: HubThread, make: Make) -> None:
    client = make()
    for number in range(50):
        client.subscribe(b"k%d" % number)
        server.call(server.hub.publish, b"k%d" % number, b"")
        assert client.receive(10).key == b"k%d" % number


def test_subscriptions_are_counted(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a", b"a")
    client.unsubscribe(b"a")
    client.publish(b"a", b"1")
    client.sync()
    client.unsubscribe(b"a")
    client.publish(b"a", b"2")
    client.sync()
    assert client.receive(10).payload == b"1"
    with pytest.raises(TimeoutError):
        client.receive(0)


def test_publish_many_keeps_the_order_of_large_and_small_messages(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"")
    sizes = [100_000, 100_000, 10, 10, 100_000, 10, 10, 10, 130_000, 10, 10]
    pairs = [(b"k", b"%d " % number + bytes(size)) for number, size in enumerate(sizes)]
    assert client.publish_many(pairs) == len(pairs)
    assert [client.receive(10).payload for _ in sizes] == [payload for _, payload in pairs]


def test_publish_many(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"")
    pairs = [(b"k%d" % (number % 7), b"%d" % number) for number in range(1_000)]
    assert client.publish_many(iter(pairs)) == 1_000
    got: list[Message] = []
    while len(got) < 1_000:
        got += client.receive_many(timeout=10)
    assert [(message.key, message.payload) for message in got] == pairs
    assert client.publish_many([]) == 0


def test_publish_many_sends_the_messages_before_a_wrong_one(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"")
    with pytest.raises(KeyFormatError):
        client.publish_many([(b"a", b"1"), (b"b", b"2"), (b"\0", b"3"), (b"c", b"4")])
    client.sync()
    assert [message.key for message in client.receive_many(timeout=10)] == [b"a", b"b"]


def test_receive_many(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"")
    for number in range(5):
        client.publish(b"k", b"%d" % number)
    client.sync()
    assert [message.payload for message in client.receive_many(2)] == [b"0", b"1"]
    assert len(client.receive_many()) == 3
    with pytest.raises(TimeoutError):
        client.receive_many(timeout=0)


def test_the_longest_message_is_sent_and_a_longer_one_is_refused(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"k")
    payload = bytes(range(256)) * (PACKET_BYTES // 256)
    client.publish(b"k", payload[: PACKET_BYTES - 6])
    assert client.receive(10).payload == payload[: PACKET_BYTES - 6]
    with pytest.raises(PayloadError):
        client.publish(b"k", payload[: PACKET_BYTES - 5])
    client.senders(True)
    client.publish(b"k", payload[: PACKET_BYTES - 6])
    assert client.receive(10) == Message(b"k", payload[: PACKET_BYTES - 6], own_key())


def test_flags_of_send_and_recv(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    with pytest.raises(BlockingIOError):
        client.receive(flags=socket.MSG_DONTWAIT)
    client.publish(b"a", b"1", flags=socket.MSG_DONTWAIT)
    client.publish(b"a", b"2")
    assert client.receive(10, flags=socket.MSG_PEEK).payload == b"1"
    assert client.receive(10, flags=socket.MSG_PEEK).payload == b"1"
    assert client.receive(10).payload == b"1"
    client.sync()
    assert client.receive(10, flags=socket.MSG_PEEK).payload == b"2"
    assert client.receive(flags=socket.MSG_DONTWAIT).payload == b"2"
    client.senders(True)
    client.publish(b"a", b"3")
    assert client.receive(10, flags=socket.MSG_PEEK) == Message(b"a", b"3", own_key())
    assert client.receive(10) == Message(b"a", b"3", own_key())
    with pytest.raises(TimeoutError):
        client.receive(0.01, flags=socket.MSG_PEEK)


def test_dontwait_raises_while_there_is_no_room(server: HubThread, make: Make) -> None:
    client = make()
    with pytest.raises(BlockingIOError):
        server.call(_fill, client)
    client.sync()


def _fill(client: Endpoint) -> None:
    """Fill the connection. Runs in the thread of the hub, so that the hub cannot receive meanwhile."""
    for _ in range(100_000):
        client._socket.send(b"MSG a\0" + bytes(10_000), socket.MSG_DONTWAIT)


def test_echo_off_keeps_own_messages_away(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    client.echo(False)
    client.publish(b"a", b"1")
    client.echo(True)
    client.publish(b"a", b"2")
    assert client.receive(10).payload == b"2"


def test_senders(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    client.senders()
    client.publish(b"a", b"1")
    assert client.receive(10) == Message(b"a", b"1", own_key())
    client.senders(False)
    client.publish(b"a", b"2")
    assert client.receive(10) == Message(b"a", b"2", None)


def test_secrets(server: HubThread, make: Make) -> None:
    holder, other = make(), make()
    key = holder.credentials + b"/inbox"
    holder.subscribe(key)
    other.subscribe(b"")
    other.publish(key, b"hush")
    assert holder.receive(10) == Message(key, b"hush")
    other.sync()
    with pytest.raises(TimeoutError):
        other.receive(0)


def test_a_refused_subscription_ends_the_connection(server: HubThread, make: Make) -> None:
    client, bystander = make(), make()
    with pytest.raises(DisconnectedError):
        client.subscribe(b"!/cred/*/*/*/x")
    bystander.sync()


@pytest.mark.parametrize("pattern", [b"\0", "text", None, b"x" * PACKET_BYTES])
def test_a_wrong_pattern_raises_and_changes_nothing(server: HubThread, make: Make, pattern: Any) -> None:
    client = make()
    for verb in (client.subscribe, client.unsubscribe):
        with pytest.raises(KeyFormatError):
            verb(b"a", pattern)
    client.publish(b"a", b"x")
    client.sync()
    with pytest.raises(TimeoutError):
        client.receive(0)


def test_wrong_arguments(server: HubThread, make: Make) -> None:
    client = make()
    with pytest.raises(UsageError):
        client.subscribe()
    with pytest.raises(UsageError):
        client.sync("world")
    with pytest.raises(KeyFormatError):
        client.publish(b"a\0", b"")
    with pytest.raises(PayloadError):
        client.publish(b"a", "text")  # type: ignore[arg-type]
    with pytest.raises(AddressError):
        make("")
    with pytest.raises(UsageError):
        make(hub_user="no such user")
    client.sync()  # still there


def test_a_wrong_payload_is_refused_under_a_key_that_was_used_before(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    wrong: list[tuple[Any, Any, type[Exception]]] = [
        (b"a", bytes(PACKET_BYTES - 5), PayloadError),
        (b"a", "text", PayloadError),
        (b"a", None, PayloadError),
        ("a", b"", KeyFormatError),
        ([b"a"], b"", KeyFormatError),
    ]
    for key, payload, error in wrong:
        client.publish(b"a", b"good")
        with pytest.raises(error):
            client.publish(key, payload)
    for payload in (bytearray(b"1"), memoryview(b"2"), bytes(PACKET_BYTES - 6)):
        client.publish(b"a", payload)  # type: ignore[arg-type]
    got = [client.receive(10).payload for _ in range(8)]
    assert got == [b"good"] * 5 + [b"1", b"2", bytes(PACKET_BYTES - 6)]


def test_iteration(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    for number in range(10):
        client.publish(b"a", b"%d" % number)
    got = []
    for message in client:
        got.append(message.payload)
        if len(got) == 4:
            break
    assert client.receive(10).payload == b"4"
    for message in client:  # leaving the loop lost nothing
        got.append(message.payload)
        if message.payload == b"9":
            break
    assert got == [b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"8", b"9"]


@both_ways
def test_a_client_with_a_small_batch_limit_sends_and_receives_the_same(server: HubThread, make: Make) -> None:
    client = make(limits=ClientLimits(batch=2))
    client.subscribe(b"a")
    assert client.publish_many([(b"a", b"%d" % number) for number in range(9)]) == 9
    assert [client.receive(10).payload for _ in range(9)] == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("packet", [b"SUB a", b"MSG a", b"nonsense"])
def test_peeking_at_a_packet_that_breaks_the_protocol(fake: FakeHub, client: MakeClient, packet: bytes) -> None:
    wary, peer = greeted(fake, client)
    peer.send(packet)
    with pytest.raises(PeerError):
        wary.receive(10, flags=socket.MSG_PEEK)
