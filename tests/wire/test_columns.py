"""Messages as columns: they come out as they went in, whole or in part, as batches and as packets."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import gevent
import pytest
from support import PATIENCE, FakeHub, MakeClient

from sbuslib import Hub
from sbuslib.limits import BATCH_KEYS, BATCH_MESSAGES, PACKET_BYTES
from sbuslib.wire.batches import BATCH, Batch
from sbuslib.wire.columns import Columns
from sbuslib.wire.packets import encode_message

Pairs = Sequence[tuple[bytes, bytes]]

PAIRS: dict[str, Pairs] = {
    "one": [(b"k", b"v")],
    "one key": [(b"room/1/temp", b"%d" % number) for number in range(10)],
    "equal lengths": [(b"k/%d" % (number % 3), b"%05d" % number) for number in range(200)],
    "several keys": [(b"room/%d" % (number % 7), b"x" * number) for number in range(100)],
    "empty": [(b"", b"")] * 3,
    "empty and not": [(b"", b"a"), (b"a", b""), (b"", b"\0\0")],
    "all keys there may be": [(b"%d" % number, b"") for number in range(BATCH_KEYS)],
    "more messages than there may be": [(b"k", b"%d" % number) for number in range(3 * BATCH_MESSAGES)],
    "more bytes than there may be": [(b"%d" % (number % 2), b"%d" % number * 50_000) for number in range(20)],
    "more than there may be, taken apart": [(b"k" * 4_000 + b"%d" % (number % 9), b"") for number in range(4_000)],
}


def grouped(pairs: Pairs, *other_names: bytes) -> list[Columns]:
    names = [*dict.fromkeys(key for key, _ in pairs), *other_names]
    numbers = struct.pack(f"<{len(pairs)}i", *(names.index(key) for key, _ in pairs))
    sizes = struct.pack(f"<{len(pairs)}I", *(len(payload) for _, payload in pairs))
    return [*Columns.grouped(names, numbers, sizes, b"".join(payload for _, payload in pairs))]


def columns_of(pairs: Pairs) -> Columns:
    (columns,) = grouped(pairs)
    return columns


def plain(pairs: Pairs) -> list[bytes]:
    return [encode_message(key, payload) for key, payload in pairs]


def opened(packets: Sequence[tuple[bytes, int]]) -> list[bytes]:
    """The messages of packets. Raises unless the hub takes each packet."""
    found: list[bytes] = []
    for packet, count in packets:
        assert len(packet) <= PACKET_BYTES
        some = [packet] if count == 1 else Batch.parse(packet).plain
        assert len(some) == count
        found += some
    return found


@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
def test_columns_give_back_the_messages_that_they_are_made_of(pairs: Pairs) -> None:
    columns = columns_of(pairs)
    assert len(columns) == len(pairs)
    assert columns.packets() == plain(pairs)
    for messages, most in ((1024, 131_072), (BATCH_MESSAGES, PACKET_BYTES), (7, 20), (1, 1)):
        packets = list(columns.pack(messages, most))
        assert opened(packets) == plain(pairs)
        assert all(count <= messages for _, count in packets)
        assert all(count == 1 or sum(map(len, Batch.parse(packet).payloads)) <= most for packet, count in packets)


def test_several_columns_are_joined() -> None:
    several = [columns_of(pairs) for pairs in PAIRS.values()]
    alone = several[:6]
    joined = Columns.joined(alone)
    assert joined is not None
    assert joined.packets() == [packet for columns in alone for packet in columns.packets()]
    assert len(joined.keys) == len(set(joined.keys))
    assert Columns.joined(several) is None  # of too many keys
    assert Columns.joined(several[:1]) is several[0]
    nothing = Columns.joined([])
    assert nothing is not None
    assert not list(nothing.pack(1, 1))
    assert not nothing.packets()


@pytest.mark.parametrize("kinds", [BATCH_KEYS, BATCH_KEYS + 1, 3 * BATCH_KEYS])
def test_messages_of_too_many_keys_make_several_columns(kinds: int) -> None:
    """They become several columns. Names that are no message's key are left out."""
    keys = [number * 7 % kinds for number in range(4 * kinds)]
    pairs = [(b"%d" % key, b"x" * (key % 5)) for key in keys]
    several = grouped(pairs, *(b"!/cred/%d" % number for number in range(300)))
    assert [packet for columns in several for packet in columns.packets()] == plain(pairs)
    assert opened([packet for columns in several for packet in columns.pack(1024, 131_072)]) == plain(pairs)
    assert (len(several) == 1) is (kinds == BATCH_KEYS)
    assert max(len(columns.keys) for columns in several) <= BATCH_KEYS


@pytest.mark.parametrize(
    ("names", "key"), [(3, 3), (3, 255), (3, 256), (300, 300), (3, -1), (300, -1), (3, 2**24), (300, -(2**31))]
)
def test_a_key_without_a_name_is_refused(names: int, key: int) -> None:
    with pytest.raises(IndexError):
        list(Columns.grouped([b"%d" % n for n in range(names)], struct.pack("<3i", 0, key, 1), bytes(12), b""))


def test_there_are_no_more_keys_than_messages() -> None:
    """Code that takes a batch apart relies on it. A few names without messages do no harm."""
    (columns,) = Columns.grouped([b"a", b"b", b"c", b"d"], struct.pack("<3i", 3, 1, 3), bytes(12), b"")
    assert (columns.keys, columns.numbers) == ([b"b", b"d"], b"\1\0\1")
    (columns,) = Columns.grouped([b"a", b"b"], struct.pack("<1i", 1), bytes(4), b"")
    assert (columns.keys, columns.numbers) == ([b"b"], None)
    (columns,) = Columns.grouped([b"a", b"b"], struct.pack("<2i", 1, 1), bytes(8), b"")
    assert (columns.keys, columns.numbers) == ([b"a", b"b"], b"\1\1")
    assert opened(list(columns.pack(9, 9))) == [b"MSG b\0"] * 2


# -- sending them -------------------------------------------------------------------------------------

MIXED = [(b"room/%d/temp" % (number % 300), b"%d" % number * (number % 9)) for number in range(5_000)]


@pytest.mark.parametrize("pairs", [MIXED, PAIRS["all keys there may be"]], ids=["mixed", "keys"])
def test_columns_are_sent_in_order(hub: Hub, client: MakeClient, pairs: Pairs) -> None:
    subscriber, publisher = client(soft="block"), client()
    subscriber.subscribe(b"")

    def send() -> None:
        for columns in grouped(pairs):
            publisher.publish_many(columns)

    sending = gevent.spawn(send)
    found: list[tuple[bytes, bytes]] = []
    while len(found) < len(pairs):
        found += [(message.key, message.payload) for message in subscriber.receive_many(timeout=PATIENCE)]
    sending.get()
    assert found == list(pairs)


def test_columns_are_sent_as_batches_and_as_packets_after_reconnecting_to_a_hub_without_batches(
    fake: FakeHub, client: MakeClient
) -> None:
    connecting = gevent.spawn(client, reconnect=True)
    peer = fake.greet(b"batch/on hub/sync id=1 path=1")
    made = connecting.get(timeout=PATIENCE)
    assert peer.receive() == b"CMSG batch/on\0"
    pairs = PAIRS["several keys"]
    made.publish_many(columns_of(pairs))
    packet = peer.receive()
    assert packet.startswith(BATCH)
    assert Batch.parse(packet).plain == plain(pairs)
    peer.close()
    sending = gevent.spawn(made.publish_many, columns_of(pairs))
    again = fake.greet()
    assert [again.receive() for _ in pairs] == plain(pairs)
    sending.get()
