"""Batches against the plain packets that they stand for."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbuslib.errors import PacketError
from sbuslib.limits import BATCH_EXPANDED, BATCH_KEYS, BATCH_MESSAGES, PACKET_BYTES
from sbuslib.wire.batches import Batch, coalesce, pack
from sbuslib.wire.packets import check_key, encode_message

KEYS = st.binary(max_size=6).map(lambda key: key.replace(b"\0", b"/"))
PAIRS = st.lists(st.tuples(KEYS, st.binary(max_size=12)), min_size=2, max_size=40)
ALIKE = st.lists(st.tuples(st.just(b"a/b"), st.binary(min_size=3, max_size=3)), min_size=2, max_size=200)


@given(PAIRS | ALIKE, st.integers(1, 400))
def test_packing_loses_nothing(pairs: list[tuple[bytes, bytes]], most: int) -> None:
    plain: list[bytes] = []
    for packet, count in pack(pairs, check_key, most):
        plain += [packet] if count == 1 else Batch.parse(packet).plain
        assert count == 1 or sum(map(len, Batch.parse(packet).payloads)) <= most
    assert plain == [encode_message(key, payload) for key, payload in pairs]


@given(PAIRS | ALIKE, st.data())
def test_every_part_is_a_batch_of_its_messages(pairs: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    batch = coalesce([encode_message(key, payload) for key, payload in pairs])
    assert batch is not None
    start = data.draw(st.integers(0, len(pairs) - 1))
    stop = data.draw(st.integers(start + 1, len(pairs)))
    part = batch.part(start, stop)
    assert Batch.parse(part.packet).plain == batch.plain[start:stop] == part.plain
    wanted = sorted(data.draw(st.sets(st.sampled_from(range(len(part.keys))), min_size=1)))
    keys = {part.keys[number] for number in wanted}
    some = part.select(wanted)
    assert Batch.parse(some.packet).plain == [
        encode_message(key, payload) for key, payload in pairs[start:stop] if key in keys
    ]
    assert some.expanded == sum(map(len, some.plain))


@settings(max_examples=300)
@given(PAIRS | ALIKE, st.data())
def test_spoilt_bytes_are_refused_or_a_batch_within_bounds(
    pairs: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    ((packet, _),) = pack(pairs, check_key, PACKET_BYTES)
    spoilt = bytearray(packet)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(spoilt) - 1))
        spoilt[place] = data.draw(st.integers(0, 255))
    check(bytes(spoilt))


@given(st.binary(max_size=80))
@example(b"")
def test_any_bytes_are_refused_or_a_batch_within_bounds(tail: bytes) -> None:
    check(b"CMSG batch\0" + tail)
    check(b"CMSG batch\0\1" + tail)


def check(packet: bytes) -> None:
    try:
        batch = Batch.parse(packet)
    except PacketError:
        return
    assert len(packet) <= PACKET_BYTES
    assert 1 <= len(batch.keys) <= min(batch.count, BATCH_KEYS)
    assert batch.count <= BATCH_MESSAGES
    assert len(batch.plain) == len(batch.payloads) == len(list(batch.messages())) == batch.count
    assert sum(map(len, batch.plain)) == batch.expanded <= BATCH_EXPANDED
    assert not any(b"\0" in key for key in batch.keys)
    assert packet.endswith(b"".join(batch.keys) + b"".join(batch.payloads))
