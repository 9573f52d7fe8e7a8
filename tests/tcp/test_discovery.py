"""Peers that find each other, and announcements that lead nowhere."""

from __future__ import annotations

import msgspec
import pytest
from support import eventually

from sbuslib.errors import UsageError
from sbuslib.kernel.hosts import HostPort
from sbuslib.tcp import Discovery, Peer, TcpLimits
from sbuslib.tcp.discovery import networks_of, parse_announcement

from .conftest import Connect, Make, Raw

HELLO = b"sub //peers/myorg\nsub //fwd/peers/myorg\nsub //hop/\n"


def neighbours(peer: Peer) -> list[str]:
    return sorted(link.who or "" for link in peer.links)


def announce(connection: Raw, who: str, address: str) -> bytes:
    """Pass on where a peer says that it is; returns how that goes on."""
    data = address.replace(":", " ").encode()
    message = b"pub //fwd/peers/myorg/%b %d %b\n" % (who.encode(), len(data), data)
    connection.send(message)
    return message


def test_peers_find_each_other_from_one_seed_and_one_that_is_lost_is_found_again(make_peer: Make) -> None:
    whos = ["seed", "a", "b", "y", "z"]
    peers = {who: make_peer(discover=Discovery(org="myorg", who=who)) for who in whos}
    for who in whos[1:]:
        peers[who].connect(peers["seed"].address)
        known = whos[: whos.index(who) + 1]
        eventually(lambda known=known: all(neighbours(peers[one]) == sorted({*known} - {one}) for one in known))  # type: ignore[misc]
    [link] = [link for link in peers["z"].links if link.who == "a"]
    peers["z"].end_link(link, "lost", False)
    eventually(lambda: neighbours(peers["z"]) == ["a", "b", "seed", "y"] and "z" in neighbours(peers["a"]))


def test_discovery_on_the_wire(make_peer: Make, raw: Connect) -> None:
    peer = make_peer(discover=Discovery(org="myorg", who="bob", advertise="127.0.0.1:4242"))
    other = make_peer()
    connection = raw(peer)
    connection.expect(HELLO)
    connection.send(b"sub //peers/myorg/\n")
    connection.expect(b"pub //peers/myorg/bob 14 127.0.0.1 4242\n")
    said = announce(connection, "other", other.address)
    eventually(lambda: other.links)
    late = raw(peer)
    late.expect(HELLO)
    late.send(b"sub //fwd/peers/\n")
    # Copies of both: of what this peer says of itself, and of what it has heard.
    late.expect(b"pub //fwd/peers/myorg/bob 14 127.0.0.1 4242\n" + said)


def test_a_peer_connects_to_allowed_hosts_and_what_it_cannot_connect_to_does_not_end_discovery(
    make_peer: Make, raw: Connect
) -> None:
    discovery = Discovery(org="myorg", who="bob", advertise="127.0.0.2:9", allow=("127.0.0.2",))
    peer = make_peer("127.0.0.2:0", discover=discovery)
    forbidden, allowed = make_peer(), make_peer("127.0.0.2:0")
    connection = raw(peer)
    places = [peer.address, "a..b:1", "nobody.invalid:1", forbidden.address, allowed.address]
    for number, place in enumerate(places):
        announce(connection, f"p{number}", place)
    eventually(lambda: allowed.links)
    assert not forbidden.links
    peer.greenlets.check()


def test_the_number_of_discovered_connections_is_bounded(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    few = msgspec.structs.replace(limits, discovered_links=2, known_peers=3)
    peer = make_peer(discover=Discovery(org="myorg", who="bob"), limits=few)
    targets = [make_peer() for _ in range(5)]
    inbox = peer.subscribe("end")
    connection = raw(peer)
    for number, target in enumerate(targets):
        announce(connection, f"p{number}", target.address)
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
