"""Addresses of TCP, where one may listen without TLS, and TLS with certificates at both ends."""

from __future__ import annotations

import os
import socket
import ssl
from ipaddress import ip_address

import msgspec

from ..errors import AddressError, UsageError

__all__ = ["TLS", "HostPort", "is_loopback", "parse_host_port"]

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
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise AddressError(f"{host!r} cannot be the name of a host") from None
    except OSError as error:
        raise AddressError(f"{host}: {error.strerror or error}") from None
    return all(ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


class TLS:
    """A certificate of one's own, and the authority whose certificates one trusts, for both ends of TLS.

    Each end of a connection has to show a certificate of that authority. That of the end that listens must
    moreover name the host.

    :param cert: file with the certificate, and those between it and the authority (PEM).
    :param key: file with its private key (PEM).
    :param ca: file with the certificates of the authority (PEM).
    :param hostname: the name that the certificates of others are checked for, instead of the host connected to.

    Raises :exc:`~sbuslib.errors.UsageError` when a file cannot be used.
    """

    def __init__(
        self,
        cert: str | os.PathLike[str],
        key: str | os.PathLike[str],
        ca: str | os.PathLike[str],
        *,
        hostname: str | None = None,
    ) -> None:
        for what, path in (("certificate", cert), ("key", key), ("authority", ca)):
            if not os.access(path, os.R_OK):
                raise UsageError(f"{os.fspath(path)}: the TLS {what} cannot be read")
        self.hostname = hostname
        self.files = os.fspath(cert), os.fspath(key), os.fspath(ca)

    def contexts(self, kind: type[ssl.SSLContext]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """The context for accepting and the one for connecting, of the given class, such as gevent's."""
        cert, key, ca = self.files
        accepting = kind(ssl.PROTOCOL_TLS_SERVER)
        connecting = kind(ssl.PROTOCOL_TLS_CLIENT)
        accepting.verify_mode = ssl.CERT_REQUIRED
        for context in (accepting, connecting):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            try:
                context.load_cert_chain(cert, key)
                context.load_verify_locations(ca)
            except (ssl.SSLError, OSError) as error:
                raise UsageError(f"the TLS files {cert}, {key} and {ca} cannot be used: {error}") from None
        return accepting, connecting
