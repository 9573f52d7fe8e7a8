"""Receivers that do not read, floods for them, and publishers that they hold."""

from __future__ import annotations

from accounting import big, narrow
from support import Peer

from sbuslib import Hub
from sbuslib.core.connection import Connection


def slow(hub: Hub, peer: Peer, *modes: bytes, pattern: bytes = b"k") -> Connection:
    """Have the peer subscribe and choose modes; its kernel then takes one big packet, which it does not read."""
    peer.send(b"SUB " + pattern, *(b"CMSG " + mode for mode in modes))
    return narrow(hub, peer)


def flood(publisher: Peer, start: int, stop: int, key: bytes = b"k") -> None:
    """Publish big messages with these numbers, in one go."""
    for number in range(start, stop):
        publisher.publish(key, big(number))


def is_held(connection: Connection) -> bool:
    return bool(connection.pausers)


def lost_notice(packet: bytes) -> tuple[str, int]:
    head, _, payload = packet.partition(b"\0")
    assert head == b"CMSG notice/lost", packet
    cause, count, since = payload.split()
    assert float(since) > 1.6e9
    return cause.decode(), int(count)
