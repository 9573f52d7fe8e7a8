"""The grammar of packets and addresses, the names of modes, and texts of errors."""

from __future__ import annotations

import ast
import pathlib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.errors import AddressError, KeyFormatError, PacketError, PayloadError, UsageError
from sbuslib.limits import CONTROL_EXTRA, PACKET_BYTES
from sbuslib.wire.addresses import (
    AbstractAddress,
    DescriptorAddress,
    PathAddress,
    parse_address,
)
from sbuslib.wire.defaults import SYSTEM_ADDRESS, default_addresses
from sbuslib.wire.modes import HARD, ORDER, SOFT, Hard, Order, Soft, mode_keys
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
from sbuslib.wire.text import plainly, printable

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


# -- The address grammar


def test_paths() -> None:
    assert parse_address("/run/x") == parse_address(b"/run/x") == PathAddress("/run/x")
    assert parse_address(pathlib.Path("relative/x")) == PathAddress("relative/x")
    assert str(parse_address("/run/x")) == "/run/x"
    assert parse_address("/" + "x" * 106) == PathAddress("/" + "x" * 106)
    assert parse_address("/dev/unix/abstracted") == PathAddress("/dev/unix/abstracted")


def test_descriptors() -> None:
    assert parse_address("/dev/fd/0") == DescriptorAddress(0)
    assert parse_address("/dev/fd/123") == DescriptorAddress(123)
    assert str(DescriptorAddress(7)) == "/dev/fd/7"


def test_abstract_names() -> None:
    address = parse_address("/dev/unix/abstract/00616200")
    assert address == AbstractAddress(b"\0ab" + bytes(105))
    assert address == parse_address("/dev/unix/abstract/006162")  # trailing NULs do not matter
    assert str(address) == "/dev/unix/abstract/" + (b"\0ab" + bytes(105)).hex()
    assert parse_address(str(address)) == address
    assert parse_address("/dev/unix/abstract/00") == AbstractAddress(bytes(108))


@pytest.mark.parametrize(
    "text",
    ["", "a\0b", b"\0abstract", "/" + "x" * 107, "/dev/fd/", "/dev/fd/x", "/dev/fd/-1", "/dev/fd/+1", "/dev/fd/1 ",
     "/dev/fd/²", "/dev/fd/2147483648", "/dev/fd/" + "9" * 5_000, "/dev/unix/abstract/",
     "/dev/unix/abstract/61", "/dev/unix/abstract/0", "/dev/unix/abstract/0g", "/dev/unix/abstract/00" + "61" * 108,
     None, 7, object()],
)  # fmt: skip
def test_text_that_is_no_address_is_refused(text: object) -> None:
    with pytest.raises(AddressError):
        parse_address(text)  # type: ignore[arg-type]


def test_the_length_of_a_path_is_counted_in_bytes() -> None:
    with pytest.raises(AddressError, match="107 bytes"):
        parse_address("/" + "ä" * 54)


# -- The modes of flood control: each that a type allows is known, and no other


@pytest.mark.parametrize(("modes", "alias"), [(SOFT, Soft), (HARD, Hard), (ORDER, Order)])
def test_the_modes_are_those_of_their_type(modes: tuple[str, ...], alias: object) -> None:
    assert modes == get_args(alias)


def test_the_control_message_of_each_mode_is_its_name() -> None:
    assert mode_keys("queue", "block", "stack") == [b"blocking/soft/queue", b"blocking/hard/block", b"order/stack"]
    assert mode_keys(None, None, None) == []
    with pytest.raises(UsageError, match="soft is one of queue, discard, block, error, not 'hard'"):
        mode_keys("hard", None, None)


# -- Bytes from strangers as text


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_printable_prints_and_can_be_read_back(data: bytes) -> None:
    shown = printable(data)
    assert shown.isprintable()
    escaped = ascii(shown.encode())[1:]  # as a literal of bytes, in which our escapes are Python's
    assert ast.literal_eval("b" + escaped.replace("\\\\", "\\")) == data


def test_errors_are_told_without_the_spelling_of_python() -> None:
    assert plainly(OSError(28, "No space left on device")) == "No space left on device"
    assert plainly(OSError(28, "No space left on device", "/tmp/x")) == "/tmp/x: No space left on device"
    assert plainly(ValueError("what it says")) == "what it says"
    assert plainly(ConnectionError("what it says")) == "what it says"


# -- Which address is meant when none is given


@pytest.mark.parametrize(
    ("environ", "addresses"),
    [
        ({}, ["/run/sbus.socket"]),
        ({"XDG_RUNTIME_DIR": "/run/user/1"}, ["/run/user/1/sbus/bus", SYSTEM_ADDRESS]),
        ({"XDG_RUNTIME_DIR": ""}, [SYSTEM_ADDRESS]),
        ({"SBUS_ADDRESS": "/x", "XDG_RUNTIME_DIR": "/run/user/1"}, ["/x"]),
        ({"SBUS_ADDRESS": "", "XDG_RUNTIME_DIR": "/r"}, ["/r/sbus/bus", SYSTEM_ADDRESS]),
    ],
)
def test_the_default_addresses_come_from_the_environment(environ: dict[str, str], addresses: list[str]) -> None:
    assert default_addresses(environ) == addresses
