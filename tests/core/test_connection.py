"""One client of a hub: when it is read from, and its end. What the wire scripts tell of is not told again."""

from __future__ import annotations

import errno

import gevent
import pytest
from support import LONGEST, Connect, MakeHub, both_ways, eventually

from sbuslib import Hub, Limits
from sbuslib.limits import PACKET_BYTES


@pytest.mark.parametrize("limits", [Limits(batch=4), Limits(turn_time=1e-9)], ids=["batch", "time"])
def test_one_client_does_not_keep_the_others_waiting(make_hub: MakeHub, connect: Connect, limits: Limits) -> None:
    """A turn takes one batch, or less if keys take long to look up; a client that sent more waits for its next turn."""
    make_hub(limits=limits)
    inbox, noisy, quiet = connect(), connect(), connect()
    inbox.subscribe(b"")
    for number in range(40):
        noisy.publish(b"noisy/%d" % number)
    quiet.publish(b"quiet")
    got = [inbox.receive() for _ in range(41)]
    assert got.index(b"MSG quiet\0") <= 12
    got.remove(b"MSG quiet\0")
    assert got == [b"MSG noisy/%d\0" % number for number in range(40)]


@both_ways
@pytest.mark.parametrize("wrong", [b"MSG k", b"MSG kk", b"MSG kkkkkkkkkk"])
@pytest.mark.parametrize("alike", [True, False])
def test_bytes_left_from_a_longer_packet_complete_no_shorter_one(
    hub: Hub, connect: Connect, wrong: bytes, alike: bool
) -> None:
    """A batch is looked at as a whole, in memory that was used before."""
    inbox, publisher = connect(), connect()
    inbox.subscribe(b"")
    before = [b"MSG kkkkkkkkkk\0" + bytes(100)] * 40
    good = [b"MSG k%b\0good" % (b"" if alike else b"k" * (number % 3)) for number in range(20)]
    publisher.send(*before)
    publisher.send(*good)
    publisher.barrier()
    publisher.send(*good, wrong, *good)
    assert [inbox.receive() for _ in range(80)] == before + good + good
    assert publisher.is_disconnected()
    assert inbox.pending() == []
    assert hub.statistics().violations == {"message without NUL": 1}


def test_a_publisher_that_is_held_in_the_middle_of_a_batch_goes_on_with_it(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(limits=Limits(turn_deliveries=2))
    slow, publisher = connect(), connect()
    slow.send(b"CMSG blocking/soft/block")
    slow.subscribe(b"")
    packets = [b"MSG k\0%04d" % number + bytes(30_000) for number in range(60)]
    sending = gevent.spawn(publisher.send, *packets)
    eventually(lambda: hub.statistics().waiting > 0)
    assert [slow.receive() for _ in packets] == packets
    sending.get(timeout=10)


@pytest.mark.parametrize("length", [PACKET_BYTES + 1, LONGEST, LONGEST + 1, LONGEST + 10_000])
@pytest.mark.parametrize("verb", [b"MSG k\0", b"CMSG k\0", b"SUB k\0", b"\0"])
def test_a_packet_that_is_too_long(hub: Hub, connect: Connect, length: int, verb: bytes) -> None:
    witness, offender = connect(), connect()
    witness.subscribe(b"k")
    offender.send(b"MSG k\0before", verb.ljust(length, b"x"), b"MSG k\0after")
    assert offender.is_disconnected()
    assert witness.pending() == [b"MSG k\0before"]
    assert hub.statistics().violations == {"packet too long": 1}


@both_ways
def test_messages_of_a_client_that_leaves_without_reading_are_delivered(hub: Hub, connect: Connect) -> None:
    """Closing with unread input makes the kernel report ECONNRESET ahead of what was sent."""
    witness = connect()
    witness.subscribe(b"k")
    for _ in range(20):
        leaver = connect()
        leaver.subscribe(b"k")
        hub.publish(b"k", b"unread")
        for number in range(30):
            leaver.publish(b"k", b"%d" % number)
        leaver.close()
        eventually(lambda: hub.statistics().clients == 1)
        got = witness.pending()
        assert got == [b"MSG k\0unread", *(b"MSG k\0%d" % number for number in range(30))]
    assert hub.statistics().violations == {}


def test_an_error_of_receive_ends_the_connection(hub: Hub, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, other = connect(), connect()
    other.barrier()
    peer.barrier()

    def fail(*arguments: object) -> list[int]:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(type(hub.context.running.buffer), "receive", fail)
        peer.publish(b"k")
        assert peer.is_disconnected()
    other.barrier()
