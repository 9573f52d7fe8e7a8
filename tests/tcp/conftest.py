"""Fixtures for peers over TCP: peers that are stopped after the test, and raw connections that send and read bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import gevent
import pytest
from gevent import socket
from support import PATIENCE

from sbuslib.kernel.hosts import parse_host_port
from sbuslib.tcp import Peer, TcpLimits


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


Make: TypeAlias = Callable[..., Peer]
Connect: TypeAlias = Callable[..., Raw]
"""What the fixtures ``make_peer`` and ``raw`` give."""


@pytest.fixture
def limits() -> TcpLimits:
    """Limits with short pauses, so that tests are quick."""
    return TcpLimits(reconnect_pause=0.01, reconnect_pause_most=0.05, yield_seconds=0.1)


@pytest.fixture
def make_peer(limits: TcpLimits) -> Iterator[Make]:
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
        assert peer.held_bytes == 0, "what a connection was charged it did not give back"


@pytest.fixture
def raw() -> Iterator[Connect]:
    """Connect a raw connection to a peer; closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(peer: Peer, source: str | None = None) -> Raw:
            connection = Raw(peer.address, source)
            stack.callback(connection.socket.close)
            return connection

        yield make
