"""The form of a batch: its messages come out as they went in, and a malformed one is refused whole."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

import pytest

from sbuslib.errors import KeyFormatError, PacketError, PayloadError
from sbuslib.limits import BATCH_EXPANDED, BATCH_KEYS, BATCH_MESSAGES, PACKET_BYTES
from sbuslib.wire.batches import BATCH, Batch, coalesce, pack
from sbuslib.wire.packets import check_key

Pairs = list[tuple[bytes, bytes]]


def packed(pairs: Pairs, most: int = PACKET_BYTES) -> list[tuple[bytes, int]]:
    return list(pack(pairs, check_key, most))


def one(pairs: Pairs) -> bytes:
    ((packet, count),) = packed(pairs)
    assert count == len(pairs)
    return packet


def pairs_of(packets: list[tuple[bytes, int]]) -> Pairs:
    found: Pairs = []
    for packet, count in packets:
        if count == 1:
            head, _, payload = packet.partition(b"\0")
            found.append((head.removeprefix(b"MSG "), payload))
        else:
            batch = Batch.parse(packet)
            assert batch.count == count
            found += [(message.key, message.payload) for message in batch.messages()]
    return found


def laid_out(
    *,
    start: bytes = BATCH,
    form: int = 1,
    count: int = 2,
    kinds: int = 2,
    key_sizes: tuple[int, ...] = (1, 2),
    sizes: tuple[int, ...] = (3, 1),
    numbers: bytes = b"\0\1",
    keys: bytes = b"abb",
    payloads: bytes = b"xyz!",
) -> bytes:
    """A batch of two messages, byte by byte. The tests change bytes of it."""
    columns = struct.pack(f"<{len(key_sizes)}I", *key_sizes) + struct.pack(f"<{len(sizes)}I", *sizes)
    return start + struct.pack("<BII", form, count, kinds) + columns + numbers + keys + payloads


def test_the_layout_is_the_documented_one() -> None:
    assert one([(b"a", b"xyz"), (b"bb", b"!")]) == laid_out()
    whole = "434d534720626174636800010200000002000000010000000200000003000000010000000001616262 78797a21"
    assert laid_out() == bytes.fromhex(whole.replace(" ", ""))
    alone = laid_out(kinds=1, key_sizes=(2,), numbers=b"", keys=b"bb")
    assert one([(b"bb", b"xyz"), (b"bb", b"!")]) == alone


def test_a_batch_of_one_is_understood() -> None:
    batch = Batch.parse(laid_out(count=1, kinds=1, key_sizes=(1,), sizes=(2,), numbers=b"", keys=b"k", payloads=b"ab"))
    assert batch.plain == [b"MSG k\0ab"]


def test_a_thousand_keys_in_turn_make_as_few_batches_as_there_can_be() -> None:
    pairs = [(b"k%d" % (number % 1_000), b"x") for number in range(1_000)]
    packets = packed(pairs)
    assert [count for _, count in packets] == [250] * 4
    assert pairs_of(packets) == pairs


@pytest.mark.parametrize(
    ("pairs", "most"),
    [
        ([(b"k", b"x" * 100)] * 1_000, 10_000),
        ([(b"k", b"x")] * (BATCH_MESSAGES * 3), PACKET_BYTES),
        ([(b"%d" % number, b"") for number in range(BATCH_KEYS * 4)], PACKET_BYTES),
        ([(b"k" * 4_000, b"")] * 4_000, PACKET_BYTES),
        ([(b"k%d" % number, b"x" * 300_000) for number in range(4)], 2 * PACKET_BYTES),
        ([(b"%d" % number * 100_000, b"") for number in range(10)], PACKET_BYTES),
    ],
    ids=["bytes", "messages", "keys", "expanded", "long payloads", "long keys"],
)
def test_messages_that_are_too_much_for_one_batch_make_several(pairs: Pairs, most: int) -> None:
    packets = packed(pairs, most)
    assert 1 < len(packets) < len(pairs) + 1
    assert max(len(packet) for packet, _ in packets) <= PACKET_BYTES
    assert pairs_of(packets) == pairs


MALFORMED = {
    "cut short": laid_out()[:19],
    "not one": laid_out(start=b"CMSG bitch\0"),
    "form": laid_out(form=2),
    "nothing in it": laid_out(count=0, kinds=0, key_sizes=(), sizes=(), numbers=b"", keys=b"", payloads=b""),
    "no key": laid_out(kinds=0),
    "more keys than messages": laid_out(kinds=3, key_sizes=(1, 1, 1)),
    "columns beyond the end": laid_out(count=4_000),
    "a byte too few": laid_out()[:-1],
    "a byte too many": laid_out() + b"x",
    "a key beyond the end": laid_out(key_sizes=(1, 2**32 - 1)),
    "a payload beyond the end": laid_out(sizes=(3, 2**32 - 1)),
    "lengths that are right together": laid_out(sizes=(2**32 - 1, 2**32 - 1)),
    "no such key": laid_out(numbers=b"\0\2"),
    "NUL in a key": laid_out(keys=b"a\0b"),
    "NUL in a key that is not used": laid_out(keys=b"a\0b", numbers=b"\0\0"),
    "too many messages": laid_out(
        count=BATCH_MESSAGES + 1,
        kinds=1,
        key_sizes=(0,),
        sizes=(0,) * (BATCH_MESSAGES + 1),
        numbers=b"",
        keys=b"",
        payloads=b"",
    ),
    "too many keys": laid_out(
        count=BATCH_KEYS + 1,
        kinds=BATCH_KEYS + 1,
        key_sizes=(0,) * (BATCH_KEYS + 1),
        sizes=(0,) * (BATCH_KEYS + 1),
        numbers=bytes(BATCH_KEYS + 1),
        keys=b"",
        payloads=b"",
    ),
    "too long": laid_out(sizes=(3, PACKET_BYTES), payloads=b"xyz" + bytes(PACKET_BYTES)),
}


@pytest.mark.parametrize("packet", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_batch_is_refused_whole(packet: bytes) -> None:
    with pytest.raises(PacketError) as raised:
        Batch.parse(packet)
    assert raised.value.reason == "malformed batch"


@pytest.mark.parametrize("number", [b"\0", b"\1"], ids=["a key", "another"])
def test_the_expanded_size_of_a_batch_is_bounded(number: bytes) -> None:
    def batch_of(count: int) -> bytes:
        return laid_out(
            count=count,
            key_sizes=(100_000, 100_000),
            sizes=(1,) * count,
            numbers=number * count,
            keys=b"a" * 100_000 + b"b" * 100_000,
            payloads=b"x" * count,
        )

    most = BATCH_EXPANDED // 100_006
    assert Batch.parse(batch_of(most)).expanded <= BATCH_EXPANDED
    with pytest.raises(PacketError) as raised:
        Batch.parse(batch_of(most + 1))
    assert raised.value.reason == "batch of too much"


def test_coalesce_gives_none_where_the_packets_exceed_a_batch() -> None:
    assert coalesce([b"MSG %d\0" % number for number in range(BATCH_KEYS + 1)]) is None
    assert coalesce([b"MSG k\0x"] * (BATCH_MESSAGES + 1)) is None
    assert coalesce([b"MSG k\0" + b"x" * (PACKET_BYTES // 2)] * 2) is None
    assert coalesce([b"MSG k\0" + b"x" * 200_000] * 2) is not None


@pytest.mark.parametrize(
    ("pair", "error"),
    [
        ((b"a\0", b""), KeyFormatError),
        (("a", b""), KeyFormatError),
        ((b"b", "text"), TypeError),
        ((b"b", 3), TypeError),
        ((b"b", memoryview(b"abcdefgh").cast("I")), TypeError),
        ((b"b",), ValueError),
        (3, TypeError),
    ],
)
@pytest.mark.parametrize("key", [b"a", b"b"])
def test_pack_raises_for_messages_that_cannot_be_sent(pair: object, error: type[Exception], key: bytes) -> None:
    pairs: list[object] = [(key, b"x"), pair, (key, b"y")]
    with pytest.raises(error):
        list(pack(pairs, check_key, PACKET_BYTES))  # type: ignore[arg-type]


def test_messages_before_one_that_is_too_long_are_packed() -> None:
    packets = pack([(b"k", b"1"), (b"k", b"2"), (b"k", bytes(PACKET_BYTES))], check_key, PACKET_BYTES)
    found: list[tuple[bytes, int]] = []
    with pytest.raises(PayloadError):
        found.extend(packets)
    assert pairs_of(found) == [(b"k", b"1"), (b"k", b"2")]


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_payloads_may_be_any_bytes_like_object(make: Callable[[bytes], bytes]) -> None:
    assert Batch.parse(one([(b"k", make(b"one")), (b"k", make(b"two"))])).payloads == [b"one", b"two"]


def test_a_copy_of_a_batch_stays_when_the_memory_is_used_again() -> None:
    batch = coalesce([b"MSG a\0one", b"MSG b\0two"])
    assert batch is not None
    with mmap.mmap(-1, 4_096) as memory:
        memory[10 : 10 + len(batch.packet)] = batch.packet
        copy = Batch.parse(memory, 10, len(batch.packet)).copy()
        memory[:] = bytes(4_096)
    assert (copy.packet, bytes(copy.view)) == (batch.packet, batch.packet)
    assert copy.plain == [b"MSG a\0one", b"MSG b\0two"]
    assert copy.copy() is copy or copy.copy().packet == copy.packet
