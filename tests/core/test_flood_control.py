"""Flood control over real sockets: each mode, the shares of several publishers, and the clients' side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import product
from typing import Any

import gevent
import pytest
from accounting import BIG, balance, big, connection_of, numbers, settle
from flooding import flood, is_held, slow
from support import PATIENCE, HubThread, Peer, eventually, own_key

import sbuslib
from sbuslib import Hub, Limits, blocking
from sbuslib.errors import DisconnectedError, UsageError
from sbuslib.wire.control import Kicked, Lost
from sbuslib.wire.modes import HARD, ORDER, SOFT

pytest_plugins = ["accounting_fixtures"]

Bus = Callable[..., Hub]
Connect = Callable[..., Peer]
ConnectAs = Callable[..., Peer]

ROOM = 4


# -- each cell of the table -------------------------------------------------------------------------------


@pytest.mark.parametrize(("soft", "hard"), list(product(SOFT, HARD)))
def test_each_mode(bus: Bus, connect: Connect, soft: str, hard: str) -> None:
    """Ten messages at once: one goes to the kernel, four have room, and of the other five the hard mode decides."""
    hub = bus(queued_packets=ROOM)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/" + soft.encode(), b"blocking/hard/" + hard.encode())
    publishing = connection_of(hub, publisher)
    flood(publisher, 0, 10)
    eventually(lambda: publishing.publisher.received == 10)
    settle(hub)
    balance(hub)

    if soft == "error" or (soft != "discard" and hard == "error"):
        assert receiving.outgoing.closed
        assert hub.statistics().breaches == {"does not keep up, and asked for error": 1}
        assert reader.receive() == b"MSG k\0" + big(0)
        assert reader.is_disconnected()
        assert sum(receiving.outgoing.lost.values()) == 9
        assert not is_held(publishing)
        publisher.barrier()
        return

    kept = {"discard": 1, "queue": 10 if hard == "block" else 5, "block": 10 if hard == "block" else 5}[soft]
    lost = {"discard": {"discard": 9}}.get(soft, {} if hard == "block" else {"overflow": 5})
    assert (receiving.outgoing.delivered, receiving.outgoing.queued, receiving.outgoing.lost) == (1, kept - 1, lost)
    held = soft == "block" or (soft == "queue" and hard == "block")
    assert is_held(publishing) is held
    flood(publisher, 10, 12)
    settle(hub)
    assert publishing.publisher.received == (10 if held else 12)

    got: list[int] = []
    while receiving.outgoing.queued or is_held(publishing):
        got += numbers([reader.receive()])
        balance(hub)
    publisher.barrier()
    reader.barrier()
    got += numbers(reader.pending())
    assert got == [*range(kept), *((10, 11) if held else ())]
    balance(hub)
    flood(publisher, 12, 13)
    assert numbers([reader.receive()]) == [12]


@pytest.mark.parametrize("order", ORDER)
def test_each_order(bus: Bus, connect: Connect, order: str) -> None:
    hub = bus()
    reader, publisher = connect(), connect()
    slow(hub, reader, b"order/" + order.encode())
    sizes = [BIG, BIG + 10, BIG + 30, BIG + 20, BIG + 30, BIG]
    for number, size in enumerate(sizes):
        publisher.publish(b"k", big(number, size))
    publisher.barrier()
    expected = {"queue": [0, 1, 2, 3, 4, 5], "stack": [0, 5, 4, 3, 2, 1], "random": [0, 2, 4, 3, 1, 5]}[order]
    assert numbers([reader.receive() for _ in sizes]) == expected


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        ({"queued_packets": 3}, "overflow"),
        ({"queued_bytes": 3 * (BIG + 6)}, "overflow"),
        ({"user_queued_packets": 6}, "quota"),
        ({"user_queued_bytes": 6 * (BIG + 6)}, "quota"),
    ],
)
@pytest.mark.parametrize("hard", HARD)
def test_each_way_to_be_full(bus: Bus, connect: Connect, limits: dict[str, int], cause: str, hard: str) -> None:
    hub = bus(**limits)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/hard/" + hard.encode())
    publishing = connection_of(hub, publisher)
    flood(publisher, 0, 5)
    eventually(lambda: publishing.publisher.received == 5)
    settle(hub)
    if hard == "error":
        assert receiving.outgoing.lost == {cause: 1, "outage": 3}
        return
    assert receiving.outgoing.lost == ({cause: 1} if hard == "discard" else {})
    assert is_held(publishing) is (hard == "block")
    assert numbers([reader.receive() for _ in range(4)]) == [0, 1, 2, 3]
    publisher.barrier()
    assert numbers(reader.pending()) == ([4] if hard == "block" else [])


# -- a mode that changes midway ---------------------------------------------------------------------------


def test_queue_becomes_discard(bus: Bus, connect: Connect) -> None:
    """What waits already is kept; what comes then is lost until nothing waits."""
    hub = bus()
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader)
    flood(publisher, 0, 3)
    publisher.barrier()
    reader.send(b"CMSG blocking/soft/discard")
    eventually(lambda: receiving.outgoing.outbox.soft == "discard")
    flood(publisher, 3, 6)
    publisher.barrier()
    assert numbers([reader.receive() for _ in range(3)]) == [0, 1, 2]
    flood(publisher, 6, 7)
    assert numbers([reader.receive()]) == [6]
    assert receiving.outgoing.lost == {"discard": 3}


def test_error_mode_that_is_changed_at_once_kicks_no_receiver(bus: Bus, connect: Connect) -> None:
    """The newest mode counts, also when both come in the same turn."""
    hub = bus()
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/error", b"blocking/soft/discard")
    flood(publisher, 0, 5)
    publisher.barrier()
    assert (receiving.outgoing.closed, receiving.outgoing.lost) == (False, {"discard": 4})


# -- the share of one queue --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [b"blocking/soft/block", b"blocking/hard/block"])
def test_publisher_below_its_share_is_not_held_beside_a_flood(bus: Bus, connect_as: ConnectAs, mode: bytes) -> None:
    """Another user's flood has filled the queue of eight messages: of two users, each may have four there."""
    hub = bus({"mode": 0o777, "trusted": [1003]}, queued_packets=8)
    reader = connect_as(1003)
    receiving = slow(hub, reader, mode)
    flooding_peer, modest_peer = connect_as(1001), connect_as(1002)
    flooding, modest = connection_of(hub, flooding_peer), connection_of(hub, modest_peer)
    flood(flooding_peer, 0, 9)
    eventually(lambda: flooding.publisher.received == 9)
    flood(flooding_peer, 9, 12)
    settle(hub)
    hard = b"hard" in mode
    assert flooding.publisher.received == (12 if hard else 9)  # with hard block it is held by the tenth message
    assert is_held(flooding)
    for number in range(100, 104):
        flood(modest_peer, number, number + 1)
        modest_peer.barrier()
        assert not is_held(modest)
    flood(modest_peer, 104, 105)
    settle(hub)
    assert is_held(modest) is hard  # with soft block alone, a full queue loses what is over the share
    balance(hub)
    got: list[int] = []
    while receiving.outgoing.queued or is_held(flooding) or is_held(modest):
        got += numbers([reader.receive()])
        settle(hub)
        waiting = receiving.outgoing.outbox._by_user.packets.held
        assert is_held(flooding) <= (waiting(1001) > 3 or not waiting(1002))
    reader.barrier()
    got += numbers(reader.pending())
    assert [number for number in got if number < 100] == [*range(12 if hard else 10)]
    assert [number for number in got if number >= 100] == [*range(100, 105 if hard else 104)]


