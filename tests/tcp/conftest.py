"""Fixtures for peers over TCP: peers that are stopped after the test, and raw connections that send and read bytes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent import socket

from sbuslib.kernel.hosts import parse_host_port
from sbuslib.tcp import Peer, TcpLimits

PATIENCE = 20.0


class Raw:
    """A plain TCP connection."""

    def __init__(self, address: str, source: str | None = None) -> None:
        target = parse_host_port(address)
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE)
        if source is not None:
            self.socket.bind((source, 0))
        self.socket.connect((target.host, target.port))
        self._held = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def expect(self, data: bytes) -> None:
        """The next bytes that come are these."""
        while len(self._held) < len(data):
            assert data.startswith(self._held), f"{self._held!r} instead of {data!r}"
            piece = self.socket.recv(65_536)
            assert piece, f"closed after {self._held!r}, before {data!r}"
            self._held += piece
        assert self._held.startswith(data), f"{self._held!r} instead of {data!r}"
        self._held = self._held[len(data) :]

    def expect_end(self) -> None:
        """The other end closes, and sends nothing before."""
        try:
            rest = self._held + self.socket.recv(65_536)
        except ConnectionResetError:
            rest = self._held
        assert rest == b""


@pytest.fixture
def limits() -> TcpLimits:
    """Limits with short pauses, so that tests are quick."""
    return TcpLimits(reconnect_pause=0.01, reconnect_pause_most=0.05, yield_seconds=0.1)


@pytest.fixture
def make_peer(limits: TcpLimits) -> Iterator[Callable[..., Peer]]:
    """Make and start a peer, at a free port of the loopback address; stopped after the test."""
    peers: list[Peer] = []

    def make(listener: str | None = "127.0.0.1:0", **options: Any) -> Peer:
        peer = Peer(listener, **({"limits": limits} | options))
        peers.append(peer)
        peer.start()
        return peer

    yield make
    for peer in peers:
        peer.stop(0)
    gevent.sleep(0)
    for peer in peers:
        assert peer.links == ()
        assert len(peer._connections._quotas) == 0


@pytest.fixture
def raw() -> Iterator[Callable[..., Raw]]:
    """Connect a raw connection to a peer; closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(peer: Peer, source: str | None = None) -> Raw:
            connection = Raw(peer.address, source)
            stack.callback(connection.socket.close)
            return connection

        yield make


@pytest.fixture
def certificates(folder: str) -> Callable[..., dict[str, str]]:
    """Make an authority and certificates of it, in files; each call another authority."""
    pytest.importorskip("cryptography")
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def write(name: str, data: bytes) -> str:
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def make(label: str = "one") -> dict[str, str]:
        now = datetime.datetime.now(datetime.UTC)

        def certificate(name: str, key: Any, issuer: Any, signer: Any, extensions: list[Any]) -> Any:
            subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
            builder = (
                x509.CertificateBuilder()
                .subject_name(subject)
                .issuer_name(issuer or subject)
                .public_key(key.public_key())
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - datetime.timedelta(days=1))
                .not_valid_after(now + datetime.timedelta(days=1))
            )
            for extension, critical in extensions:
                builder = builder.add_extension(extension, critical)
            return builder.sign(signer, hashes.SHA256())

        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = certificate(
            f"authority {label}",
            authority_key,
            None,
            authority_key,
            [(x509.BasicConstraints(ca=True, path_length=None), True)],
        )
        key = ec.generate_private_key(ec.SECP256R1())
        loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        own = certificate(f"peer {label}", key, authority.subject, authority_key, [(loopback, False)])
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return {
            "cert": write(f"{label}.pem", own.public_bytes(pem)),
            "key": write(f"{label}.key", private),
            "ca": write(f"{label}-ca.pem", authority.public_bytes(pem)),
        }

    return make
