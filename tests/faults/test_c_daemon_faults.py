"""Four faults of the C daemon, which this hub does not have."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest
from support import Peer, eventually, own_key

from sbuslib import Hub
from sbuslib.errors import KeyFormatError

Connect = Callable[..., Peer]


@pytest.mark.parametrize("pattern", [b"", b"!/", b"*/", b"!/*/*/*/*/x"])
def test_fault_1_some_patterns_received_other_peoples_secrets(hub: Hub, connect: Connect, pattern: bytes) -> None:
    listener, holder, publisher = connect(), connect(), connect()
    secret = own_key() + b"/x"
    holder.subscribe(secret)
    listener.send(b"SUB " + pattern)
    publisher.publish(secret, b"secret")
    publisher.barrier()
    assert holder.receive() == b"MSG %b\0secret" % secret
    if pattern.startswith(b"!"):
        assert listener.is_disconnected()
        with pytest.raises(KeyFormatError):
            hub.subscribe(pattern)
    else:
        assert listener.pending() == []
        listener.publish(b"a/b", b"plain")
        assert listener.receive() == b"MSG a/b\0plain"  # so the pattern was in force


def test_fault_2_own_numeric_credentials_could_not_be_subscribed_to(hub: Hub, connect: Connect) -> None:
    client, publisher = connect(), connect()
    client.send(b"CMSG !/cred/whoami")
    own = client.receive().partition(b"\0")[2]
    assert own == own_key()
    client.subscribe(own + b"/inbox")
    publisher.publish(own + b"/inbox", b"for you")
    assert client.receive() == b"MSG %b/inbox\0for you" % own


def test_fault_3_a_publisher_that_closed_after_sending_lost_what_was_queued(hub: Hub, connect: Connect) -> None:
    """73 of 100 arrived."""
    subscriber = connect()
    subscriber.subscribe(b"k")
    for turn in range(5):
        publisher = connect()
        if turn % 2:
            publisher.send(b"CMSG !/cred/whoami")  # whose answer it never reads
        for number in range(100):
            publisher.publish(b"k", b"%d" % number)
        publisher.close()
        assert [subscriber.receive() for _ in range(100)] == [b"MSG k\0%d" % number for number in range(100)]
    assert subscriber.pending() == []


def test_fault_4_a_subscriber_that_stopped_reading_froze_the_bus(hub: Hub, connect: Connect) -> None:
    """The C daemon froze after 94 messages."""
    stuck, reader, publisher = connect(), connect(), connect()
    stuck.subscribe(b"k")
    reader.subscribe(b"k")
    count = 5_000
    got: list[bytes] = []
    reading = gevent.spawn(lambda: got.extend(reader.receive() for _ in range(count)))
    for number in range(count):
        publisher.publish(b"k", b"%04d" % number + bytes(500))
        if not number % 100:
            eventually(lambda seen=number: len(got) >= seen)  # type: ignore[misc]
    reading.get(timeout=20)
    assert [packet[6:10] for packet in got] == [b"%04d" % number for number in range(count)]
    assert hub.statistics().waiting > 0  # so that it was stuck indeed
    publisher.barrier()
    reader.barrier()
    connect().barrier()
