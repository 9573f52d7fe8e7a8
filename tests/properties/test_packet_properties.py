"""Packets, batches and columns: any bytes, and the messages that they stand for."""

from __future__ import annotations

import mmap
import struct
from itertools import pairwise

from accounting import opened
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbuslib.clients.session import Session
from sbuslib.errors import AddressError, KeyFormatError, PacketError, PayloadError, PeerError
from sbuslib.limits import BATCH_EXPANDED, BATCH_KEYS, BATCH_MESSAGES, PACKET_BYTES
from sbuslib.wire import control
from sbuslib.wire.addresses import parse_address
from sbuslib.wire.batches import Batch, coalesce, pack
from sbuslib.wire.columns import Columns, lengths
from sbuslib.wire.packets import (
    Control,
    Message,
    Subscribe,
    Unsubscribe,
    check_key,
    encode_control,
    encode_message,
    encode_subscribe,
    encode_unsubscribe,
    message_header,
    parse,
)

# -- The grammar and what reads it, on any bytes

KEYS = st.binary(max_size=60).map(lambda key: key.replace(b"\0", b"x"))

PAYLOADS = st.binary(max_size=200)

IDS = st.binary(min_size=1, max_size=8).map(lambda number: number.hex().encode())

TRIPLES = st.tuples(*[st.integers(0, 2**31)] * 3).map(lambda ids: b"!/cred/%d/%d/%d" % ids)


