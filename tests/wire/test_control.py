"""Control messages: features, losses, senders and patterns."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.errors import PacketError
from sbuslib.wire import control, presence
from sbuslib.wire.control import Features
from sbuslib.wire.offers import (
    MAGIC,
)
from sbuslib.wire.packets import Control, encode_message, parse

# -- What control messages say


@pytest.mark.parametrize(
    ("line", "features"),
    [
        (b"", Features(frozenset(), b"", ())),
        (b"  newer/on   id=1  path= ", Features(frozenset({b"newer/on"}), b"1", ())),
        (b"path=a,,b", Features(frozenset(), b"", (b"a", b"b"))),
        (b"\xff id=one", Features(frozenset({b"\xff"}), b"one", ())),
    ],
)
def test_features_of_another_hub(line: bytes, features: Features) -> None:
    assert Features.decode(line) == features


@pytest.mark.parametrize("line", [b"id=\xff", b"id=" + b"a" * 65, b"path=a,b/c", b"separator=00", b"separator=2f2f"])
def test_malformed_features_are_refused(line: bytes) -> None:
    with pytest.raises(PacketError, match="malformed"):
        Features.decode(line)


def test_a_path_of_too_many_hubs_is_refused() -> None:
    with pytest.raises(PacketError, match="path too long"):
        Features.decode(b"path=" + b"a," * 300)


def lost(payload: bytes) -> control.Notice | None:
    return control.decode_notice(control.NOTICE_LOST, payload)


def test_a_loss_survives_encoding_and_decoding() -> None:
    """A count beyond the largest is told as the largest."""
    for count, since in ((1, 0.0), (control.MOST_LOST, 1_700_000_000.25), (10**30, 1.0), (7, 2.0**33 - 1)):
        packet = parse(control.Lost("overflow", count, since).encode())
        assert isinstance(packet, Control)
        assert packet.payload is not None
        assert lost(packet.payload) == control.Lost("overflow", min(count, control.MOST_LOST), since)
    assert lost(b"quota 3 12") == control.Lost("quota", 3, 12.0)


@pytest.mark.parametrize(
    "payload",
    [
        b"upstream %d 1.0" % 10**30,
        b"upstream " + b"9" * 4_300 + b" 1.0",
        b"upstream -5 1.0",
        b"upstream 1_0 1.0",
        b"upstream +1 1.0",
        b"upstream \xd9\xa1 1.0",
        b"upstream 1 inf",
        b"upstream 1 nan",
        b"upstream 1 -1.0",
        b"upstream 1 1e9",
        b"upstream 1 8589934592",
        b"upstream 1 " + b"9" * 400,
        b"upstream 1",
        b"upstream 1 1.0 1",
        b"up/stream 1 1.0",
        b"u" * 33 + b" 1 1.0",
        b"",
    ],
)
def test_a_malformed_loss_is_refused(payload: bytes) -> None:
    with pytest.raises(PacketError, match="malformed notice"):
        lost(payload)


def test_credentials_that_are_too_long_are_a_malformed_notice() -> None:
    key = b"!/cred/1/2/3"
    assert control.decode_notice(control.NOTICE_CREDENTIALS, key) == control.NewCredentials(key)
    with pytest.raises(PacketError, match="malformed notice"):
        control.decode_notice(control.NOTICE_CREDENTIALS, key + b"/" * 20_000)


def test_each_supported_extension_has_a_key() -> None:
    keys = {value for module in (control, presence) for value in vars(module).values() if isinstance(value, bytes)}
    assert set(control.SUPPORTED) <= keys


def test_a_sender_survives_wrapping_and_unwrapping() -> None:
    inner = encode_message(b"a/b", b"x\0y")
    packet = parse(control.wrapper_from(b"!/cred/1/2/3") + inner)
    assert isinstance(packet, Control)
    assert packet.key == control.FROM
    assert packet.payload is not None
    assert control.unwrap_from(packet.payload) == (b"!/cred/1/2/3", inner)


def test_a_wrapper_without_a_packet_is_refused() -> None:
    with pytest.raises(PacketError, match="wrapper"):
        control.unwrap_from(b"!/cred/1/2/3")


@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=9_000).map(lambda one: one.replace(b"\0", b""))), max_size=40)
)
def test_changes_of_patterns_survive_their_packets_in_order(changes: list[tuple[bool, bytes]]) -> None:
    packets = [parse(packet) for packet in control.encode_changes(changes)]
    told = [
        (packet.key == control.INTEREST_ADD, pattern)
        for packet in packets
        if isinstance(packet, Control)
        for pattern in control.decode_patterns(packet.payload or b"")
    ]
    assert told == changes
    assert len(packets) <= 1 + sum(len(pattern) + 1 for _, pattern in changes) // 4_096 + sum(
        one[0] is not other[0] for one, other in pairwise(changes)
    )


def test_a_packet_of_too_many_patterns_is_refused() -> None:
    assert control.decode_patterns(b"") == [b""]
    with pytest.raises(PacketError, match="too many patterns"):
        control.decode_patterns(b"\0" * 10_000)


def payload(*fields: object, rest: bytes = b"") -> bytes:
    head = msgspec.msgpack.encode(fields)
    return MAGIC + len(head).to_bytes(2, "little") + head + rest
