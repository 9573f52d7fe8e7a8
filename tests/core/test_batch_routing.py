"""Batches through a hub: which receiver gets which messages, in what form, and how they are counted."""

from __future__ import annotations

import struct

import pytest
from accounting import balance, big, connection_of, narrow, numbers, opened, settle
from support import Bus, Connect, MakeHub, Peer, own_key

from sbuslib import Hub, Limits
from sbuslib.limits import BATCH_EXPANDED, BATCH_MESSAGES, PACKET_BYTES
from sbuslib.wire.batches import BATCH, Batch, pack
from sbuslib.wire.packets import check_key

Pairs = list[tuple[bytes, bytes]]


def batch(pairs: Pairs) -> bytes:
    ((packet, count),) = pack(pairs, check_key, PACKET_BYTES)
    assert count == len(pairs) > 1
    return packet


def plain(pairs: Pairs) -> list[bytes]:
    return [b"MSG %b\0%b" % pair for pair in pairs]


def batching(peer: Peer, *patterns: bytes) -> Peer:
    peer.send(b"CMSG batch/on")
    peer.subscribe(*patterns)
    return peer


ONE_KEY: Pairs = [(b"a/1", b"%d" % number) for number in range(100)]
MANY_KEYS: Pairs = [(b"%b/%d" % ((b"a", b"b")[number % 3 == 0], number % 7), b"x" * number) for number in range(300)]


@pytest.mark.parametrize("pairs", [ONE_KEY, MANY_KEYS], ids=["one key", "many keys"])
def test_each_receiver_gets_a_batch_in_the_form_that_it_asked_for(
    make_hub: MakeHub, connect: Connect, pairs: Pairs
) -> None:
    hub = make_hub(limits=Limits(turn_time=1e6))  # on a busy machine, looking up the keys may take longer than a turn
    packet = batch(pairs)
    everything, also, some, publisher = [batching(connect(), pattern) for pattern in (b"", b"*/*", b"a/", b"never")]
    plainly, plainly_some = connect(), connect()
    plainly.subscribe(b"")
    plainly_some.subscribe(b"b/*", b"a/1")
    inbox = hub.subscribe(b"")
    publisher.send(packet, b"MSG last\0")
    publisher.barrier()
    assert everything.pending() == [packet, b"MSG last\0"]
    assert opened(also.pending()) == plain(pairs)
    assert opened(some.pending()) == plain([pair for pair in pairs if pair[0].startswith(b"a")])
    assert plainly.pending() == [*plain(pairs), b"MSG last\0"]
    assert plainly_some.pending() == plain([pair for pair in pairs if pair[0][:1] == b"b" or pair[0] == b"a/1"])
    got = [inbox.receive(timeout=0) for _ in range(len(pairs) + 1)]
    assert [(message.key, message.payload) for message in got[:-1]] == pairs
    assert {message.sender for message in got} == {own_key()}
    statistics = hub.statistics()
    assert statistics.published == len(pairs) + 1
    balance(hub)


def test_batch_from_a_client_without_batch_on_is_ignored(hub: Hub, connect: Connect) -> None:
    reader, publisher = connect(), connect()
    reader.subscribe(b"")
    publisher.send(batch(ONE_KEY), b"CMSG batch/on", b"CMSG batch/off", batch(ONE_KEY))
    publisher.barrier()
    assert reader.pending() == []
    assert hub.statistics().ignored == 2


def test_messages_of_one_turn_are_coalesced(bus: Bus, connect: Connect) -> None:
    hub = bus()
    readers = [batching(connect(), b"a/") for _ in range(2)]
    told = batching(connect(), b"b/")
    told.send(b"CMSG senders/on")
    told.barrier()
    publisher = connect()
    pairs = MANY_KEYS[:60]
    publisher.send(*plain(pairs))
    publisher.barrier()
    for reader in readers:
        got = reader.pending()
        assert len(got) < 40
        assert opened(got) == plain([pair for pair in pairs if pair[0].startswith(b"a")])
    wrapper = b"CMSG from\0" + own_key() + b"\0"
    got = told.pending()
    assert all(packet.startswith(wrapper) for packet in got)
    assert opened([packet.removeprefix(wrapper) for packet in got]) == plain(
        [pair for pair in pairs if pair[0].startswith(b"b")]
    )
    balance(hub)