def test_messages_below_the_share_find_the_queue_never_full(bus: Bus, connect_as: ConnectAs) -> None:
    """Also in the default modes, where a full queue loses messages."""
    hub = bus({"mode": 0o777}, queued_packets=4)
    reader, flooding, modest = connect_as(1003), connect_as(1001), connect_as(1002)
    receiving = slow(hub, reader)
    flood(flooding, 0, 9)
    flooding.barrier()
    assert receiving.outgoing.lost == {"overflow": 4}
    flood(modest, 100, 103)
    modest.barrier()
    flood(flooding, 9, 10)
    flooding.barrier()
    assert receiving.outgoing.lost == {"overflow": 6}
    assert numbers([reader.receive() for _ in range(7)]) == [0, 1, 2, 3, 4, 100, 101]


# -- shares -----------------------------------------------------------------------------------------------


def test_publishers_that_flood_take_shares_from_one_another(bus: Bus, connect_as: ConnectAs) -> None:
    """The example of the design, over sockets: room for 1,024; one sender takes 512, a second 170, then again 512."""
    hub = bus({"mode": 0o777}, user_queued_packets=1_024)
    receivers, connections = [], []
    for pattern in (b"one", b"other"):
        receivers.append(connect_as(1001))
        connections.append(slow(hub, receivers[-1], pattern=pattern))
    account = connections[0].outgoing.account
    assert connections[1].outgoing.account is account
    first, second = connect_as(1002), connect_as(1003)
    flood(first, 0, 600, b"one")
    first.barrier()
    assert connections[0].outgoing.queued == 512
    flood(second, 0, 600, b"other")
    second.barrier()
    assert connections[1].outgoing.queued == 170
    assert (account.packets.held(1002), account.packets.held(1003)) == (512, 170)
    assert connections[0].outgoing.lost == {"quota": 600 - 1 - 512}
    user = next(user for user in hub.statistics().per_user if user.uid == 1001)
    assert user.queued_packets == 682
    assert user.queued_bytes == 512 * (BIG + 8) + 170 * (BIG + 10)
    balance(hub)
    assert numbers([receivers[0].receive() for _ in range(513)]) == list(range(513))
    assert account.packets.held(1002) == 0
    flood(second, 600, 1_000, b"other")
    second.barrier()
    assert connections[1].outgoing.queued == 512
    for _ in range(513):
        receivers[1].receive()
    assert account.packets.used == account.queued_bytes.used == 0


