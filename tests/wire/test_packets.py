"""The grammar of packets."""

from __future__ import annotations

import pytest

from sbuslib.errors import KeyFormatError, PacketError, PayloadError
from sbuslib.limits import CONTROL_EXTRA, PACKET_BYTES
from sbuslib.wire.packets import (
    Control,
    check_key,
    encode_control,
    encode_message,
    encode_subscribe,
    encode_unsubscribe,
    message_header,
    parse,
)

# -- The grammar of a packet


def test_the_longest_control_packet() -> None:
    packet = b"CMSG from\0" + b"x" * (PACKET_BYTES + CONTROL_EXTRA - 10)
    assert parse(packet) == Control(b"from", packet[10:])
    with pytest.raises(PacketError, match="too long"):
        parse(packet + b"x")


@pytest.mark.parametrize("encode", [check_key, message_header, encode_subscribe, encode_unsubscribe, encode_control])
@pytest.mark.parametrize("key", [b"a\0b", b"\0", "a", None, 3, bytearray(b"a")])
def test_a_key_is_bytes_without_nul(encode: object, key: object) -> None:
    assert callable(encode)
    with pytest.raises(KeyFormatError):
        encode(key)


@pytest.mark.parametrize("encode", [encode_subscribe, encode_unsubscribe])
def test_a_pattern_fits_a_packet(encode: object) -> None:
    assert callable(encode)
    with pytest.raises(KeyFormatError):
        encode(b"x" * PACKET_BYTES)


@pytest.mark.parametrize("payload", ["text", 3, None])
def test_a_payload_is_bytes(payload: object) -> None:
    with pytest.raises(PayloadError, match="bytes"):
        encode_message(b"a", payload)  # type: ignore[arg-type]


def test_a_message_fits_a_packet() -> None:
    assert len(encode_message(b"k", b"x" * (PACKET_BYTES - 6))) == PACKET_BYTES
    with pytest.raises(PayloadError, match="409,601"):
        encode_message(b"k", b"x" * (PACKET_BYTES - 5))


def test_an_error_about_a_key_does_not_print_all_of_it() -> None:
    with pytest.raises(KeyFormatError) as caught:
        check_key(b"x" * 100_000 + b"\0")
    assert len(str(caught.value)) < 500
