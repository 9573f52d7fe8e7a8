"""Checks of a hub's books, receivers whose kernel holds one packet, clients of other users, handlers of logging."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import gevent
import pytest
from support import Peer

from sbuslib.core.connection import Connection
from sbuslib.hub import Hub
from sbuslib.statistics import ClientStatistics, HubStatistics
from sbuslib.wire.batches import BATCH, Batch

BIG = 4_200
"""Bytes of a payload so long that the smallest send buffer takes one and no more. Some are longer: see :func:`big`."""

LARGEST = 4_500
"""Bytes of the largest payload that the smallest send buffer takes at all."""


def big(number: int, size: int = BIG) -> bytes:
    """A payload of ``size`` bytes that tells its number."""
    return (b"%08d" % number).ljust(size, b".")


def numbers(packets: list[bytes]) -> list[int]:
    """The numbers of messages with payloads of :func:`big`; other packets are left out."""
    return [int(packet.partition(b"\0")[2][:8]) for packet in packets if packet.startswith(b"MSG ")]


def opened(packets: Iterable[bytes]) -> list[bytes]:
    """Packets as if none had been batched."""
    return [one for packet in packets for one in (Batch.parse(packet).plain if packet.startswith(BATCH) else [packet])]


def settle(hub: Hub) -> None:
    """Let the event loop act on all that has happened, and on what the hub put off for the sake of other users."""
    while True:
        for _ in range(5):  # what one round brings about is seen in the next
            gevent.idle()
        if not hub.context.running.scheduler.anybody_waits():
            return
        gevent.sleep(0.0005)


def balance(hub: Hub) -> None:
    """What was routed was delivered, waits, or was lost and counted: for the hub and for each client."""
    whole = hub.statistics()
    parts: list[HubStatistics | ClientStatistics] = [whole, *whole.per_client]
    for part in parts:
        assert part.routed == part.delivered + part.waiting + sum(part.lost.values()), part
        assert min(part.delivered, part.waiting, *part.lost.values(), 0) == 0, part
    for name in ("delivered", "waiting", "routed"):
        assert getattr(whole, name) >= sum(getattr(client, name) for client in whole.per_client)


def connection_of(hub: Hub, peer: Peer) -> Connection:
    """The hub's end of a peer's connection, told by the question that it answers."""
    settle(hub)
    before = {connection: connection.commands for connection in hub.clients.connections.values()}
    peer.barrier()
    (found,) = (
        connection
        for connection in hub.clients.connections.values()
        if connection.commands != before.get(connection, 0)
    )
    return found


def narrow(hub: Hub, peer: Peer) -> Connection:
    """Make the kernel hold one big packet for this peer, and give the hub's end of its connection."""
    connection = connection_of(hub, peer)
    connection.outbound.grow(anyway=True)  # once: the next line narrows it
    connection.outbound.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    return connection


@contextmanager
def acting_as(uid: int, gid: int | None = None) -> Iterator[None]:
    """Be another user meanwhile; the kernel tells a hub so of connections that are made in here."""
    if os.getuid() != 0:
        pytest.skip("only root can act as another user")
    own = os.getegid()
    os.setegid(uid if gid is None else gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(own)


@contextmanager
def called_by_logging(function: Callable[[], None]) -> Iterator[None]:
    """Have a function called for each line that is logged meanwhile."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            function()

    handler = Handler()
    logging.getLogger("sbuslib").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("sbuslib").removeHandler(handler)
