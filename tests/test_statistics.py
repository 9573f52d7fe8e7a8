"""Statistics of a hub: frozen, true at each instant, and given to trusted clients only."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from accounting import acting_as, big, narrow
from clients.makers import greeted
from support import Bus, Connect, ConnectAs, FakeHub, MakeClient, eventually

from sbuslib.core import records, reporting
from sbuslib.errors import PeerError, StateError
from sbuslib.statistics import (
    ClientPage,
    HubStatistics,
    LinkPage,
    UserStatistics,
    decode_clients,
    decode_held_patterns,
    decode_links,
    decode_statistics,
)


@pytest.mark.parametrize("number", [b"-1", b"1e400", b"9" * 19, b"9" * 5_000, b"1.5", b"NaN", b'"7"'])
def test_numbers_that_no_hub_has_are_an_error_of_the_peer(bus: Bus, number: bytes) -> None:
    good = msgspec.json.encode(bus().statistics())
    assert decode_statistics(good, "/tmp/bus").clients == 0
    with pytest.raises(PeerError):
        decode_statistics(good.replace(b'"clients":0', b'"clients":' + number), "/tmp/bus")
    with pytest.raises(PeerError):
        decode_statistics(b"[" * 100_000, "/tmp/bus")


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Each object in what was read from JSON."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(inner)
    if isinstance(value, dict):
        yield value


def test_a_new_client_reads_the_statistics_of_an_older_hub(bus: Bus, connect: Connect) -> None:
    hub = bus()
    connect().subscribe(b"k")
    eventually(lambda: hub.statistics().patterns)
    told = msgspec.json.decode(msgspec.json.encode(hub.statistics()))
    for number in range(len(list(parts(told)))):
        for name in list(parts(told))[number]:
            older = copy.deepcopy(told)
            del list(parts(older))[number][name]
            decode_statistics(msgspec.json.encode(older), "/tmp/bus")
    assert decode_statistics(b"{}", "/tmp/bus") == HubStatistics()
    assert decode_clients(b"{}", "/tmp/bus", 0) == ClientPage()
    assert decode_links(b"{}", "/tmp/bus", 0) == LinkPage()


def test_an_older_client_reads_the_statistics_of_a_new_hub(bus: Bus, connect: Connect) -> None:
    hub = bus()
    connect().subscribe(b"k")
    eventually(lambda: hub.statistics().patterns)
    now = hub.statistics()
    newer = msgspec.json.decode(msgspec.json.encode(now))
    for one in list(parts(newer)):
        if "patterns" in one:  # one of the structs, and no dictionary of counts
            one["what was added later"] = {"x": [1]}
    assert decode_statistics(msgspec.json.encode(newer), "/tmp/bus") == now
    for frozen in (now, now.per_client[0], now.per_user[0]):
        with pytest.raises(AttributeError):
            frozen.published = 1  # type: ignore[misc]


def test_the_hub_its_clients_and_its_users(bus: Bus, connect_as: ConnectAs) -> None:
    hub = bus({"mode": 0o777}, queued_packets=3)
    reader = connect_as(1001)
    reader.send(b"SUB k", b"SUB longer/pattern", b"CMSG order/stack")
    narrow(hub, reader)
    publisher = connect_as(1002)
    for number in range(6):
        publisher.publish(b"k", big(number))
    publisher.barrier()
    told = hub.statistics()
    assert (told.hub_id.encode(), told.address) == (hub.hub_id, hub.address)
    assert (told.clients, told.clients_peak, told.clients_total, told.patterns) == (2, 2, 2, 2)
    assert (told.published, told.routed, told.delivered, told.waiting, told.lost) == (6, 6, 1, 3, {"overflow": 2})
    slow, other = sorted(told.per_client, key=lambda client: client.credentials)
    assert (slow.patterns, slow.published, slow.routed, slow.order) == (2, 0, 6, "stack")
    assert (slow.waiting, slow.waiting_peak, slow.lost) == (3, 3, {"overflow": 2})
    assert (other.published, other.routed, other.lost) == (6, 0, {})
    users = {user.uid: user for user in told.per_user}
    assert users[1001] == UserStatistics(
        uid=1001,
        connections=1,
        patterns=2,
        pattern_bytes=users[1001].pattern_bytes,
        waiting_packets=3,
        waiting_bytes=3 * (len(big(0)) + len(b"MSG k\0")),
        buffer_bytes=users[1001].buffer_bytes,
        published=0,
        routed=6,
        delivered=1,
        lost={"overflow": 2},
    )
    assert users[1001].pattern_bytes >= len(b"klonger/pattern")
    assert (users[1002].connections, users[1002].patterns, users[1002].waiting_packets) == (1, 0, 0)
    reader.close()
    publisher.close()
    eventually(lambda: not hub.statistics().clients)
    after = hub.statistics()
    assert (after.published, after.routed, after.delivered, after.waiting) == (6, 6, 1, 0)
    assert after.lost == {"overflow": 2, "outage": 3}
    assert after.per_client == ()
    left = {user.uid: (user.connections, user.published, user.routed, user.lost) for user in after.per_user}
    assert left == {1001: (0, 0, 6, {"overflow": 2, "outage": 3}), 1002: (0, 6, 0, {})}


def test_totals_of_users_that_left_are_bounded(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "USERS_REMEMBERED", 2)
    hub = bus({"mode": 0o777})
    for uid in (1001, 1002, 1003):
        peer = connect_as(uid)
        peer.publish(b"k")
        peer.barrier()
        peer.close()
        eventually(lambda: not hub.statistics().clients)
    told = hub.statistics()
    assert told.published == 3
    assert [user.uid for user in told.per_user] == [1002, 1003]


def test_statistics_that_do_not_fit_one_packet(bus: Bus, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the answer would never come."""
    hub = bus()
    connect().barrier()
    sizes = []
    for clients, users in ((1, 1), (0, 1), (0, 0)):
        encoded = hub.reporter.statistics()
        told = decode_statistics(encoded, "")
        assert (len(told.per_client), len(told.per_user), told.clients) == (clients, users, 1)
        sizes.append(len(encoded))
        monkeypatch.setattr("sbuslib.core.reporting.PACKET_BYTES", len(encoded) - 1)
    assert sizes == sorted(sizes, reverse=True)


