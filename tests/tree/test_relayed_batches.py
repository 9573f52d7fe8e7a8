"""Batches over the links of a tree."""

from __future__ import annotations

from collections import Counter

import gevent
import msgspec
import pytest
from support import PATIENCE, choose, eventually
from worlds import FAST, World, key_of, key_of_link, received, settle

from sbuslib.limits import PACKET_BYTES
from sbuslib.wire.batches import BATCH, Batch, pack
from sbuslib.wire.packets import check_key

PAIRS = [(b"%b/%d" % ((b"a", b"b")[number % 3 == 0], number % 7), b"x" * (number % 50)) for number in range(500)]


def batch(pairs: list[tuple[bytes, bytes]]) -> bytes:
    ((packet, _),) = pack(pairs, check_key, PACKET_BYTES)
    return packet


@pytest.mark.parametrize("senders", [False, True], ids=["", "senders"])
@pytest.mark.parametrize(("here", "there"), [("right", "left"), ("left", "top"), ("top", "left")])
def test_batches_cross_every_link(world: World, here: str, there: str, senders: bool) -> None:
    world.chain("top", "left")
    world.hub("right")
    world.relay("right", "top")
    everything, some, publisher = world.client(there), world.client(there), world.client(here)
    if senders:
        choose(everything, b"senders/on")
    everything.subscribe(b"")
    some.subscribe(b"b/")
    plain = world.peer(there)
    plain.subscribe(b"a/*")
    settle(everything, some, publisher)
    publisher.publish_many(PAIRS)
    who = key_of(publisher) if senders else None
    got = [everything.receive(timeout=PATIENCE) for _ in PAIRS]
    assert [(message.key, message.payload) for message in got] == PAIRS
    if who is not None:
        assert {message.sender is not None and message.sender.endswith(who[-12:]) for message in got} == {True}
    got = [some.receive(timeout=PATIENCE) for key, _ in PAIRS if key.startswith(b"b")]
    assert [(message.key, message.payload) for message in got] == [pair for pair in PAIRS if pair[0][:1] == b"b"]
    expected = [b"MSG %b\0%b" % pair for pair in PAIRS if pair[0].startswith(b"a")]
    assert [plain.receive() for _ in expected] == expected


def test_messages_that_waited_for_a_master_go_up_in_batches(world: World) -> None:
    world.hub("left", limits=msgspec.structs.replace(FAST, prefix_wait=0.001))
    relay = world.relay("left", "top", wait=False)
    one, other = world.client("left"), world.client("left")
    for number in range(0, len(PAIRS), 10):
        (one, other)[number % 20 == 0].publish_many(PAIRS[number : number + 10])
        one.sync()
        other.sync()
    inbox = world.hub("top").subscribe(b"")  # before the link can be there
    got = [inbox.receive(timeout=PATIENCE) for _ in PAIRS]
    assert [(message.key, message.payload) for message in got] == PAIRS
    assert Counter(message.sender for message in got).most_common()[0][1] == len(PAIRS) // 2
    eventually(lambda: relay.parent.up.acknowledged == len(PAIRS))
    statistics = relay.statistics()
    assert (statistics.up, statistics.waiting, statistics.lost, statistics.uncertain) == (len(PAIRS), 0, {}, 0)


@pytest.mark.parametrize(("here", "there"), [("left", "top"), ("top", "left")])
def test_messages_that_wait_for_the_next_turn_keep_their_order(world: World, here: str, there: str) -> None:
    limits = msgspec.structs.replace(FAST, turn_time=1e-9, turn_deliveries=20)
    world.hub("top", limits=limits)
    world.hub("left", limits=limits)
    world.relay("left", "top")
    cursor, told, publisher, other = world.peer(there), world.client(there), world.client(here), world.client(here)
    cursor.subscribe(b"")
    choose(told, b"senders/on")
    told.subscribe(b"")
    settle(told, publisher, other)
    for number in range(0, 200, 50):
        publisher.publish_many(PAIRS[number : number + 50])
        publisher.publish(b"alone", b"%d" % number)
    expected: list[bytes] = []
    for number in range(0, 200, 50):
        expected += [b"MSG %b\0%b" % pair for pair in PAIRS[number : number + 50]] + [b"MSG alone\0%d" % number]
    assert [cursor.receive() for _ in expected] == expected
    assert [b"MSG %b\0%b" % (m.key, m.payload) for m in (told.receive(timeout=PATIENCE) for _ in expected)] == expected


def test_a_wrong_batch_of_a_link_is_dropped_and_counted(world: World) -> None:
    hub = world.hub("top")
    cursor = world.client("top")
    choose(cursor, b"senders/on")
    cursor.subscribe(b"")
    link = world.link("top")
    link.send(b"CMSG batch/on")
    key = key_of_link(link)
    below = key + b"/!/cred/1/2/3"
    good = [(b"k", b"1"), (b"l", b"2")]
    bad = [(b"k", b"3"), (b"!/x", b"4"), (b"!/x", b"5"), (b"l", b"6")]
    wrapper = b"CMSG from\0" + below + b"\0"
    link.send(wrapper + batch(good), wrapper + batch(bad), wrapper + batch(good)[:-1], batch(bad), b"MSG last\0")
    got = [cursor.receive(timeout=PATIENCE) for _ in range(7)]
    assert [(m.key, m.payload) for m in got] == [*good, bad[0], bad[3], bad[0], bad[3], (b"last", b"")]
    assert [m.sender for m in got] == [below] * 4 + [key + b"/!/cred/65534/65534/0"] * 3
    assert hub.tree.dropped.counts == {"reserved token in a key": 4, "malformed batch": 1}
    assert not hub.clients.violations.counts


def test_of_a_batch_from_above_only_keys_that_were_asked_for_are_taken(world: World) -> None:
    world.hub("top")
    world.hub("left")
    relay = world.relay("left", "top", import_=[b"a/"])
    tap = world.hubs["left"].tap(secrets=True)
    cursor = world.client("left")
    cursor.subscribe(b"")
    settle(cursor)
    world.client("top").publish_many(PAIRS)
    expected = [pair for pair in PAIRS if pair[0].startswith(b"a")]
    assert [(m.key, m.payload) for m in (cursor.receive(timeout=PATIENCE) for _ in expected)] == expected
    assert received(cursor) == []
    assert len(tap) == len(expected)
    assert relay.statistics().down == len(expected)


def test_secrets_in_a_batch_from_above_reach_only_their_client(world: World) -> None:
    world.chain("top", "left")
    holder, everybody = world.client("left"), world.peer("left")
    box = key_of(holder) + b"/box"
    everybody.send(b"CMSG batch/on")
    everybody.subscribe(b"")
    holder.subscribe(box)
    settle(holder)
    world.client("top").publish_many([(b"open", b"1"), (box, b"hush"), (b"open", b"2"), (box, b"hush!")])
    assert [holder.receive(timeout=PATIENCE).payload for _ in range(2)] == [b"hush", b"hush!"]
    with gevent.Timeout(PATIENCE):
        got: list[bytes] = []
        while len(got) < 2:
            packet = everybody.receive()
            assert b"hush" not in packet
            got += Batch.parse(packet).plain if packet.startswith(BATCH) else [packet]
    assert got == [b"MSG open\x001", b"MSG open\x002"]