def nearly(packets: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Packets of which a piece was replaced."""
    return st.builds(
        lambda packet, start, length, piece: packet[:start] + piece + packet[start + length :],
        packets,
        st.integers(0, 30),
        st.integers(0, 5),
        st.binary(max_size=5),
    )


PACKETS = st.one_of(
    st.builds(encode_message, KEYS, PAYLOADS),
    st.builds(encode_subscribe, KEYS),
    st.builds(encode_unsubscribe, KEYS),
    st.builds(encode_control, KEYS, PAYLOADS),
    st.builds(
        encode_control,
        st.sampled_from([control.WHOAMI, control.FEATURES, control.SYNC, control.FROM, control.SENDERS_ON]),
        PAYLOADS,
    ),
    st.builds(
        lambda sender, key, payload: control.wrapper_from(sender) + encode_message(key, payload),
        TRIPLES,
        KEYS,
        PAYLOADS,
    ),
)

ANYTHING = st.one_of(st.binary(max_size=100), PACKETS, nearly(PACKETS))


@given(packet=ANYTHING)
def test_any_bytes_give_a_value_or_a_packet_error(packet: bytes) -> None:
    try:
        value = parse(packet)
    except PacketError:
        return
    match value:
        case Message(key, payload):
            assert encode_message(key, payload) == packet
        case Subscribe(pattern):
            assert packet.partition(b"\0")[0] == encode_subscribe(pattern)
        case Unsubscribe(pattern):
            assert packet.partition(b"\0")[0] == encode_unsubscribe(pattern)
        case Control(key, payload):
            assert packet in (encode_control(key, payload or b""), encode_control(key)[:-1])
            assert (payload is None) == (b"\0" not in packet)


@given(key=KEYS, payload=PAYLOADS)
def test_an_encoded_packet_parses_to_the_same_message(key: bytes, payload: bytes) -> None:
    assert parse(encode_message(key, payload)) == Message(key, payload)
    assert encode_message(key, payload) == message_header(key) + payload
    assert parse(encode_subscribe(key)) == Subscribe(key)
    assert parse(encode_unsubscribe(key)) == Unsubscribe(key)
    assert parse(encode_control(key, payload)) == Control(key, payload)


@given(key=st.binary(max_size=30), payload=st.one_of(st.binary(max_size=30), st.text(max_size=5), st.none()))
def test_encoding_gives_a_packet_or_an_error_with_a_reason(key: bytes, payload: bytes) -> None:
    try:
        packet = encode_message(key, payload)
    except KeyFormatError:
        assert b"\0" in key
    except PayloadError:
        assert not isinstance(payload, bytes)
    else:
        assert parse(packet) == Message(key, payload)


@given(
    words=st.frozensets(st.sampled_from([b"hub/sync", b"senders/on", b"a/b", b"newer/word"])),
    hub_id=IDS,
    above=st.lists(IDS, max_size=4),
    separator=st.sampled_from([b"/", b".", b" ", b",", b"\x7f"]),
)
def test_features_there_and_back(words: frozenset[bytes], hub_id: bytes, above: list[bytes], separator: bytes) -> None:
    features = control.Features(words, hub_id, (hub_id, *above), separator)
    assert control.Features.decode(features.encode()) == features


@given(
    line=st.one_of(
        st.binary(max_size=60),
        st.lists(
            st.sampled_from([b"id=", b"path=", b"separator=", b"2e", b"2f", b"00", b" ", b",", b"x", b"\xff"])
        ).map(b"".join),
    )
)
def test_features_of_any_bytes(line: bytes) -> None:
    try:
        features = control.Features.decode(line)
    except PacketError:
        assert any(word in line for word in (b"separator=", b"id=", b"path="))
        return
    assert control.Features.decode(features.encode()) == features


@given(
    payload=st.one_of(
        st.binary(max_size=60),
        st.lists(st.sampled_from([b"upstream", b" ", b"1", b"-", b".", b"e", b"9" * 30, b"inf", b"_", b"x"])).map(
            b"".join
        ),
        st.tuples(st.integers(), st.floats()).map(lambda pair: b"upstream %d %r" % (pair[0], pair[1])),
    )
)
def test_a_loss_of_any_bytes_fits_the_columns_of_a_journal(payload: bytes) -> None:
    try:
        notice = control.decode_notice(control.NOTICE_LOST, payload)
    except PacketError:
        return
    assert isinstance(notice, control.Lost)
    assert 0 <= notice.count <= control.MOST_LOST
    assert 0 <= int(notice.since * 1e9) < 2**63
    assert len(notice.cause) <= 32


@given(
    text=st.one_of(st.text(max_size=130), st.binary(max_size=130), st.from_regex(r"/dev/(fd|unix/abstract)/?[0-9a-f]*"))
)
def test_any_text_is_an_address_or_an_address_error(text: str | bytes) -> None:
    try:
        address = parse_address(text)
    except AddressError:
        return
    assert parse_address(str(address)) == address


@given(packets=st.lists(ANYTHING, min_size=1, max_size=12), asked=st.booleans())
def test_a_session_fed_with_anything_raises_nothing_but_peer_errors(packets: list[bytes], asked: bool) -> None:
    session = Session()
    questions = []  # which a session knows for as long as somebody waits for the answer
    if asked:
        session.hello()
        questions += [session.ask_by_token(control.SYNC, b""), session.ask(control.STATISTICS)]
    slot = max(map(len, packets)) + 1
    with mmap.mmap(-1, slot * len(packets)) as data:
        offsets = [slot * number for number in range(len(packets))]
        for offset, packet in zip(offsets, packets, strict=True):
            data[offset : offset + len(packet)] = packet
        try:
            ended = session.take(data, offsets, [len(packet) for packet in packets])
        except PeerError:
            return
    assert ended is (b"" in packets)
    until_end = packets[: packets.index(b"")] if ended else packets
    assert len(session.inbox) == sum(packet.startswith((b"MSG ", b"CMSG from\0")) for packet in until_end)


# -- Batches against the plain packets that they stand for

KEYS_IN_BATCHES = st.sampled_from([b"", b"a/b", b"b" * 30]) | KEYS

PAIRS = st.lists(st.tuples(KEYS_IN_BATCHES, st.binary(max_size=12)), min_size=2, max_size=40)

ALIKE = st.lists(st.tuples(st.just(b"a/b"), st.binary(min_size=3, max_size=3)), min_size=2, max_size=200)


@given(PAIRS | ALIKE, st.integers(1, 400))
def test_packing_loses_nothing(pairs: list[tuple[bytes, bytes]], most: int) -> None:
    packed = list(pack(pairs, check_key, most))
    assert opened(packet for packet, _ in packed) == [encode_message(key, payload) for key, payload in pairs]
    for packet, count in packed:
        assert count == 1 or sum(map(len, Batch.parse(packet).payloads)) <= most


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


# -- Columns against the lists of messages that they stand for

NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 9), min_size=1, max_size=20)


def columns_of(pairs: list[tuple[bytes, bytes]]) -> Columns:
    names = [b"nobody's", *dict.fromkeys(key for key, _ in pairs)]
    numbers = struct.pack(f"<{len(pairs)}i", *(names.index(key) for key, _ in pairs))
    sizes = struct.pack(f"<{len(pairs)}I", *(len(payload) for _, payload in pairs))
    (columns,) = Columns.grouped(names, numbers, sizes, b"".join(payload for _, payload in pairs))
    return columns


@given(PAIRS | ALIKE, st.integers(1, 50), st.integers(1, 400), st.data())
def test_nothing_is_lost_or_moved(
    pairs: list[tuple[bytes, bytes]], messages: int, most: int, data: st.DataObject
) -> None:
    def packed(columns: Columns) -> list[bytes]:
        return opened(packet for packet, _ in columns.pack(messages, most))

    columns = columns_of(pairs)
    plain = [encode_message(key, payload) for key, payload in pairs]
    assert columns.packets() == packed(columns) == plain
    mask = bytes(data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs))))
    chosen = [packet for packet, wanted in zip(plain, mask, strict=True) if wanted]
    some = columns.select(mask)
    assert some.packets() == packed(some) == chosen
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pairs)), max_size=5)))
    parts = [columns.part(start, stop) for start, stop in pairwise([0, *cuts, len(pairs)]) if start < stop]
    joined = Columns.joined(parts)
    assert joined is not None
    assert joined.packets() == packed(joined) == plain


@given(NUMBERS | NUMBERS.map(sorted))
def test_lengths_are_differences_or_an_error(offsets: list[int]) -> None:
    expected = [end - start for start, end in pairwise(offsets)]
    try:
        found = lengths(struct.pack(f"<{len(offsets)}i", *offsets))
    except ValueError:
        assert offsets[0] < 0 or min(expected, default=0) < 0
    else:
        assert min(offsets) >= 0
        assert list(struct.unpack(f"<{len(expected)}I", found)) == expected