def test_few_or_long_messages_are_not_put_together(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbuslib.core.messages.COALESCED", 4)
    monkeypatch.setattr("sbuslib.core.messages.COALESCED_BYTES", 1_000)
    make_hub()
    reader, publisher = batching(connect(), b""), connect()
    few, long = [b"MSG k\0%d" % number for number in range(3)], [b"MSG k\0" + bytes(400)] * 10
    publisher.send(*few)
    publisher.barrier()
    publisher.send(*long)
    publisher.barrier()
    assert reader.pending() == few + long


def test_senders_and_echo_hold_for_batches(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(limits=Limits(turn_time=60.0))  # a turn that ends early takes the batch apart
    told, own = batching(connect(), b""), batching(connect(), b"")
    told.send(b"CMSG senders/on")
    told.barrier()
    own.send(b"CMSG echo/off", batch(ONE_KEY), b"CMSG echo/on", batch(MANY_KEYS))
    assert own.pending() == [batch(MANY_KEYS)]
    wrapper = b"CMSG from\0" + own_key() + b"\0"
    assert told.pending() == [wrapper + batch(ONE_KEY), wrapper + batch(MANY_KEYS)]
    balance(hub)


def test_secrets_in_a_batch_reach_their_holder_alone(hub: Hub, connect: Connect) -> None:
    secret = own_key() + b"/box"
    holder, everybody, publisher = batching(connect(), secret), batching(connect(), b""), batching(connect(), b"never")
    tap, secret_tap = hub.tap(), hub.tap(secrets=True)
    pairs = [(b"open", b"1"), (secret, b"hush"), (b"open", b"2"), (secret, b"hush!")]
    publisher.send(batch(pairs))
    publisher.barrier()
    assert opened(holder.pending()) == plain([pairs[1], pairs[3]])
    got = everybody.pending()
    assert opened(got) == plain([pairs[0], pairs[2]])
    assert not any(b"hush" in packet or b"cred" in packet for packet in got)
    assert len(tap) == 2
    assert len(secret_tap) == 4


def test_a_key_without_a_message_reaches_no_receiver(hub: Hub, connect: Connect) -> None:
    everybody, publisher = batching(connect(), b"open"), batching(connect(), b"never")
    unused = BATCH + struct.pack("<BIIIIII", 1, 2, 2, 4, 6, 1, 1) + b"\0\0" + b"open" + b"unused" + b"12"
    publisher.send(unused, unused)  # of which the second finds both keys remembered
    publisher.barrier()
    got = everybody.pending()
    assert opened(got) == [b"MSG open\x001", b"MSG open\x002"] * 2
    assert not any(b"unused" in packet for packet in got)


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (batch(ONE_KEY)[:-1], "malformed batch"),
        (BATCH, "malformed batch"),
        (batch([(b"k" * 400, b"")] * 4_000)[:28] + bytes(500_000)[: PACKET_BYTES - 28], "malformed batch"),
        (batch([(b"a", b"1"), (b"!/x", b"2")]), "reserved token in a key"),
        (batch([(b"a", b"1"), (b"!/cred/1/2", b"2")]), "truncated secret key"),
        (BATCH + struct.pack("<BIIIIII", 1, 2, 2, 1, 3, 1, 1) + b"\0\0" + b"a!/x12", "reserved token in a key"),
        (
            BATCH + struct.pack("<BIII", 1, 4_000, 1, 1_000) + bytes(16_000) + b"k" * 1_000,
            "batch of too much",
        ),
    ],
    ids=["short", "empty", "spoilt", "reserved", "truncated", "not used", "too much"],
)
def test_a_malformed_batch_is_refused_whole(hub: Hub, connect: Connect, packet: bytes, reason: str) -> None:
    reader, publisher = batching(connect(), b""), batching(connect(), b"never")
    publisher.send(b"MSG a\0before", packet, b"MSG a\0after")
    assert publisher.is_disconnected()
    assert reader.pending() == [b"MSG a\0before"]
    assert hub.statistics().violations == {reason: 1}


