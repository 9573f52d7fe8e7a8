"""From the packets of one receive call to their receivers, and turns that are cut short."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import gevent
import pytest
from accounting import connection_of, opened
from support import Connect, MakeHub, Peer, both_ways, eventually
from worlds import key_of_link

from sbuslib import Hub, Limits
from sbuslib.core import batch_routing, routing
from sbuslib.core.connection import Connection
from sbuslib.core.protocols import Routes
from sbuslib.core.publisher import FEW, PLANNED, Publisher, Undelivered, by_receiver
from sbuslib.limits import PACKET_BYTES
from sbuslib.reasons import Reason
from sbuslib.wire.batches import pack
from sbuslib.wire.packets import check_key


@both_ways
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
    """Known and unknown keys, and packets that are no messages, each in a round of its own."""
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
    assert hub.statistics().published == len(sent)


def test_two_packets_of_one_length_that_come_together(hub: Hub, connect: Connect) -> None:
    """A single one goes another way."""
    inbox, publisher = connect(), connect()
    inbox.subscribe(b"k")
    for number in range(4):
        publisher.send(b"MSG k\0a%d" % number, b"MSG k\0b%d" % number)
        assert [inbox.receive() for _ in range(2)] == [b"MSG k\0a%d" % number, b"MSG k\0b%d" % number]


def test_a_client_that_subscribes_between_single_packets(hub: Hub, connect: Connect) -> None:
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
    assert hub.statistics().published == 41
    assert hub.statistics().violations == ({"unknown verb": 1} if ending else {})


def test_what_follows_a_message_of_a_new_sender_waits_until_all_have_it(make_hub: MakeHub, connect: Connect) -> None:
    make_hub(limits=Limits(turn_deliveries=5, turn_time=1e6))
    receivers = [connect() for _ in range(FEW + 1)]
    for receiver in receivers:
        receiver.subscribe(b"all")
    link = connect()
    link.send(b"CMSG interest/on")
    link.barrier()
    key = key_of_link(link)
    link.send(b"CMSG from\0%b/!/cred/1/2/3\0MSG all\x001" % key, b"MSG all\x002", b"MSG all\x003")
    for receiver in receivers:
        assert [receiver.receive() for _ in range(3)] == [b"MSG all\x001", b"MSG all\x002", b"MSG all\x003"]


def test_commands_are_acted_on_until_the_time_of_a_turn_is_over(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    take_turn = Connection.take_turn

    def count(connection: Connection) -> bool:
        nonlocal most
        before = connection.commands
        goes_on = take_turn(connection)
        most = max(most, connection.commands - before)
        return goes_on

    monkeypatch.setattr(Connection, "take_turn", count)
    make_hub(limits=Limits(turn_time=1e-9))
    peer = connect()
    peer.send(*[b"SUB k"] * 20)
    peer.barrier()
    assert most < 5, "the clock is first read after some"


def publish(publisher: Peer, how: str, pairs: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Publish messages as a batch or not, and return when the hub has acted on them. Returns a packet for each."""
    packets = [b"MSG %b\0%b" % pair for pair in pairs]
    batches = [packet for packet, _ in pack(pairs, check_key, PACKET_BYTES)]
    publisher.send(b"CMSG batch/on", *(batches if how == "batch" else packets))
    publisher.barrier()
    return packets


@pytest.mark.parametrize("how", ["batch", "packets", "one packet"])
def test_a_turn_ends_in_time_between_two_receivers_and_loses_nothing(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Others have their turns in between."""
    turns = 0
    take_turn = Connection.take_turn

    def count(connection: Connection) -> bool:
        nonlocal turns
        turns += connection.number == 1
        return take_turn(connection)

    monkeypatch.setattr(Connection, "take_turn", count)
    hub = make_hub(limits=Limits(turn_time=1e-9))
    publisher = connect()
    wanted, some = {}, random.Random(7)
    for number in range(80):
        peer = connect()
        keys = some.sample(range(16), 8)
        peer.subscribe(b"all", *(b"k%d" % key for key in keys))
        if number % 2:
            peer.send(b"CMSG batch/on")
            peer.barrier()
        wanted[peer] = keys
    before = turns
    chosen = [some.randrange(16) for _ in range(40)] if how != "one packet" else []
    pairs = [(b"k%d" % key, b"%d" % place) for place, key in enumerate(chosen)] + [(b"all", b"end")]
    packets = publish(publisher, how, pairs)
    assert turns - before >= len(wanted)
    for peer, keys in wanted.items():
        expected = [packet for packet, key in zip(packets, chosen, strict=False) if key in keys] + packets[-1:]
        assert opened(peer.pending()) == expected
    assert hub.statistics().lost == {}


@pytest.mark.parametrize("how", ["batch", "packets"])
def test_no_more_is_planned_at_once_than_a_few_turns_may_deliver(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Sixty keys that each go to others of thirty receivers: all get all of theirs, planned piece by piece."""
    planned: list[int] = []

    def count(routes: Iterable[tuple[Iterable[int], Routes]]) -> object:
        routes = [*routes]
        planned.append(sum(len(receivers) for _, receivers in routes))
        return by_receiver(routes)

    for module in (routing, batch_routing):
        monkeypatch.setattr(module, "by_receiver", count)
    hub = make_hub(limits=Limits(turn_deliveries=50, turn_time=1e6))
    publisher, some = connect(), random.Random(7)
    wanted = {connect(): some.sample(range(60), 30) for _ in range(30)}
    for peer, keys in wanted.items():
        peer.subscribe(*(b"k%d" % key for key in keys))
    packets = publish(publisher, how, [(b"k%d" % key, b"%d" % key) for key in range(60)])
    assert 50 < max(planned) <= PLANNED * 50
    for peer, keys in wanted.items():
        assert peer.pending() == [packets[key] for key in sorted(keys)]
    assert hub.statistics().lost == {}


@pytest.mark.parametrize("how", ["kicked", "stopped"])
def test_what_some_receivers_have_got_reaches_the_others_when_its_publisher_leaves(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It leaves between two turns. Until the others have it, it counts as a connection of its user."""
    hub = make_hub(limits=Limits(turn_deliveries=2))
    receivers = [connect() for _ in range(80)]
    for receiver in receivers:
        receiver.subscribe(b"all")
    peer = connect()
    outbound = connection_of(hub, peer).outbound
    connections = outbound.account.connections

    def hand_on_and_leave(publisher: Publisher, messages: Undelivered[Any]) -> bool:
        is_cut = hand_on(publisher, messages)
        if how == "stopped":
            gevent.spawn(hub.stop, 0)
        elif not outbound.closed:
            hub.context.running.kick_later(outbound, Reason.UNKNOWN_VERB)
        elif is_cut:
            assert outbound.account.connections == connections
        return is_cut

    hand_on = Publisher.hand_on
    monkeypatch.setattr(Publisher, "hand_on", hand_on_and_leave)
    peer.publish(b"all", b"1")
    assert [receiver.receive() for receiver in receivers] == [b"MSG all\x001"] * 80
    if how == "kicked":
        eventually(lambda: outbound.account.connections == connections - 1)
    assert hub.statistics().lost == {}