def test_a_flooded_user_does_not_cost_another(bus: Bus, connect_as: ConnectAs) -> None:
    hub = bus({"mode": 0o777}, user_queued_packets=8)
    flooded, spared = connect_as(1001), connect_as(1002)
    slow(hub, flooded, pattern=b"k")
    receiving = slow(hub, spared, pattern=b"k")
    publisher = connect_as(1003)
    flood(publisher, 0, 4)
    publisher.barrier()
    assert receiving.outgoing.queued == 3
    assert numbers([spared.receive() for _ in range(4)]) == [0, 1, 2, 3]
    flood(publisher, 4, 8)
    publisher.barrier()
    assert numbers([spared.receive() for _ in range(4)]) == [4, 5, 6, 7]
    assert receiving.outgoing.lost == {}


def test_block_does_not_get_around_a_users_maximum(bus: Bus, connect: Connect) -> None:
    """What is kept for publishers that are held may stand over a share, and over no user's maximum."""
    hub = bus(user_queued_packets=40)
    readers, publishers = [], []
    for number in range(4):
        readers.append(connect())
        receiving = slow(hub, readers[-1], b"blocking/hard/block", pattern=b"%d" % number)
        publishers.append(connect())
        flood(publishers[-1], 0, 30, b"%d" % number)
        settle(hub)
        balance(hub)
        assert receiving.outgoing.account.packets.used <= 40
    assert receiving.outgoing.account.packets.used == 40
    assert hub.statistics().lost["quota"] == 4 * 30 - 4 - 40
    for reader in readers:
        reader.pending()
    for publisher in publishers:
        publisher.barrier()  # nobody is held any more


# -- the client's side ------------------------------------------------------------------------------------


@pytest.fixture(params=[sbuslib.Client, blocking.Client], ids=["gevent", "blocking"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_client_chooses(address: str, kind: Any) -> None:
    with HubThread(address) as server, kind(address) as client:
        client.flood_control(soft="block", hard="error")
        client.flood_control(order="stack")
        client.flood_control(soft="discard")
        client.sync()
        (told,) = server.call(server.hub.statistics).per_client
        assert (told.soft, told.hard, told.order) == ("discard", "error", "stack")


@pytest.mark.parametrize(
    "choice", [{"soft": "stack"}, {"hard": "queue"}, {"order": "block"}, {"soft": b"queue"}, {"hard": 1}]
)
def test_a_client_that_chooses_an_unknown_mode(address: str, kind: Any, choice: dict[str, Any]) -> None:
    with HubThread(address) as server, kind(address) as client:
        with pytest.raises(UsageError):
            client.flood_control(**{"soft": "discard", "hard": "error"} | choice)
        client.sync()
        (told,) = server.call(server.hub.statistics).per_client
        assert (told.soft, told.hard, told.order) == ("queue", "discard", "queue")  # nothing was sent of it


def test_a_client_that_reconnects_chooses_again(address: str, kind: Any) -> None:
    with HubThread(address):
        client = kind(address, reconnect=True)
        client.flood_control(soft="discard", order="random")
    with client, HubThread(address) as server:
        client.sync()
        (told,) = server.call(server.hub.statistics).per_client
        assert (told.soft, told.hard, told.order) == ("discard", "discard", "random")


def test_a_client_is_told_of_losses_and_counts_them(address: str, kind: Any) -> None:
    told: list[object] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(HubThread(address, limits=Limits(queued_packets=10)))
        with kind(address, on_notice=told.append) as client, blocking.Client(address) as publisher:
            client.subscribe(b"k")
            publisher.publish_many((b"k", bytes(4_000)) for _ in range(3_000))
            publisher.sync()
            statistics = server.call(server.hub.statistics)
            (lost,) = statistics.lost.items()
            for _ in range(3_000 - lost[1]):
                client.receive(timeout=PATIENCE)
            client.sync()
            assert client.lost == dict([lost]) == statistics.lost
            assert lost[0] == "overflow"
            assert [type(notice) for notice in told] == [Lost]
            assert isinstance(told[0], Lost)
            assert told[0].count == lost[1]


def test_a_client_knows_why_it_was_kicked(address: str, kind: Any) -> None:
    told: list[object] = []
    with HubThread(address), kind(address, on_notice=told.append) as client:
        client.socket.send(b"nonsense")
        with pytest.raises(DisconnectedError, match="unknown verb"):
            client.receive(timeout=PATIENCE)
        assert told == [Kicked("unknown verb")]


def test_statistics_of_a_client_in_each_state(bus: Bus, connect: Connect) -> None:
    """Queued now and at peak, lost by cause, modes."""
    hub = bus(queued_packets=3)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"order/stack", b"blocking/soft/queue")
    flood(publisher, 0, 6)
    publisher.barrier()
    told = receiving.statistics()
    assert told.credentials.encode() == own_key()
    assert (told.patterns, told.received, told.routed, told.delivered) == (1, 0, 6, 1)
    assert (told.queued, told.queued_peak, told.lost) == (3, 3, {"overflow": 2})
    assert (told.soft, told.hard, told.order) == ("queue", "discard", "stack")
    for _ in range(4):
        reader.receive()
    told = receiving.statistics()
    assert (told.delivered, told.queued, told.queued_peak) == (4, 0, 3)
    gevent.sleep(0)
