"""The grammar of a packet."""

from __future__ import annotations

import pytest

from sbuslib.errors import KeyFormatError, PacketError, PayloadError
from sbuslib.limits import CONTROL_EXTRA, PACKET_BYTES
from sbuslib.wire.packets import (
    Control,
    Message,
    Packet,
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


@pytest.mark.parametrize(
    ("packet", "value"),
    [
        (b"SUB a/*", Subscribe(b"a/*")),
        (b"SUB ", Subscribe(b"")),
        (b"SUB a\0ignored\0too", Subscribe(b"a")),
        (b"SUB \0", Subscribe(b"")),
        (b"SUB  a ", Subscribe(b" a ")),
        (b"UNSUB a", Unsubscribe(b"a")),
        (b"UNSUB ", Unsubscribe(b"")),
        (b"UNSUB a\0b", Unsubscribe(b"a")),
        (b"MSG a\0b", Message(b"a", b"b")),
        (b"MSG a\0", Message(b"a", b"")),
        (b"MSG \0b", Message(b"", b"b")),
        (b"MSG \0", Message(b"", b"")),
        (b"MSG a\0b\0c\n\xff", Message(b"a", b"b\0c\n\xff")),
        (b"MSG \xff\xfe\n\0", Message(b"\xff\xfe\n", b"")),
        (b"CMSG a", Control(b"a", None)),
        (b"CMSG ", Control(b"", None)),
        (b"CMSG a\0", Control(b"a", b"")),
        (b"CMSG a\0b\0c", Control(b"a", b"b\0c")),
    ],
)
def test_parse(packet: bytes, value: Packet) -> None:
    assert parse(packet) == value


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"", "empty packet"),
        (b"\0", "unknown verb"),
        (b"MSG", "unknown verb"),
        (b"MSG ", "message without NUL"),
        (b"MSG a", "message without NUL"),
        (b"MSG\0a", "unknown verb"),
        (b"msg a\0b", "unknown verb"),
        (b" MSG a\0b", "unknown verb"),
        (b"SUB", "unknown verb"),
        (b"SUB\0", "unknown verb"),
        (b"UNSUB", "unknown verb"),
        (b"CMSG", "unknown verb"),
        (b"CMSG\0a", "unknown verb"),
        (b"PUB a\0b", "unknown verb"),
        (b"MSG\ta\0b", "unknown verb"),
    ],
)
def test_parse_refuses_packets_of_no_known_form(packet: bytes, reason: str) -> None:
    with pytest.raises(PacketError) as caught:
        parse(packet)
    assert caught.value.reason == reason


@pytest.mark.parametrize("verb", [b"MSG ", b"SUB ", b"UNSUB "])
def test_the_longest_packet(verb: bytes) -> None:
    packet = verb + b"k\0" + b"x" * (PACKET_BYTES - len(verb) - 2)
    assert parse(packet)
    with pytest.raises(PacketError, match="too long"):
        parse(packet + b"x")


def test_the_longest_control_packet() -> None:
    packet = b"CMSG from\0" + b"x" * (PACKET_BYTES + CONTROL_EXTRA - 10)
    assert parse(packet) == Control(b"from", packet[10:])
    with pytest.raises(PacketError, match="too long"):
        parse(packet + b"x")


def test_encode() -> None:
    assert encode_message(b"a/b", b"c\0d") == b"MSG a/b\0c\0d"
    assert encode_message(b"", b"") == b"MSG \0"
    assert message_header(b"a") == b"MSG a\0"
    assert encode_subscribe(b"a/*") == b"SUB a/*"
    assert encode_unsubscribe(b"") == b"UNSUB "
    assert encode_control(b"echo/off") == b"CMSG echo/off\0"
    assert encode_control(b"a", b"b") == b"CMSG a\0b"


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