def test_each_of_many_clients_is_told_once(bus: Bus, connect: Connect, client: MakeClient) -> None:
    hub = bus()
    peers = [connect() for _ in range(2 * reporting.PAGE)]
    one = client()
    inbox = hub.subscribe(b"k")
    peers[3].send(b"SUB k")
    peers[3].barrier()
    for peer in peers[::2]:
        peer.close()
    eventually(lambda: hub.statistics().clients == len(peers) // 2 + 1)
    told = one.hub.clients()
    assert [client.number for client in told] == [0, *range(2, 2 * reporting.PAGE + 1, 2), 2 * reporting.PAGE + 1]
    assert [client.number for client in told if client.patterns] == [0, 4]
    inbox.unsubscribe()


def test_statistics_and_clients_are_told_to_the_trusted_only(bus: Bus, connect_as: ConnectAs) -> None:
    hub = bus({"mode": 0o777, "trusted": [1001]})
    stranger, friend = connect_as(1002), connect_as(1001)
    stranger.send(b"CMSG hub/statistics", b"CMSG hub/clients\x000")
    assert stranger.pending() == [b"CMSG hub/statistics\0", b"CMSG hub/clients\0"]
    friend.send(b"CMSG hub/statistics")
    told = decode_statistics(friend.receive().partition(b"\0")[2], "")
    assert {client.credentials.split("/")[3] for client in told.per_client} == {"1001", "1002"}
    for number, clients in ((b"0", 2), (b"2", 1), (b"3", 0), (b"9" * 18, 0)):
        friend.send(b"CMSG hub/clients\0" + number)
        page = decode_clients(friend.receive().partition(b"\0")[2], "", 0)
        assert (len(page.clients), page.next) == (clients, None)
    assert hub.statistics().violations == {}
    for number in (b"-1", b"x", b"1.5", b"9" * 19, b"\xb2"):
        friend = connect_as(1001)
        friend.send(b"CMSG hub/clients\0" + number)
        assert friend.is_disconnected()
    assert list(hub.statistics().violations) == ["no number of a client"]


def test_what_each_client_subscribes_to_is_told_to_the_trusted_only(bus: Bus, connect_as: ConnectAs) -> None:
    bus({"mode": 0o777, "trusted": [1001]})
    stranger, monitor, friend = connect_as(1002), connect_as(1003), connect_as(1001)
    stranger.send(b"SUB a/*", b"SUB a/*", b"SUB \xff", b"SUB !/cred//1002//x", b"CMSG hub/patterns\x000")
    assert stranger.receive() == b"CMSG hub/patterns\0"
    monitor.send(b"CMSG monitor/on", b"SUB m/")
    monitor.barrier()
    friend.send(b"CMSG hub/patterns\x000")
    page = decode_held_patterns(friend.receive().partition(b"\0")[2], "", 0)
    assert {one.credentials.split("/")[3]: (one.count, one.patterns) for one in page.clients} == {
        "1001": (0, ()),
        "1002": (2, (b"a/*", b"\xff")),
        "1003": (1, (b"m/",)),
    }
    assert not any(one.is_link for one in page.clients)


def test_patterns_of_many_clients_are_told_once_and_too_many_are_counted(
    bus: Bus, connect: Connect, client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus()
    held = (3, 40, 0, 5)
    for many in held:
        peer = connect()
        peer.send(*(b"SUB %0100d" % number for number in range(many)))
        peer.barrier()
    one = client()
    key = len(one.hub.whoami())
    monkeypatch.setattr(reporting, "PATTERN_BYTES", key + 100 + 10 * 116)
    found = one.hub.patterns()
    assert [(one.number, one.count) for one in found] == [*enumerate((*held, 0), 1)]
    assert [len(one.patterns) for one in found] == [3, 10, 0, 5, 0]


def test_a_client_that_gets_no_statistics_says_why(
    address: str, bus: Bus, connect_as: ConnectAs, client: MakeClient
) -> None:
    with FakeHub(f"{address}-old") as old:
        plain, _ = greeted(old, lambda: client(f"{address}-old"))
        with pytest.raises(StateError, match="cannot give statistics"):
            plain.hub.statistics()
    bus({"mode": 0o777})
    with acting_as(1002):
        stranger = client()
    with pytest.raises(StateError, match="trusted"):
        stranger.hub.statistics()
