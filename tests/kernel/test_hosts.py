"""Addresses of TCP."""

from __future__ import annotations

import pytest

from sbuslib.errors import AddressError
from sbuslib.kernel.hosts import HostPort, is_loopback, parse_host_port


@pytest.mark.parametrize(
    "address", ["", "host", "1.2.3.4", "h:x", "h:65536", "::1:80", "[::1]", "a b:1", "h:-1", "h:+1"]
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(AddressError):
        parse_host_port(address)


def test_addresses_are_read_and_written() -> None:
    for text, host, port in (("h:1", "h", 1), (":80", "127.0.0.1", 80), ("[::1]:65535", "::1", 65_535)):
        address = parse_host_port(text)
        assert address == HostPort(host, port)
        assert parse_host_port(str(address)) == address


def test_loopback_addresses_are_told_from_others() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("192.0.2.1")
    assert not is_loopback("0.0.0.0")
    with pytest.raises(AddressError, match="cannot be the name of a host"):
        is_loopback("a..b")
