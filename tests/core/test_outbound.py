"""Sending to a client that is slow, stops reading, or leaves, with small and full send buffers of the kernel."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Callable

import pytest
from accounting import big, connection_of, numbers, settle
from flooding import slow
from support import Bus, Connect, ConnectAs, MakeHub, both_ways, eventually, own_key

from sbuslib import Hub, Limits
from sbuslib.core import send_watcher
from sbuslib.core.connection import Connection
from sbuslib.kernel.packet_writer import PacketWriter


def test_unread_answers_pile_up_to_the_limit(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(limits=Limits(queued_answers=10))
    peer, other = connect(), connect()
    with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
        peer.send(*[b"CMSG hub/features"] * 100_000)
    eventually(lambda: hub.statistics().violations == {"too many unread answers": 1})
    other.barrier()


@both_ways
def test_a_slow_receiver_with_senders(hub: Hub, connect: Connect) -> None:
    slow, publisher = connect(), connect()
    slow.send(b"CMSG senders/on")
    slow.subscribe(b"k")
    for number in range(1_000):
        publisher.publish(b"k", b"%05d" % number + bytes(1_500))
    publisher.barrier()
    assert hub.statistics().waiting > 0
    wrapper = b"CMSG from\0" + own_key() + b"\0"
    assert slow.pending() == [wrapper + b"MSG k\0%05d" % number + bytes(1_500) for number in range(1_000)]


def test_messages_of_a_client_that_leaves_while_others_send_to_it_are_delivered(hub: Hub, connect: Connect) -> None:
    """Sending to a client that has closed gives EPIPE; the packets that it sent can still be read."""
    witness, leaver = connect(), connect()
    witness.subscribe(b"k")
    leaver.subscribe(b"other")
    for number in range(100):
        leaver.publish(b"k", b"%d" % number)
    leaver.close()
    for _ in range(10):
        hub.publish(b"other", b"x")  # before the loop reads what the leaver sent
    eventually(lambda: hub.statistics().clients == 1)
    assert witness.pending() == [b"MSG k\0%d" % number for number in range(100)]
    assert hub.statistics().lost == {"outage": 10}


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.ENOMEM])
def test_a_kernel_without_memory_loses_nothing(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(send_watcher, "SEND_RETRY", 0.001)
    hub = make_hub()
    receiver, publisher = connect(), connect()
    receiver.subscribe(b"k")
    rng = random.Random(7)
    failures = [0]

    def failing(original: Callable[..., int]) -> Callable[..., int]:
        def send(*arguments: object) -> int:
            if rng.random() < 0.5:
                failures[0] += 1
                raise OSError(code, "no memory")
            return original(*arguments)

        return send

    with monkeypatch.context() as patched:
        patched.setattr(type(hub.context.running.buffer), "send", failing(type(hub.context.running.buffer).send))
        patched.setattr(PacketWriter, "send", failing(PacketWriter.send))
        for number in range(300):
            publisher.publish(b"k", b"%d" % number)
        publisher.barrier()
        got = receiver.pending()
    assert got == [b"MSG k\0%d" % number for number in range(300)]
    assert failures[0] > 10


def test_a_receiver_that_discards_is_sent_the_next_message_as_soon_as_its_kernel_takes_one(
    hub: Hub, connect: Connect
) -> None:
    """One loss is no reason for the next: nothing waits for the receiver."""
    reader = connect()
    slow(hub, reader, b"blocking/soft/discard")
    for number in range(3):
        hub.publish(b"k", big(number))
    assert numbers([reader.receive()]) == [0]  # which lets no event loop run
    hub.publish(b"k", big(3))
    assert numbers([reader.receive()]) == [3]
    assert hub.statistics().lost == {"discard": 2}


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
