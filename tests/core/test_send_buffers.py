"""Send buffers in the kernel: small until more is needed, charged, shared out and released."""

from __future__ import annotations

import socket

import pytest
from accounting import connection_of, settle
from support import Bus, Connect, ConnectAs, eventually, own_key

from sbuslib import Hub, Limits
from sbuslib.core.connection import Connection

SMALL = 2 * Limits().idle_send_buffer
FULL = 2 * Limits().send_buffer
LONG = bytes(100_000)


def size(connection: Connection) -> int:
    return connection.outbound.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def charged(hub: Hub, uid: int = 0) -> int:
    return sum(user.buffer_bytes for user in hub.statistics().per_user if user.uid == uid)


def test_a_client_that_keeps_up_with_short_messages_keeps_the_small_buffer(bus: Bus, connect: Connect) -> None:
    hub = bus()
    reader, publisher = connect(), connect()
    reader.subscribe(b"k")
    for number in range(100):
        publisher.publish(b"k", b"%d" % number)
        assert reader.receive() == b"MSG k\0%d" % number
    assert [size(connection) for connection in hub.clients.connections.values()] == [SMALL, SMALL]
    assert charged(hub) == 0


def test_a_client_that_falls_behind_gets_the_full_buffer(bus: Bus, connect: Connect) -> None:
    hub = bus()
    reader, publisher = connect(), connect()
    reader.subscribe(b"k")
    receiving = connection_of(hub, reader)
    for number in range(200):
        publisher.publish(b"k", b"%d" % number)
    publisher.barrier()
    assert receiving.outbound.queued == 0  # the full one takes them all
    assert (size(receiving), charged(hub)) == (FULL, FULL)
    assert reader.pending() == [b"MSG k\0%d" % number for number in range(200)]
    reader.close()
    eventually(lambda: not charged(hub))


@pytest.mark.parametrize("senders", [False, True])
@pytest.mark.parametrize("embedder", [False, True])
def test_a_long_packet_goes_at_once(bus: Bus, connect: Connect, senders: bool, embedder: bool) -> None:
    hub = bus()
    reader, publisher = connect(), connect()
    reader.subscribe(b"k")
    if senders:
        reader.send(b"CMSG senders/on")
        reader.barrier()
    receiving = connection_of(hub, reader)
    if embedder:
        hub.publish(b"k", LONG)
    else:
        publisher.publish(b"k", LONG)
    wrapper = b"CMSG from\0" + own_key() + b"\0" if senders else b""
    assert reader.receive() == wrapper + b"MSG k\0" + LONG
    assert (size(receiving), receiving.outbound.lost) == (FULL, {})


def test_a_client_that_fell_behind_before_a_long_packet_came(bus: Bus, connect: Connect) -> None:
    """It is taken from the queue, where the small buffer would not do either."""
    hub = bus({}, send_buffers=2 * FULL)
    filler, reader, publisher = connect(), connect(), connect()
    filler.subscribe(b"f")
    reader.subscribe(b"k")
    receiving = connection_of(hub, reader)
    publisher.publish(b"f", LONG)  # has all of the share
    for number in range(100):
        publisher.publish(b"k", b"%d" % number)
    publisher.barrier()
    assert (size(receiving), receiving.outbound.queued > 0) == (SMALL, True)
    publisher.publish(b"k", LONG)
    publisher.barrier()
    filler.close()
    eventually(lambda: not charged(hub))
    assert [reader.receive() for _ in range(101)] == [*(b"MSG k\0%d" % n for n in range(100)), b"MSG k\0" + LONG]
    assert size(receiving) == FULL


def test_a_share_that_is_used_up(bus: Bus, connect_as: ConnectAs) -> None:
    """Of room for eight, a first user has four; a long message for its fifth is lost, but other users have theirs."""
    hub = bus({"mode": 0o777}, send_buffers=8 * FULL)
    publisher = connect_as(0)
    readers = [connect_as(1001) for _ in range(5)]
    other = connect_as(1002)
    for reader in readers:
        reader.subscribe(b"k")
    receiving = [connection_of(hub, reader) for reader in readers]
    publisher.publish(b"k", LONG)
    publisher.barrier()
    settle(hub)
    assert charged(hub, 1001) == 4 * FULL
    assert sorted(map(size, receiving)) == [SMALL, FULL, FULL, FULL, FULL]
    assert [connection.outbound.lost for connection in receiving].count({"quota": 1}) == 1
    (short,) = (connection for connection in receiving if size(connection) == SMALL)
    publisher.publish(b"k", b"x")
    publisher.barrier()
    assert readers[receiving.index(short)].receive() == b"MSG k\0x"
    other.subscribe(b"j")
    other.publish(b"j", bytes(20_000))
    assert other.receive() == b"MSG j\0" + bytes(20_000)
    assert connection_of(hub, other).outbound.lost == {}


def test_a_link_keeps_its_full_buffer(bus: Bus, connect: Connect) -> None:
    """Whatever the share: what is told to the child must not be lost."""
    hub = bus({}, send_buffers=1)
    link, other = connect(), connect()
    link.send(b"CMSG interest/on")
    linked = connection_of(hub, link)
    assert linked.outbound.is_link
    assert (size(linked), charged(hub)) == (FULL, FULL)
    receiving = connection_of(hub, other)
    assert not receiving.outbound.grow()
    assert (size(linked), size(receiving)) == (FULL, SMALL)


def test_a_long_answer_is_sent_even_when_the_share_is_used_up(bus: Bus, connect: Connect) -> None:
    bus({}, send_buffers=1)
    peers = [connect() for _ in range(100)]
    for peer in peers:
        peer.barrier()
    peers[0].send(b"CMSG hub/statistics")
    assert len(peers[0].receive()) > SMALL
