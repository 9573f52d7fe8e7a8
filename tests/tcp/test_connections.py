"""Connections that a peer makes, and makes again."""

from __future__ import annotations

from contextlib import suppress

import gevent
import pytest
from msgspec import structs
from support import PATIENCE, eventually

from sbuslib.errors import StateError, UsageError
from sbuslib.tcp import Peer, TcpLimits, peer_link

from .conftest import Connect, Make


def test_the_number_of_connections_is_bounded(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=structs.replace(limits, links=1))
    raw(peer).send(b"sub a\n")
    peer.wait_for_subscriber("a", timeout=10)
    raw(peer).expect_end()


def test_a_lost_connection_is_made_again(make_peer: Make, limits: TcpLimits) -> None:
    first = make_peer()
    other = make_peer()
    inbox = other.subscribe("a")
    address = first.address
    other.connect(address)
    first.wait_for_subscriber("a", timeout=10)
    with pytest.raises(StateError):
        other.connect(address)
    first.stop()
    eventually(lambda: not other.links)
    again = make_peer(address)
    again.wait_for_subscriber("a", timeout=20)
    again.publish("a", b"x")
    assert inbox.receive(timeout=10).data == b"x"
    other.disconnect(address)
    eventually(lambda: not again.links)
    assert not other.is_dialling(address)


def test_connect_without_waiting_returns_at_once_and_that_nobody_listens_is_told_once(
    make_peer: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "sbuslib")
    one = make_peer()
    address = one.address
    one.stop()
    other = make_peer(None)
    with pytest.raises(ConnectionRefusedError):
        other.connect(address)
    assert not other.is_dialling(address)
    other.connect(address, wait=False)
    eventually(lambda: len(caplog.records) >= 3)
    assert caplog.messages[0] == f"peer: {address}: Connection refused; it is tried again"
    assert [record.levelname for record in caplog.records[:3]] == ["WARNING", "DEBUG", "DEBUG"]
    one = make_peer(address)
    eventually(lambda: other.links)
    assert other.address == ""
    with pytest.raises(UsageError):
        one.connect(one.address)


def test_there_is_one_connection_to_an_address_whoever_asks_for_it_at_once(make_peer: Make) -> None:
    peer, other = make_peer(), make_peer()
    asking = [gevent.spawn(other.connect, peer.address) for _ in range(2)]
    gevent.joinall(asking, timeout=PATIENCE)
    assert [type(one.exception) for one in asking] == [type(None), StateError]
    assert len(other.links) == 1
    assert other.statistics().links_total == 1


def test_disconnect_ends_a_connection_that_is_still_being_made(make_peer: Make) -> None:
    peer, other = make_peer(), make_peer()
    asking = gevent.spawn(other.connect, peer.address)
    gevent.sleep(0)
    assert other.is_dialling(peer.address)
    other.disconnect(peer.address)
    asking.join(PATIENCE)
    assert isinstance(asking.exception, StateError)
    assert not other.is_dialling(peer.address)
    assert other.statistics().links_total == 0
    other.connect(peer.address)
    assert len(other.links) == 1


def test_an_impossible_host_name_is_refused(make_peer: Make) -> None:
    peer = make_peer(None, insecure=True)
    with pytest.raises(OSError, match="cannot be the name of a host"):
        peer.connect("a..b:9")
    peer.connect("a..b:9", wait=False)
    gevent.sleep(0)
    assert peer.is_dialling("a..b:9")
    peer.greenlets.check()


def test_a_peer_listens_on_loopback_unless_it_has_tls_or_is_insecure(make_peer: Make) -> None:
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0"):
        with pytest.raises(UsageError, match="other machines"):
            Peer(address)
        Peer(address, insecure=True)
    assert make_peer(":0").address.startswith("127.0.0.1:")
    try:
        peer = make_peer("[::1]:0")
    except OSError:
        return  # there is no IPv6 here
    make_peer().connect(peer.address)
    eventually(lambda: peer.links)


def test_slow_readers_cost_no_more_than_all_may_hold(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    """Whatever addresses they come from. Those that keep up stay, and lose nothing."""
    most = 16_000_000
    peer = make_peer(limits=structs.replace(limits, all_bytes=most))
    slow = [raw(peer, f"127.0.0.{1 + number % 17}") for number in range(60)]
    for connection in slow:
        connection.send(b"sub a\n")
    peer.wait_for_subscriber("a", len(slow), timeout=PATIENCE)
    quick = raw(peer)
    quick.send(b"sub a\n")
    peer.wait_for_subscriber("a", len(slow) + 1, timeout=PATIENCE)
    data = bytes(500_000)
    for _ in range(40):
        peer.publish("a", data)
        assert peer.held_bytes <= most
        quick.expect(b"pub a 500000 " + data + b"\n")
    statistics = peer.statistics()
    assert statistics.violations["holds the most while all hold too much"] > 20
    assert statistics.waiting_bytes <= most
    quick.send(b"sub b\n")
    peer.wait_for_subscriber("b", timeout=PATIENCE)


def test_unfinished_commands_cost_no_more_than_all_may_hold(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=structs.replace(limits, all_bytes=1_000_000))
    connections = [raw(peer) for _ in range(10)]
    for connection in connections:
        with suppress(ConnectionError):
            connection.send(b"pub a 400000 " + bytes(300_000))
    eventually(lambda: sum(peer.statistics().violations.values()) == 7 and peer.held_bytes > 900_000)
    assert peer.held_bytes < 1_000_000


@pytest.mark.parametrize("turn", [peer_link._TURN_SECONDS, -1.0], ids=["one turn", "a turn each"])
def test_substrings_of_all_are_bounded_and_who_holds_the_most_has_to_go(
    make_peer: Make, raw: Connect, limits: TcpLimits, monkeypatch: pytest.MonkeyPatch, turn: float
) -> None:
    monkeypatch.setattr(peer_link, "_TURN_SECONDS", turn)
    peer = make_peer(limits=structs.replace(limits, all_substrings=100))
    modest, greedy = raw(peer), raw(peer)
    modest.send(b"sub modest\n")
    peer.wait_for_subscriber("modest", timeout=PATIENCE)
    greedy.send(b"".join(b"sub %d\n" % number for number in range(200)))
    greedy.expect_end()
    assert peer.statistics().violations == {"holds the most while all hold too much": 1}
    assert peer.statistics().substrings == 1
