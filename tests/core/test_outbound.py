"""What a hub sends to a client that is slow, stops reading, or leaves; and to a socket that takes no more."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest
from accounting import big, numbers
from flooding import slow
from support import Connect, MakeHub, both_ways, eventually, own_key

from sbuslib import Hub, Limits
from sbuslib.core import send_watcher
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