def test_authorize_is_asked_about_each_key_before_any_of_it_is_delivered(make_hub: MakeHub, connect: Connect) -> None:
    asked: list[bytes] = []

    def authorize(credentials: object, verb: str, key: bytes) -> bool:
        asked.append(key)
        return b"no" not in key

    make_hub(authorize=authorize)
    reader, publisher, other = batching(connect(), b""), batching(connect(), b"x"), batching(connect(), b"x")
    asked.clear()
    publisher.send(batch(ONE_KEY), batch(ONE_KEY), batch(MANY_KEYS))
    publisher.barrier()
    assert len(asked) == len(set(asked)) == len({key for key, _ in ONE_KEY + MANY_KEYS})
    assert opened(reader.pending()) == plain(ONE_KEY + ONE_KEY + MANY_KEYS)
    other.send(batch([(b"a", b"1"), (b"no", b"2")]), b"MSG a\0after")
    assert other.is_disconnected()
    assert reader.pending() == []


def test_a_batch_that_is_too_much_for_one_turn_goes_on_in_the_next(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(limits=Limits(turn_deliveries=50))
    reader, some, publisher = connect(), batching(connect(), b"a/"), batching(connect(), b"never")
    reader.subscribe(b"")
    inbox = hub.subscribe(b"")
    publisher.send(batch(MANY_KEYS), b"MSG a/after\0", batch(ONE_KEY), b"SUB more", b"MSG more\0", batch(MANY_KEYS))
    expected = [*plain(MANY_KEYS), b"MSG a/after\0", *plain(ONE_KEY), b"MSG more\0", *plain(MANY_KEYS)]
    assert publisher.pending() == [b"MSG more\0"]
    assert reader.pending() == expected
    assert opened(some.pending()) == [packet for packet in expected if packet.startswith(b"MSG a")]
    assert len(inbox) == len(expected)
    balance(hub)


# -- flood control ----------------------------------------------------------------------------------


def numbered(count: int, start: int = 0) -> Pairs:
    return [(b"k", big(number)) for number in range(start, start + count)]


@pytest.mark.parametrize("hard", [b"", b"blocking/hard/block"], ids=["soft", "hard"])
def test_block_holds_the_publisher_of_a_batch(bus: Bus, connect: Connect, hard: bytes) -> None:
    hub = bus(queued_packets=8 if hard else 100, batch=2)
    reader, publisher = batching(connect(), b"k"), batching(connect(), b"never")
    receiving = narrow(hub, reader)
    reader.send(b"CMSG " + (hard or b"blocking/soft/block"))
    reader.barrier()
    publisher.send(b"MSG k\0" + big(0), *[batch(numbered(6, start)) for start in range(1, 61, 6)])
    settle(hub)
    assert receiving.outbound.held
    assert receiving.outbound.queued < 30
    assert [number for _ in range(70) for number in numbers(opened(reader.pending()))] == list(range(61))
    publisher.barrier()
    assert receiving.outbound.lost == {}
    balance(hub)


def test_packets_made_of_a_batch_with_a_long_key_are_not_too_long(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_bytes=2 * BATCH_EXPANDED)
    reader, publisher = connect(), batching(connect(), b"never")
    reader.subscribe(b"")
    receiving = connection_of(hub, reader)
    longest = batch([(b"k" * 393, b"x")] * BATCH_MESSAGES)
    assert Batch.parse(longest).expanded > BATCH_EXPANDED * 0.99
    for _ in range(8):
        publisher.send(longest)
    publisher.barrier()
    assert receiving.outbound.outbox.bytes <= 2 * BATCH_EXPANDED
    assert (
        receiving.outbound.routed
        == 8 * BATCH_MESSAGES
        == receiving.outbound.delivered + receiving.outbound.queued + receiving.outbound.lost["overflow"]
    )
