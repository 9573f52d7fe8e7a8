"""Peers that find each other, and announcements that lead nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support import eventually

from sbuslib.errors import UsageError
from sbuslib.kernel.hosts import HostPort
from sbuslib.tcp import Discovery, Peer, TcpLimits
from sbuslib.tcp.discovery import networks_of, parse_announcement

Make = Callable[..., Peer]
Connect = Callable[..., Any]

HELLO = b"sub //peers/myorg\nsub //fwd/peers/myorg\nsub //hop/\n"


def neighbours(peer: Peer) -> list[str]:
    return sorted(link.who or "" for link in peer.links)


def test_peers_find_each_other_from_one_seed(make_peer: Make) -> None:
    whos = ["seed", "a", "b", "y", "z"]
    peers = {who: make_peer(discover=Discovery(org="myorg", who=who)) for who in whos}
    for who in whos[1:]:
        peers[who].connect(peers["seed"].address)
    eventually(lambda: all(neighbours(peer) == sorted(set(whos) - {who}) for who, peer in peers.items()))


def test_a_newcomer_hears_of_all_peers_and_a_peer_that_restarts_is_found_again(make_peer: Make) -> None:
    seed, early = (make_peer(discover=Discovery(org="myorg", who=who)) for who in ("seed", "m"))
    early.connect(seed.address)
    eventually(lambda: neighbours(early) == ["seed"])
    late = make_peer(discover=Discovery(org="myorg", who="n"))
    late.connect(seed.address)
    eventually(lambda: neighbours(late) == ["m", "seed"])
    [link] = [link for link in late.links if link.who == "m"]
    late.end_link(link, "lost", False)
    eventually(lambda: neighbours(late) == ["m", "seed"] and neighbours(early) == ["n", "seed"])


def test_discovery_on_the_wire(make_peer: Make, raw: Connect) -> None:
    peer = make_peer(discover=Discovery(org="myorg", who="bob", advertise="127.0.0.1:4242"))
    other = make_peer()
    connection = raw(peer)
    connection.expect(HELLO)
    connection.send(b"sub //peers/myorg/\n")
    connection.expect(b"pub //peers/myorg/bob 14 127.0.0.1 4242\n")
    host, port = other.address.split(":")
    data = f"{host} {port}".encode()
    connection.send(b"pub //fwd/peers/myorg/other %d %b\n" % (len(data), data))
    eventually(lambda: other.links)
    late = raw(peer)
    late.expect(HELLO)
    late.send(b"sub //fwd/peers/\n")
    # Copies of both: of what this peer says of itself, and of what it has heard.
    late.expect(b"pub //fwd/peers/myorg/bob 14 127.0.0.1 4242\npub //fwd/peers/myorg/other %d %b\n" % (len(data), data))


def test_a_peer_connects_only_to_allowed_hosts(make_peer: Make, raw: Connect) -> None:
    peer = make_peer(discover=Discovery(org="myorg", who="bob", allow=("127.0.0.2",)))
    forbidden = make_peer()
    allowed = make_peer("127.0.0.2:0")
    connection = raw(peer)
    for name, target in (("one", forbidden), ("two", allowed)):
        data = target.address.replace(":", " ").encode()
        connection.send(b"pub //fwd/peers/myorg/%b %d %b\n" % (name.encode(), len(data), data))
    eventually(lambda: allowed.links)
    assert not forbidden.links


def test_announcements_that_cannot_be_connected_to_do_not_end_discovery(make_peer: Make, raw: Connect) -> None:
    peer = make_peer(discover=Discovery(org="myorg", who="bob", advertise="127.0.0.1:9"))
    last = make_peer()
    connection = raw(peer)
    announced = [peer.address.replace(":", " "), "a..b 1", "nobody.invalid 1", last.address.replace(":", " ")]
    for number, data in enumerate(announced):
        connection.send(b"pub //fwd/peers/myorg/p%d %d %b\n" % (number, len(data), data.encode()))
    eventually(lambda: last.links)
    peer.greenlets.check()


def test_the_number_of_discovered_connections_is_bounded(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    few = msgspec.structs.replace(limits, discovered_links=2, known_peers=3)
    peer = make_peer(discover=Discovery(org="myorg", who="bob"), limits=few)
    targets = [make_peer() for _ in range(5)]
    inbox = peer.subscribe("end")
    connection = raw(peer)
    for number, target in enumerate(targets):
        data = target.address.replace(":", " ").encode()
        connection.send(b"pub //fwd/peers/myorg/p%d %d %b\n" % (number, len(data), data))
    connection.send(b"pub end 1 x\n")
    inbox.receive(timeout=10)
    eventually(lambda: sum(bool(target.links) for target in targets) == 2)
    assert peer._discoverer is not None
    assert (len(peer._discoverer.known), peer._discoverer.refused) == (3, 2)


def test_of_two_connections_between_the_same_peers_one_is_kept(make_peer: Make) -> None:
    # Both are told to connect to the other, so that there are two connections at first.
    one = make_peer(discover=Discovery(org="myorg", who="one", allow=()))
    two = make_peer(discover=Discovery(org="myorg", who="two", allow=()))
    one.connect(two.address, keep=False)
    two.connect(one.address, keep=False)
    eventually(lambda: neighbours(one) == ["two"] and neighbours(two) == ["one"])


@pytest.mark.parametrize(
    ("data", "address"),
    [
        (b"1.2.3.4 9014", HostPort("1.2.3.4", 9014)),
        (b"::1 1\n", HostPort("::1", 1)),
        (b"a.example 65535", HostPort("a.example", 65_535)),
        *[(bad, None) for bad in (b"", b"1.2.3.4", b"1.2.3.4 0", b"1.2.3.4 65536", b"1.2.3.4 x", b" 1", b"a\n b 1",
                                  b"1.2.3.4  1", b"\xff 1", b"h" * 300 + b" 1", b"1.2.3.4 1\n\n", b"a/b 1")],
    ],
)  # fmt: skip
def test_announcements_are_parsed(data: bytes, address: HostPort | None) -> None:
    assert parse_announcement(data) == address


@pytest.mark.parametrize("allow", [("10.0.0.0/33",), ("host.example",), "10.0.0.0/8"])
def test_hosts_are_allowed_by_networks(allow: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        networks_of(allow)


@pytest.mark.parametrize(
    "options", [{"org": "a/b"}, {"org": ""}, {"org": "a", "who": "b c"}, {"org": "a", "advertise": "h:0"}]
)
def test_wrong_arguments_of_discovery_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Discovery(**options)  # type: ignore[arg-type]


def test_who_misses_three_announcements_is_forgotten(make_peer: Make, raw: Connect) -> None:
    peer = make_peer(discover=Discovery(org="myorg", who="bob", allow=()))
    raw(peer).send(b"pub //fwd/peers/myorg/m 9 1.2.3.4 5\npub //fwd/peers/myorg/bad 1 x\n")
    discoverer = peer._discoverer
    assert discoverer is not None
    eventually(lambda: [*discoverer.known] == ["m"] and discoverer.refused == 1)
    heard = discoverer.known["m"].last
    for after, left in ((89, ["m"]), (91, [])):
        discoverer.expire(heard + after)
        assert [*discoverer.known] == left
