"""One client of a hub: its turns, its queue, its end. What the wire scripts tell of is not told again."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable
from itertools import pairwise

import gevent
import pytest
from support import LONGEST, Peer, eventually, own_key

from sbuslib import Hub, Limits
from sbuslib.core import outgoing
from sbuslib.kernel.packet_writer import PacketWriter
from sbuslib.limits import PACKET_BYTES

Connect = Callable[..., Peer]
MakeHub = Callable[..., Hub]


def test_runs_to_different_receivers_keep_each_ones_order(hub: Hub, connect: Connect) -> None:
    """Several kinds of key and command within one batch, and receivers that want some of them."""
    everything, evens, own = connect(), connect(), connect()
    everything.subscribe(b"")
    evens.subscribe(b"even", b"both/*")
    packets = []
    for number in range(300):
        key = (b"even", b"odd", b"both/%d" % (number % 3), b"odd", b"even")[number % 5]
        packets.append(b"MSG %b\0%d" % (key, number))
        if number % 7 == 0:
            packets += [b"SUB own/%d" % number, b"MSG own/%d\0" % number, b"CMSG nothing", b"UNSUB own/%d" % number]
    own.send(*packets)
    published = [packet for packet in packets if packet.startswith(b"MSG")]
    assert own.pending() == [packet for packet in published if packet.startswith(b"MSG own")]
    assert everything.pending() == published
    assert evens.pending() == [packet for packet in published if packet[4:8] in (b"even", b"both")]


@pytest.mark.parametrize("last", [b"MSG k", b"SUB other", b"MSG k\0" + bytes(PACKET_BYTES), None])
def test_packets_that_come_one_at_a_time(hub: Hub, connect: Connect, last: bytes | None) -> None:
    """Known and unknown keys, and what is no message: in rounds apart, as from who has little to say."""
    inbox, publisher = connect(), connect()
    inbox.subscribe(b"")
    sent = []
    for number in range(30):
        packet = (b"MSG k\0%d" if number % 3 else b"MSG k%d\0") % number
        if number % 10 == 9:
            publisher.send(b"SUB never/%d" % number)
        else:
            publisher.send(packet)
            sent.append(packet)
        for _ in range(4):
            gevent.idle()
    if last == b"SUB other":
        publisher.send(b"MSG k\0a", last, b"MSG k\0b")  # more than one after all
        sent += [b"MSG k\0a", b"MSG k\0b"]
        publisher.barrier()
    elif last is None:
        publisher.close()
        eventually(lambda: hub.statistics().clients == 1)
    else:
        publisher.send(last)
        assert publisher.is_disconnected()
    assert inbox.pending() == sent
    assert hub.statistics().received == len(sent)


def test_who_subscribes_between_packets_that_come_one_at_a_time(hub: Hub, connect: Connect) -> None:
    """Also to a link, which remembers routes of its own."""
    first, second, link = connect(), connect(), connect()
    first.subscribe(b"k")
    link.send(b"CMSG interest/on")
    link.barrier()
    for number in range(9):
        if number == 4:
            second.subscribe(b"k")
        if number == 7:
            first.send(b"UNSUB k")
            first.barrier()
        link.publish(b"k", b"%d" % number)
        for _ in range(4):
            gevent.idle()
    assert first.pending() == [b"MSG k\0%d" % number for number in range(7)]
    assert second.pending() == [b"MSG k\0%d" % number for number in range(4, 9)]


def test_one_client_does_not_keep_the_others_waiting(make_hub: MakeHub, connect: Connect) -> None:
    """A turn takes one batch; whoever has more to say waits for the next."""
    make_hub(limits=Limits(batch=4))
    inbox, noisy, quiet = connect(), connect(), connect()
    inbox.subscribe(b"")
    for number in range(40):
        noisy.publish(b"noisy", b"%d" % number)
    quiet.publish(b"quiet")
    quiet.barrier()
    noisy.barrier()
    got = inbox.pending()
    assert len(got) == 41
    assert got.index(b"MSG quiet\0") <= 12


@pytest.mark.parametrize("wrong", [b"MSG k", b"MSG kk", b"MSG kkkkkkkkkk"])
@pytest.mark.parametrize("alike", [True, False])
def test_what_is_left_from_longer_packets_completes_no_shorter_one(
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
    assert hub.statistics().breaches == {"message without NUL": 1}


@pytest.mark.parametrize("ending", [b"", b"nonsense"], ids=["closed", "kicked"])
def test_a_turn_that_is_too_much_goes_on_later(make_hub: MakeHub, connect: Connect, ending: bytes) -> None:
    """Everything still goes to everybody, once and in order, whatever comes after it."""
    hub = make_hub(limits=Limits(turn_deliveries=5))
    receivers = [connect() for _ in range(3)]
    for number, receiver in enumerate(receivers):
        receiver.subscribe(b"all", b"own/%d" % number)
    publisher, other = connect(), connect()
    packets = [
        b"MSG all\0%d" % number if number % 4 else b"MSG own/%d\0%d" % (number // 4 % 3, number) for number in range(40)
    ]
    packets[20:20] = [b"SUB all", b"UNSUB all"]
    for packet in packets:
        publisher.send(packet)
    if ending:
        publisher.send(ending)
        publisher.send(b"MSG all\0after the violation")
    else:
        publisher.socket.close()
    other.barrier()
    eventually(lambda: hub.statistics().clients == 4)
    other.publish(b"all", b"last")
    messages = [packet for packet in packets if packet.startswith(b"MSG")]
    for number, receiver in enumerate(receivers):
        mine = [packet for packet in messages if packet.startswith((b"MSG all", b"MSG own/%d" % number))]
        assert [receiver.receive() for _ in range(len(mine) + 1)] == [*mine, b"MSG all\0last"]
    assert hub.statistics().received == 41
    assert hub.statistics().breaches == ({"unknown verb": 1} if ending else {})


def test_a_turn_that_is_too_much_lets_others_go_before_it_goes_on(make_hub: MakeHub, connect: Connect) -> None:
    make_hub(limits=Limits(turn_deliveries=4))
    inbox, noisy, quiet = connect(), connect(), connect()
    inbox.subscribe(b"")
    for number in range(40):
        noisy.publish(b"noisy", b"%d" % number)
    quiet.publish(b"quiet")
    got = [inbox.receive() for _ in range(41)]
    assert got.index(b"MSG quiet\0") <= 12


def test_keys_that_take_long_to_look_up_end_a_turn(make_hub: MakeHub, connect: Connect) -> None:
    make_hub(limits=Limits(turn_time=1e-9))
    inbox, noisy, quiet = connect(), connect(), connect()
    inbox.subscribe(b"")
    for number in range(40):
        noisy.publish(b"noisy/%d" % number)
    quiet.publish(b"quiet")
    got = [inbox.receive() for _ in range(41)]
    assert got.index(b"MSG quiet\0") <= 6
    got.remove(b"MSG quiet\0")
    assert got == [b"MSG noisy/%d\0" % number for number in range(40)]


def test_a_publisher_that_is_held_in_the_middle_of_a_batch_goes_on_with_it(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(limits=Limits(turn_deliveries=2))
    slow, publisher = connect(), connect()
    slow.send(b"CMSG blocking/soft/block")
    slow.subscribe(b"")
    packets = [b"MSG k\0%04d" % number + bytes(30_000) for number in range(60)]
    sending = gevent.spawn(publisher.send, *packets)
    eventually(lambda: hub.statistics().queued > 0)
    assert [slow.receive() for _ in packets] == packets
    sending.get(timeout=10)


def test_a_slow_receiver_gets_everything_in_order(hub: Hub, connect: Connect) -> None:
    slow, publisher = connect(), connect()
    slow.subscribe(b"k")
    for number in range(2_000):
        publisher.publish(b"k", b"%05d" % number + bytes(number % 3_000))
    publisher.barrier()
    assert hub.statistics().queued > 0
    got = slow.pending()
    assert [packet[6:11] for packet in got] == [b"%05d" % number for number in range(2_000)]
    assert all(len(packet) == 11 + number % 3_000 for number, packet in enumerate(got))
    assert hub.statistics().queued == 0


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


def test_a_slow_receiver_with_senders(hub: Hub, connect: Connect) -> None:
    slow, publisher = connect(), connect()
    slow.send(b"CMSG senders/on")
    slow.subscribe(b"k")
    for number in range(1_000):
        publisher.publish(b"k", b"%05d" % number + bytes(1_500))
    publisher.barrier()
    assert hub.statistics().queued > 0
    wrapper = b"CMSG from\0" + own_key() + b"\0"
    assert slow.pending() == [wrapper + b"MSG k\0%05d" % number + bytes(1_500) for number in range(1_000)]


def test_packets_of_full_length_from_several_at_once(hub: Hub, connect: Connect) -> None:
    receiver = connect()
    receiver.subscribe(b"")
    publishers = [connect() for _ in range(3)]
    sent = []
    for round_number in range(3):
        for number, publisher in enumerate(publishers):
            sent.append(b"MSG %d\0" % number + bytes([round_number * 3 + number]) * (PACKET_BYTES - 6))
            publisher.send(sent[-1])
    for publisher in publishers:
        publisher.barrier()
    got = receiver.pending()
    assert sorted(got) == sorted(sent)
    assert {len(packet) for packet in got} == {PACKET_BYTES}


@pytest.mark.parametrize("length", [PACKET_BYTES + 1, LONGEST, LONGEST + 1, LONGEST + 10_000])
@pytest.mark.parametrize("verb", [b"MSG k\0", b"CMSG k\0", b"SUB k\0", b"\0"])
def test_a_packet_that_is_too_long(hub: Hub, connect: Connect, length: int, verb: bytes) -> None:
    witness, offender = connect(), connect()
    witness.subscribe(b"k")
    offender.send(b"MSG k\0before", verb.ljust(length, b"x"), b"MSG k\0after")
    assert offender.is_disconnected()
    assert witness.pending() == [b"MSG k\0before"]
    assert hub.statistics().breaches == {"packet too long": 1}


def test_who_leaves_without_reading_has_been_heard(hub: Hub, connect: Connect) -> None:
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
    assert hub.statistics().breaches == {}


def test_who_leaves_while_others_send_to_it_has_been_heard(hub: Hub, connect: Connect) -> None:
    """Sending to who has closed gives EPIPE; what it had sent is still there to be read."""
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


def test_what_waits_for_who_leaves_is_counted_as_lost(hub: Hub, connect: Connect) -> None:
    slow, publisher = connect(), connect()
    slow.subscribe(b"k")
    for _ in range(1_000):
        publisher.publish(b"k", bytes(2_000))
    publisher.barrier()
    queued = hub.statistics().queued
    assert queued > 0
    slow.close()
    eventually(lambda: hub.statistics().clients == 1)
    statistics = hub.statistics()
    assert (statistics.queued, statistics.lost) == (0, {"outage": queued})
    assert statistics.delivered + queued == statistics.routed == statistics.received


def test_a_client_that_stops_reading_after_shutdown(hub: Hub, connect: Connect) -> None:
    half, witness = connect(), connect()
    witness.subscribe(b"k")
    half.subscribe(b"k")
    half.socket.shutdown(0)  # SHUT_RD: it still sends
    hub.publish(b"k", b"1")
    half.publish(b"k", b"2")
    half.publish(b"k", b"3")
    eventually(lambda: hub.statistics().received == 3)
    assert witness.pending() == [b"MSG k\x001", b"MSG k\x002", b"MSG k\x003"]


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.ENOMEM])
def test_a_kernel_without_memory_loses_nothing(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(outgoing, "SEND_RETRY", 0.001)
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
        patched.setattr(type(hub.context.area), "send", failing(type(hub.context.area).send))
        patched.setattr(PacketWriter, "send", failing(PacketWriter.send))
        for number in range(300):
            publisher.publish(b"k", b"%d" % number)
        publisher.barrier()
        got = receiver.pending()
    assert got == [b"MSG k\0%d" % number for number in range(300)]
    assert failures[0] > 10


def test_an_error_of_receive_ends_the_connection(hub: Hub, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, other = connect(), connect()
    other.barrier()
    peer.barrier()

    def fail(*arguments: object) -> list[int]:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(type(hub.context.area), "receive", fail)
        peer.publish(b"k")
        assert peer.is_disconnected()
    other.barrier()


def test_many_come_and_go(hub: Hub, connect: Connect) -> None:
    for number in range(200):
        with Peer(hub.address) as peer:
            peer.send(b"SUB k", b"MSG k\0%d" % number)
            assert peer.receive() == b"MSG k\0%d" % number
    eventually(lambda: hub.statistics().clients == 0)
    statistics = hub.statistics()
    assert (statistics.clients_total, statistics.patterns, statistics.received) == (200, 0, 200)


def test_many_at_once(hub: Hub, connect: Connect) -> None:
    peers = [connect() for _ in range(300)]
    for peer in peers:
        peer.send(b"SUB k")
    for peer in peers:
        peer.barrier()
    peers[0].publish(b"k", b"x")
    assert {peer.receive() for peer in peers} == {b"MSG k\0x"}
    assert hub.statistics().clients_peak == 300


def test_a_logging_handler_that_fails_does_not_save_the_offender(
    hub: Hub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that tries to yield fails, since it runs in the event loop; the offender must go all the same."""

    class Yielding(logging.Handler):
        calls = 0

        def emit(self, record: logging.LogRecord) -> None:
            Yielding.calls += 1
            gevent.sleep(0)

    handler = Yielding()
    logger = logging.getLogger("sbuslib")
    logger.addHandler(handler)
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda *_: None)  # which would print the traceback
    try:
        witness, offender = connect(), connect()
        witness.subscribe(b"k")
        offender.send(b"MSG k\0x", b"nonsense", b"MSG k\0y")
        assert offender.is_disconnected()
    finally:
        logger.removeHandler(handler)
    assert Yielding.calls == 1
    assert witness.pending() == [b"MSG k\0x"]
    assert hub.statistics().breaches == {"unknown verb": 1}


def test_orders_of_several_publishers_are_each_kept(hub: Hub, connect: Connect) -> None:
    receiver = connect()
    receiver.subscribe(b"")
    publishers = [connect() for _ in range(5)]

    def publish(number: int) -> None:
        for count in range(200):
            publishers[number].publish(b"k%d" % (count % 3), b"%d %d" % (number, count))
            if count % 10 == number:
                gevent.sleep(0)

    gevent.joinall([gevent.spawn(publish, number) for number in range(5)], raise_error=True)
    for publisher in publishers:
        publisher.barrier()
    got = [tuple(map(int, packet.partition(b"\0")[2].split())) for packet in receiver.pending()]
    assert len(got) == 1_000
    for number in range(5):
        counts = [count for who, count in got if who == number]
        assert all(after == before + 1 for before, after in pairwise(counts))
