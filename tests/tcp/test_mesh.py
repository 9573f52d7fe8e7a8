"""Forwarding between peers: each message once in a mesh, a ring and a line, and then silence."""

from __future__ import annotations

import msgspec
import pytest
from support import eventually

from sbuslib.tcp import Peer, Publish, TcpLimits

from .conftest import Connect, Make

NAME, COPY = "//myorg/chat/main", "//fwd/myorg/chat/main"

SHAPES = {
    "mesh": [(a, b) for a in range(5) for b in range(a)],
    "ring": [(a, (a + 1) % 5) for a in range(5)],
    "line": [(a, a + 1) for a in range(4)],
    "two rings": [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 2)],
}


def join(peers: list[Peer], pairs: list[tuple[int, int]]) -> None:
    for a, b in pairs:
        peers[a].connect(peers[b].address)
    for number, peer in enumerate(peers):
        peer.wait_for_subscriber(COPY, sum(number in pair for pair in pairs), timeout=20)
    eventually(lambda: all(link.numbered for peer in peers for link in peer.links))


def still(peers: list[Peer], strangers: int = 0) -> None:
    """Wait until all sent messages were received, besides those of strangers, and no more are sent."""
    eventually(
        lambda: (
            sum(peer.statistics().received for peer in peers)
            == sum(peer.statistics().sent for peer in peers) + strangers
            and not any(peer.statistics().waiting_bytes for peer in peers)
        )
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_each_message_once_everywhere_and_then_silence(make_peer: Make, shape: str) -> None:
    peers = [make_peer(forward=["//myorg/chat"]) for _ in range(5)]
    join(peers, SHAPES[shape])
    inboxes = [peer.subscribe("//myorg/chat", "//fwd/myorg/chat") for peer in peers]
    for number, peer in enumerate(peers):
        for data in (b"%d" % number, b"equal", b"equal"):
            peer.publish(NAME, data)
    eventually(lambda: all(len(inbox) >= 12 for inbox in inboxes))
    still(peers)
    before = [peer.statistics() for peer in peers]
    for number, inbox in enumerate(inboxes):
        got = sorted(message.data for message in inbox.receive_many())
        assert got == sorted([b"%d" % other for other in range(5) if other != number] + [b"equal"] * 8)
    still(peers)
    assert [peer.statistics() for peer in peers] == before
    assert all(statistics.hop_limit == 0 for statistics in before)


def test_the_hop_limit_ends_a_loop_that_nothing_else_ends(make_peer: Make, limits: TcpLimits) -> None:
    short = msgspec.structs.replace(limits, hops=2)
    peers = [make_peer(forward=["//myorg/chat"], limits=short) for _ in range(5)]
    join(peers, SHAPES["line"])
    inboxes = [peer.subscribe("//fwd/myorg/chat", "//myorg/chat") for peer in peers]
    peers[0].publish(NAME, b"x")
    for inbox in inboxes[1:4]:
        assert inbox.receive(timeout=20).data == b"x"
    still(peers)
    assert len(inboxes[4]) == 0
    assert peers[3].statistics().hop_limit == 1


def test_the_forwarding_convention_on_the_wire(make_peer: Make, raw: Connect) -> None:
    peer = make_peer(forward=["myorg/chat"])
    one, two = raw(peer), raw(peer)
    hello = b"sub //myorg/chat\nsub //fwd/myorg/chat\nsub //hop/\n"
    for connection in (one, two):
        connection.expect(hello)
    two.send(b"sub //fwd/myorg/chat\n")
    one.send(b"sub //fwd/myorg/chat\nsub //myorg/chat\n")
    peer.wait_for_subscriber(COPY, 2, timeout=10)
    one.send(b"pub //myorg/chat 5 hello\npub //myorg/chat/main 2 hi\npub //myorg/chatter 1 x\n")
    two.expect(b"pub //fwd/myorg/chat 5 hello\npub //fwd/myorg/chat/main 2 hi\n")
    two.send(b"pub //fwd/myorg/chat/far 3 far\n")
    one.expect(b"pub //fwd/myorg/chat/far 3 far\n")  # and nothing of its own before
    peer.publish("//myorg/chat", b"own")
    one.expect(b"pub //myorg/chat 3 own\n")  # once, though it wants copies too
    two.expect(b"pub //fwd/myorg/chat 3 own\n")
    one.send(b"unsub //myorg/chat\nsub end\n")
    peer.wait_for_subscriber("end", timeout=10)
    peer.publish("//fwd/myorg/chat", b"as a copy")
    for connection in (one, two):
        connection.expect(b"pub //fwd/myorg/chat 9 as a copy\n")


def test_equal_messages_of_two_plain_programs_are_two(make_peer: Make, raw: Connect) -> None:
    peer = make_peer(forward=["myorg/chat"])
    inbox = peer.subscribe("//myorg/chat")
    for _ in range(2):
        raw(peer).send(b"pub //myorg/chat 2 hi\n")
    assert [inbox.receive(timeout=10), inbox.receive(timeout=10)] == [Publish("//myorg/chat", b"hi")] * 2


def test_plain_programs_that_send_everything_back_cause_no_circle(make_peer: Make, raw: Connect) -> None:
    """Two peers are joined by two programs, each of which sends on all that it gets, without numbers."""
    peers = [make_peer(forward=["myorg/chat"]) for _ in range(2)]
    inboxes = [peer.subscribe("//myorg/chat", "//fwd/myorg/chat") for peer in peers]
    wires = [[raw(peer) for peer in peers] for _ in range(2)]
    hello = b"sub //myorg/chat\nsub //fwd/myorg/chat\nsub //hop/\n"
    for pair in wires:
        for wire in pair:
            wire.expect(hello)
            wire.send(b"sub //fwd/myorg/chat\n")
    for peer in peers:
        peer.wait_for_subscriber(COPY, 2, timeout=10)
    copy = b"pub //fwd/myorg/chat 2 hi\n"
    peers[0].publish("//myorg/chat", b"hi")
    for a, b in wires:  # the programs pass on from the first to the second
        a.expect(copy)
        b.send(copy)
    assert inboxes[1].receive(timeout=10).data == b"hi"
    # The second passes on the first that came, to the program that it did not come from, which passes on to the first.
    eventually(lambda: peers[1].statistics().received == 2)
    assert peers[1].statistics().forwarded == 1
    assert peers[1].statistics().repeated == 1
    for a, _ in wires:
        a.send(copy)
    eventually(lambda: peers[0].statistics().repeated == 2)
    assert [len(inbox) for inbox in inboxes] == [0, 0]
    assert peers[0].statistics().forwarded == 0


def test_a_publisher_at_two_peers_is_heard_once_by_each(make_peer: Make, raw: Connect) -> None:
    peers = [make_peer(forward=["myorg/chat"]) for _ in range(2)]
    join(peers, [(0, 1)])
    inboxes = [peer.subscribe("//myorg/chat", "//fwd/myorg/chat") for peer in peers]
    for wire in [raw(peer) for peer in peers]:
        wire.send(b"pub //myorg/chat 2 hi\n")
    still(peers, strangers=2)
    assert [[message.data for message in inbox.receive_many(timeout=10)] for inbox in inboxes] == [[b"hi"], [b"hi"]]


def test_a_peer_that_wants_only_copies_gets_them_from_the_publisher_too(make_peer: Make) -> None:
    one, two = make_peer(forward=["myorg/chat"]), make_peer()
    inbox = two.subscribe("//fwd/myorg/chat")
    two.connect(one.address)
    one.wait_for_subscriber(COPY, timeout=10)
    one.publish("//myorg/chat", b"x")
    assert inbox.receive(timeout=10) == Publish("//fwd/myorg/chat", b"x")
