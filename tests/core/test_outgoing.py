"""What a hub sends to a client that is slow, stops reading, or leaves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Peer, both_ways, eventually, own_key

from sbuslib import Hub, Limits

Connect = Callable[..., Peer]
MakeHub = Callable[..., Hub]


def test_an_idle_client_queues_up_to_the_limit(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(limits=Limits(queued_packets=10))
    slow = connect()
    slow.subscribe(b"a")
    publisher = connect()
    for number in range(3_000):
        publisher.publish(b"a", b"%06d" % number + bytes(1_000))
    publisher.barrier()
    statistics = hub.statistics()
    assert statistics.waiting == 10
    lost = statistics.lost["overflow"]
    assert statistics.delivered + statistics.waiting + lost == statistics.published == 3_000
    assert lost > 0
    got = [packet[6:12] for packet in slow.pending()]
    assert got == sorted(got)  # the oldest stayed, in order
    assert len(got) == 3_000 - lost
    slow.publish(b"a", b"later")
    assert slow.receive() == b"MSG a\0later"


def test_unread_answers_pile_up_to_the_limit(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(limits=Limits(queued_answers=10))
    peer, other = connect(), connect()
    with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
        peer.send(*[b"CMSG hub/features"] * 100_000)
    eventually(lambda: hub.statistics().violations == {"too many unread answers": 1})
    other.barrier()


def test_a_slow_receiver_that_asks_is_answered_in_its_place(hub: Hub, connect: Connect) -> None:
    slow, publisher = connect(), connect()
    slow.subscribe(b"k")
    for number in range(500):
        publisher.publish(b"k", b"%05d" % number + bytes(2_000))
    publisher.barrier()
    slow.send(b"CMSG hub/sync\0token")
    slow.barrier()
    publisher.publish(b"k", b"after")
    publisher.barrier()
    packets = slow.pending()
    assert packets.index(b"CMSG hub/sync\0token\0local") == 500
    assert packets[-1] == b"MSG k\0after"
    assert len(packets) == 502


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


def test_a_client_that_stops_reading_after_shutdown(hub: Hub, connect: Connect) -> None:
    half, witness = connect(), connect()
    witness.subscribe(b"k")
    half.subscribe(b"k")
    half.socket.shutdown(0)  # SHUT_RD: it still sends
    hub.publish(b"k", b"1")
    half.publish(b"k", b"2")
    half.publish(b"k", b"3")
    eventually(lambda: hub.statistics().published == 3)
    assert witness.pending() == [b"MSG k\x001", b"MSG k\x002", b"MSG k\x003"]
