"""What the application receives of a peer, and what is lost there."""

from __future__ import annotations

import gevent
import pytest
from msgspec import structs
from support import eventually

from sbuslib.errors import DisconnectedError
from sbuslib.tcp import TcpLimits
from sbuslib.tcp.framing import Publish
from sbuslib.tcp.peer_inbox import PeerInbox

from .conftest import Connect, Make


def test_a_full_inbox_counts_what_it_loses(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=structs.replace(limits, inbox_messages=3))
    inbox, other = peer.subscribe("a"), peer.subscribe("end")
    raw(peer).send(b"pub a 1 1\npub a 1 2\npub a 1 3\npub a 1 4\npub a 1 5\npub end 1 x\n")
    other.receive(timeout=10)
    assert inbox.lost == 2
    assert [message.data for message in inbox.receive_many()] == [b"1", b"2", b"3"]


def test_names_count_against_the_bytes_of_an_inbox(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=structs.replace(limits, inbox_bytes=5_000))
    inbox, other = peer.subscribe("a"), peer.subscribe("end")
    connection = raw(peer)
    for _ in range(10):
        connection.send(b"pub %b 1 x\n" % (b"a" * 999))
    connection.send(b"pub end 1 x\n")
    other.receive(timeout=10)
    assert (len(inbox), inbox.lost) == (5, 5)
    inbox.receive_many(most=2)
    assert inbox._bytes == 3_000
    inbox.receive_many()
    assert inbox._bytes == 0


def test_several_inboxes_subscribe_once_at_other_peers(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    connection = raw(peer)
    one, two = peer.subscribe("a", "b"), peer.subscribe("a")
    eventually(lambda: peer.links)
    connection.expect(b"sub a\nsub b\n")
    one.unsubscribe()
    connection.expect(b"unsub b\n")
    connection.send(b"pub a 1 x\n")
    assert two.receive(timeout=10).data == b"x"
    two.unsubscribe()
    connection.expect(b"unsub a\n")
    with pytest.raises(DisconnectedError):
        two.receive()
    assert list(two) == []


def test_a_wait_is_no_longer_while_others_take_what_comes(limits: TcpLimits) -> None:
    inbox = PeerInbox(limits, lambda inbox: None)
    waiting = gevent.spawn(inbox.receive, timeout=0.05)
    gevent.sleep(0)
    for _ in range(200):
        inbox.take([Publish("a", b"x")], None)
        assert inbox.receive(timeout=0).data == b"x"
        gevent.sleep(0.005)
        if waiting.ready():
            break
    assert isinstance(waiting.exception, TimeoutError)
