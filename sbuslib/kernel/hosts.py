"""Addresses of TCP: parser, and a check whether other machines can reach them."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import msgspec

from ..errors import AddressError

LOOPBACK = "127.0.0.1"


class HostPort(msgspec.Struct, frozen=True, order=True):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(text: str) -> HostPort:
    """``HOST:PORT``, ``[IPV6]:PORT``, or ``:PORT`` for the loopback address.

    Raises :exc:`~sbuslib.errors.AddressError`.
    """
    if not isinstance(text, str):
        raise AddressError(f"an address is text, not {type(text).__name__}")
    host, colon, digits = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or (":" in host) != bracketed or any(c.isspace() or c == "\0" for c in host):
        raise AddressError(f"{text!r}: an address of TCP is HOST:PORT, or [HOST]:PORT for IPv6")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) <= 65_535):
        raise AddressError(f"{text!r}: a port is a number from 0 to 65535")
    return HostPort(host or LOOPBACK, int(digits))


def is_loopback(host: str) -> bool:
    """Whether ``host`` means this machine and is not reachable from any other: all of its addresses are loopback.

    Raises :exc:`~sbuslib.errors.AddressError` when the name is not known.
    """
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise AddressError(f"{host!r} cannot be the name of a host") from None
    except OSError as error:
        raise AddressError(f"{host}: {error.strerror or error}") from None
    return all(ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in entries)
