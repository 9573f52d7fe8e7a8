"""The grammar and what reads it, on any bytes."""

from __future__ import annotations

import mmap

from hypothesis import given
from hypothesis import strategies as st

from sbuslib.clients.session import Session
from sbuslib.errors import (
    AddressError,
    KeyFormatError,
    PacketError,
    PayloadError,
    PeerError,
)
from sbuslib.wire import control
from sbuslib.wire.addresses import parse_address
from sbuslib.wire.packets import (
    Control,
    Message,
    Subscribe,
    Unsubscribe,
    encode_control,
    encode_message,
    encode_subscribe,
    encode_unsubscribe,
    message_header,
    parse,
)

KEYS = st.binary(max_size=60).map(lambda key: key.replace(b"\0", b"x"))
PAYLOADS = st.binary(max_size=200)
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
    words=st.frozensets(st.from_regex(rb"\A[a-z]+/[a-z]+\Z"), max_size=5),
    hub_id=st.from_regex(rb"\A[0-9a-f]{1,16}\Z"),
    above=st.lists(st.from_regex(rb"\A[0-9a-f]{1,16}\Z"), max_size=4),
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
