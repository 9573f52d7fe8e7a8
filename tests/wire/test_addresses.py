"""Addresses of hubs."""

from __future__ import annotations

import pathlib

import pytest

from sbuslib.errors import AddressError
from sbuslib.wire.addresses import (
    AbstractAddress,
    DescriptorAddress,
    PathAddress,
    parse_address,
)

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
