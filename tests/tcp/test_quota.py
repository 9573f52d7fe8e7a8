"""What the connections of one address may hold together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs
from support import eventually

from sbuslib.tcp import Peer, TcpLimits

Make = Callable[..., Peer]
Connect = Callable[..., Any]


def test_connections_of_one_address_are_bounded_and_leave_room_for_others(
    make_peer: Make, raw: Connect, limits: TcpLimits
) -> None:
    peer = make_peer(limits=structs.replace(limits, address_links=2))
    first, _ = raw(peer), raw(peer)
    eventually(lambda: len(peer.links) == 2)
    raw(peer).expect_end()
    raw(peer, "127.0.0.2").send(b"sub other\n")
    peer.wait_for_subscriber("other", timeout=10)
    first.socket.close()
    eventually(lambda: len(peer.links) == 2)
    raw(peer).send(b"sub again\n")
    peer.wait_for_subscriber("again", timeout=10)
    assert peer.statistics().breaches == {"too many connections of one address": 1}


def test_substrings_of_one_address_are_bounded(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=structs.replace(limits, address_substrings=3))
    one, two = raw(peer), raw(peer)
    one.send(b"sub a\nsub b\n")
    peer.wait_for_subscriber("b", timeout=10)
    two.send(b"sub c\nsub d\n")
    two.expect_end()
    raw(peer, "127.0.0.2").send(b"sub d\n")
    peer.wait_for_subscriber("d", timeout=10)


def test_queued_bytes_of_one_address_are_bounded(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=structs.replace(limits, address_queued_bytes=2_500))
    links = [raw(peer) for _ in range(2)]
    for connection in links:
        connection.send(b"sub a\n")
    peer.wait_for_subscriber("a", 2, timeout=10)
    peer.publish_many([("a", b"x" * 988)])  # 998 bytes to each of two: nothing yields in between
    peer.publish("a", b"x" * 988)
    assert sum(link.lost for link in peer.links) == 2
    for connection in links:
        connection.expect(b"pub a 988 " + b"x" * 988 + b"\n")
