"""Flood control over real sockets: each mode, which receivers may hold which publishers, and how a hold ends."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import gevent
import pytest
from accounting import BIG, balance, big, connection_of, narrow, numbers, settle
from support import PATIENCE, WHOAMI, HubThread, Peer, eventually, own_key

import sbuslib
from sbuslib import Hub, Limits, blocking
from sbuslib.core.connection import Connection
from sbuslib.errors import DisconnectedError, UsageError
from sbuslib.wire.control import Kicked, Lost
from sbuslib.wire.modes import HARD, ORDER, SOFT

pytest_plugins = ["accounting_fixtures"]

Bus = Callable[..., Hub]
Connect = Callable[..., Peer]
ConnectAs = Callable[..., Peer]

ROOM = 4


def slow(hub: Hub, peer: Peer, *modes: bytes, pattern: bytes = b"k") -> Connection:
    """Have the peer subscribe and choose modes; its kernel then takes one big packet, which it does not read."""
    peer.send(b"SUB " + pattern, *(b"CMSG " + mode for mode in modes))
    return narrow(hub, peer)


def flood(publisher: Peer, start: int, stop: int, key: bytes = b"k") -> None:
    """Publish big messages with these numbers, in one go."""
    for number in range(start, stop):
        publisher.publish(key, big(number))


def timer_of(connection: Connection) -> Any:
    """What ends the holding of publishers, while there is any."""
    holding = connection.outgoing._holding
    return holding and holding._timer


def is_held(connection: Connection) -> bool:
    return bool(connection.publisher.holders)


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


@pytest.mark.parametrize("soft_before", ["block", "queue"])
@pytest.mark.parametrize(
    "after", [b"blocking/soft/queue", b"blocking/hard/discard", b"order/stack", b"blocking/soft/x"]
)
def test_a_held_publisher_is_held_again_if_the_new_mode_says_so(
    bus: Bus, connect: Connect, soft_before: str, after: bytes
) -> None:
    hub = bus(queued_packets=2)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/" + soft_before.encode(), b"blocking/hard/block")
    publishing = connection_of(hub, publisher)
    flood(publisher, 0, 5)
    eventually(lambda: is_held(publishing))
    reader.send(b"CMSG " + after)
    publisher.publish(b"other")  # which no receiver holds anybody for
    settle(hub)
    unknown = after.endswith(b"/x")
    assert is_held(publishing) is unknown
    flood(publisher, 5, 6)
    settle(hub)
    stays = soft_before if after != b"blocking/soft/queue" else "queue"
    discards = after == b"blocking/hard/discard"
    assert is_held(publishing) is (unknown or not discards)
    assert receiving.outgoing.lost == ({"overflow": 1} if discards and not unknown else {})
    assert receiving.outgoing.outbox.soft == stays
    while receiving.outgoing.queued or is_held(publishing):
        reader.receive()
    publisher.barrier()


def test_error_mode_that_is_changed_at_once_kicks_no_receiver(bus: Bus, connect: Connect) -> None:
    """The newest mode counts, also when both come in the same turn."""
    hub = bus()
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/error", b"blocking/soft/discard")
    flood(publisher, 0, 5)
    publisher.barrier()
    assert (receiving.outgoing.closed, receiving.outgoing.lost) == (False, {"discard": 4})


# -- whom block holds, and until when ---------------------------------------------------------------------


def test_block_holds_only_the_publisher_at_hand(bus: Bus, connect: Connect) -> None:
    hub = bus()
    reader, held, free, other = connect(), connect(), connect(), connect()
    slow(hub, reader, b"blocking/soft/block")
    other.subscribe(b"", b"k")
    flood(held, 0, 3)
    eventually(lambda: sum(is_held(connection) for connection in hub._clients.connections.values()) == 1)
    held.send(b"CMSG !/cred/whoami")
    for number in range(200):
        free.publish(b"free", b"%d" % number)
    free.barrier()
    assert sum(is_held(connection) for connection in hub._clients.connections.values()) == 1
    assert other.pending()[3:] == [b"MSG free\0%d" % number for number in range(200)]
    other.publish(b"free", b"of the other")
    assert other.receive() == b"MSG free\0of the other"
    hub.publish(b"k", big(99))  # of the embedder, who never waits
    assert numbers([reader.receive() for _ in range(4)]) == [0, 1, 2, 99]
    assert held.receive().startswith(b"CMSG !/cred/whoami\0")  # it was not read before


def test_one_publisher_held_by_two_receivers(bus: Bus, connect: Connect) -> None:
    hub = bus()
    first, second, publisher = connect(), connect(), connect()
    slow(hub, first, b"blocking/soft/block")
    slow(hub, second, b"blocking/soft/block")
    publishing = connection_of(hub, publisher)
    flood(publisher, 0, 2)
    eventually(lambda: len(publishing.publisher.holders) == 2)
    flood(publisher, 2, 3)
    assert numbers([first.receive() for _ in range(2)]) == [0, 1]
    settle(hub)
    assert len(publishing.publisher.holders) == 1
    assert publishing.publisher.received == 2
    assert numbers([second.receive() for _ in range(2)]) == [0, 1]
    publisher.barrier()
    assert numbers([first.receive(), second.receive()]) == [2, 2]


def test_soft_block_lets_go_when_nothing_waits_and_hard_block_at_half(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_packets=4)
    for modes, at in (((b"blocking/soft/block",), 0), ((b"blocking/hard/block",), 2)):
        reader, publisher = connect(), connect()
        receiving = slow(hub, reader, *modes)
        publishing = connection_of(hub, publisher)
        flood(publisher, 0, 6)
        eventually(partial(is_held, publishing))
        assert receiving.outgoing.queued == (5 if at else 4)
        while is_held(publishing):
            reader.receive()
            settle(hub)
        assert receiving.outgoing.queued == at
        publisher.close()
        reader.close()
        eventually(lambda: hub.statistics().clients == 0)


def test_no_publisher_is_held_for_ever(bus: Bus, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that makes no room is kicked after ``Limits.block_timeout``; its waiting messages are counted."""
    hub = bus(block_timeout=0.01)
    reader, publisher, witness = connect(), connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/block")
    witness.subscribe(b"k")
    flood(publisher, 0, 3)
    eventually(lambda: receiving.outgoing.closed)
    assert receiving.outgoing.lost == {"outage": 2}
    assert hub.statistics().breaches == {"held publishers back for too long": 1}
    (record,) = caplog.records
    assert "held publishers back for too long" in record.getMessage()
    flood(publisher, 3, 5)
    publisher.barrier()
    assert numbers(witness.pending()) == [0, 1, 2, 3, 4]
    assert numbers([reader.receive()]) == [0]
    assert reader.is_disconnected()


def test_a_receiver_that_makes_room_now_and_then_is_not_kicked(bus: Bus, connect: Connect) -> None:
    """The time limit is for each hold, not for all of them together."""
    hub = bus(block_timeout=5.0)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/block")
    publishing = connection_of(hub, publisher)
    timers = set()
    for number in range(5):
        flood(publisher, 2 * number, 2 * number + 2)
        eventually(lambda: is_held(publishing))
        timers.add(id(timer_of(receiving)))
        kept = timer_of(receiving)
        assert numbers([reader.receive(), reader.receive()]) == [2 * number, 2 * number + 1]
        eventually(lambda: not is_held(publishing))
        assert timer_of(receiving) is None
        assert not kept.active
    assert not receiving.outgoing.closed


# -- knots ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [(b"blocking/soft/block",), (b"blocking/hard/block",)])
def test_a_client_cannot_block_on_itself(bus: Bus, connect: Connect, modes: tuple[bytes, ...]) -> None:
    hub = bus(queued_packets=ROOM)
    peer = connect()
    connection = slow(hub, peer, *modes)
    flood(peer, 0, 10)
    eventually(lambda: connection.publisher.received == 10)
    assert not is_held(connection)
    assert connection.outgoing.lost == {"overflow": 5}
    assert numbers([peer.receive() for _ in range(5)]) == [0, 1, 2, 3, 4]
    peer.barrier()


@pytest.mark.parametrize("reads", [True, False])
def test_two_clients_that_block_on_each_other(bus: Bus, connect: Connect, reads: bool) -> None:
    hub = bus(block_timeout=PATIENCE if reads else 0.02)
    one, other = connect(), connect()
    first = slow(hub, one, b"blocking/soft/block", pattern=b"one")
    second = slow(hub, other, b"blocking/soft/block", pattern=b"other")
    flood(one, 0, 3, b"other")
    flood(other, 0, 3, b"one")
    if reads:
        eventually(lambda: is_held(first) and is_held(second))
        assert numbers([one.receive() for _ in range(3)]) == [0, 1, 2]
        assert numbers([other.receive() for _ in range(3)]) == [0, 1, 2]
        one.barrier()
        other.barrier()
        assert not is_held(first)
        assert not is_held(second)
    else:
        eventually(lambda: first.outgoing.closed or second.outgoing.closed)
        eventually(lambda: not (is_held(first) or is_held(second)))


def test_a_ring_of_clients_that_block_on_each_other_is_broken(bus: Bus, connect: Connect) -> None:
    """Each of five floods the next and reads nothing: the hub lets some go, and the others are free."""
    hub = bus(block_timeout=0.02)
    witness = connect()
    witness.barrier()
    peers = [connect() for _ in range(5)]
    ring = [slow(hub, peer, b"blocking/soft/block", pattern=b"%d" % n) for n, peer in enumerate(peers)]
    for n, peer in enumerate(peers):
        flood(peer, 0, 3, b"%d" % ((n + 1) % 5))
    eventually(lambda: any(connection.outgoing.closed for connection in ring))
    eventually(lambda: not any(is_held(connection) for connection in hub._clients.connections.values()))
    witness.barrier()


def test_a_held_publisher_that_disconnects(bus: Bus, connect: Connect) -> None:
    """What it sent before is read once the receiver has room, and its end is seen then."""
    hub = bus()
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/block")
    publishing = connection_of(hub, publisher)
    flood(publisher, 0, 3)
    eventually(lambda: is_held(publishing))
    flood(publisher, 3, 6)
    publisher.close()
    settle(hub)
    assert not publishing.outgoing.closed
    assert numbers([reader.receive() for _ in range(6)]) == [0, 1, 2, 3, 4, 5]
    eventually(lambda: publishing.outgoing.closed)
    assert not receiving.outgoing.held
    assert timer_of(receiving) is None
    reader.barrier()


def test_a_held_publisher_that_is_kicked(bus: Bus, connect: Connect) -> None:
    """The holder forgets it, and does not release it later."""
    hub = bus()
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/block")
    publishing = connection_of(hub, publisher)
    flood(publisher, 0, 3)
    publisher.send(b"nonsense")  # in the turn that gets it held
    eventually(lambda: publishing.outgoing.closed)
    assert not receiving.outgoing.held
    assert timer_of(receiving) is None
    assert numbers([reader.receive() for _ in range(3)]) == [0, 1, 2]


@pytest.mark.parametrize("how", ["close", "violation"])
def test_a_holder_that_disconnects(bus: Bus, connect: Connect, how: str) -> None:
    hub = bus()
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/block")
    publishing = connection_of(hub, publisher)
    flood(publisher, 0, 3)
    eventually(lambda: is_held(publishing))
    if how == "close":
        reader.close()
    else:
        reader.send(b"nonsense")
    eventually(lambda: not is_held(publishing))
    publisher.barrier()
    eventually(lambda: receiving.outgoing.closed)
    assert receiving.outgoing.lost == {"outage": 2}
    assert timer_of(receiving) is None


def test_two_clients_that_hold_each_other_and_disconnect(bus: Bus, connect: Connect) -> None:
    hub = bus()
    one, other = connect(), connect()
    first = slow(hub, one, b"blocking/soft/block", pattern=b"one")
    second = slow(hub, other, b"blocking/soft/block", pattern=b"other")
    flood(one, 0, 3, b"other")
    flood(other, 0, 3, b"one")
    eventually(lambda: is_held(first) and is_held(second))
    one.close()
    other.close()
    eventually(lambda: hub.statistics().clients == 0)
    assert hub.statistics().breaches == {}


def test_a_hub_that_stops_while_publishers_are_held(bus: Bus, connect: Connect) -> None:
    hub = bus()
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/block")
    flood(publisher, 0, 3)
    eventually(lambda: receiving.outgoing.held)
    hub.stop(0)
    assert timer_of(receiving) is None
    assert hub.context.quotas.is_clear()
    balance(hub)


def test_a_clients_own_send_waits_while_it_is_held(address: str, engine: str) -> None:
    """A publisher that floods a slow reader in block mode has its speed, and nothing is lost."""
    with HubThread(address, limits=Limits(queued_packets=16)) as server:
        with blocking.Client(address) as reader, blocking.Client(address) as publisher:
            reader.flood_control(hard="block")
            reader.subscribe(b"k")
            count = 3_000
            sending = threading.Thread(
                target=publisher.publish_many, args=([(b"k", b"%06d" % n + bytes(2_000)) for n in range(count)],)
            )
            sending.start()
            got = [int(reader.receive(PATIENCE).payload[:6]) for _ in range(count)]
            sending.join()
            assert got == list(range(count))
        assert server.call(server.hub.statistics).lost == {}


# -- who may hold whom ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("receiver_uid", "publisher_uid", "holds"),
    [
        (1001, 1001, True),  # the publisher's own user
        (0, 1001, True),  # root
        (1003, 1001, True),  # on the hub's list
        (1002, 1001, False),  # a stranger
        (1002, 0, False),
        (1001, 1003, False),  # trust is not mutual
    ],
)
@pytest.mark.parametrize("mode", [b"blocking/soft/block", b"blocking/hard/block"])
def test_whose_block_is_honoured(
    bus: Bus, connect_as: ConnectAs, receiver_uid: int, publisher_uid: int, holds: bool, mode: bytes
) -> None:
    hub = bus({"mode": 0o777, "trusted": [1003]}, queued_packets=ROOM)
    reader = connect_as(receiver_uid)
    receiving = slow(hub, reader, mode)
    publisher = connect_as(publisher_uid)
    publishing = connection_of(hub, publisher)
    assert (receiving.credentials.uid, publishing.credentials.uid) == (receiver_uid, publisher_uid)
    flood(publisher, 0, 8)
    eventually(lambda: publishing.publisher.received == 8)
    assert is_held(publishing) is holds
    if holds:
        assert receiving.outgoing.lost == ({"overflow": 3} if b"soft" in mode else {})
    else:
        assert receiving.outgoing.lost == {"overflow": 3}
        publisher.barrier()
    while receiving.outgoing.queued or is_held(publishing):
        reader.receive()
    publisher.barrier()


def test_the_hubs_own_user_may_block(bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: 1009)
        hub = bus({"mode": 0o777})
    reader = connect_as(1009)
    slow(hub, reader, b"blocking/soft/block")
    publisher = connect_as(1001)
    publishing = connection_of(hub, publisher)
    flood(publisher, 0, 3)
    eventually(lambda: is_held(publishing))
    assert numbers([reader.receive() for _ in range(3)]) == [0, 1, 2]


def test_a_stranger_cannot_stall_publishers_in_turn(bus: Bus, connect_as: ConnectAs) -> None:
    hub = bus({"mode": 0o777}, block_timeout=0.01)
    stranger = connect_as(1002)
    receiving = slow(hub, stranger, b"blocking/soft/block", b"blocking/hard/block", pattern=b"")
    witness = connect_as(1001)
    witness.subscribe(b"k")
    for number in range(5):
        publisher = connect_as(1001)
        flood(publisher, number, number + 1)
        publisher.barrier()
    assert numbers(witness.pending()) == [0, 1, 2, 3, 4]
    assert not receiving.outgoing.held
    assert not receiving.outgoing.closed


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


def test_receiver_that_releases_one_publisher_while_it_holds_another_is_not_kicked(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit is for each publisher: two users are held in turns here, so one is held at any time."""
    hub = bus({"mode": 0o777, "trusted": [1003]}, queued_packets=4, block_timeout=100.0)
    clock = [0.0]
    monkeypatch.setattr("sbuslib.core.holding.monotonic", lambda: clock[0])
    reader = connect_as(1003)
    receiving = slow(hub, reader, b"blocking/soft/block")
    one, other = connect_as(1001), connect_as(1002)
    flood(one, 0, 2)
    eventually(lambda: len(receiving.outgoing.held) == 1)
    clock[0] = 60.0
    flood(other, 10, 13)
    eventually(lambda: len(receiving.outgoing.held) == 2)
    assert numbers([reader.receive()]) == [0]
    eventually(lambda: len(receiving.outgoing.held) == 1)
    holding: Any = receiving.outgoing._holding
    clock[0] = 110.0
    holding._on_time()
    settle(hub)
    assert not receiving.outgoing.closed


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


# -- notices ----------------------------------------------------------------------------------------------


def lost_notice(packet: bytes) -> tuple[str, int]:
    head, _, payload = packet.partition(b"\0")
    assert head == b"CMSG notice/lost", packet
    cause, count, since = payload.split()
    assert float(since) > 1.6e9
    return cause.decode(), int(count)


def test_a_loss_is_told_where_the_gap_is(bus: Bus, connect: Connect) -> None:
    """Four wait, six are lost; once half of the room is free, the notice stands before what comes then."""
    hub = bus(queued_packets=4)
    reader, publisher = connect(), connect()
    slow(hub, reader, b"notices/on")
    flood(publisher, 0, 11)
    publisher.barrier()
    got = [reader.receive() for _ in range(3)]
    settle(hub)
    flood(publisher, 11, 13)
    publisher.barrier()
    got += [reader.receive() for _ in range(5)]
    assert numbers(got) == [0, 1, 2, 3, 4, 11, 12]
    assert lost_notice(got[5]) == ("overflow", 6)
    assert reader.pending() == []


def test_a_loss_is_told_when_nothing_follows(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_packets=2)
    reader, publisher = connect(), connect()
    slow(hub, reader, b"notices/on")
    flood(publisher, 0, 7)
    publisher.barrier()
    got = [reader.receive() for _ in range(4)]
    assert numbers(got) == [0, 1, 2]
    assert lost_notice(got[3]) == ("overflow", 4)
    assert reader.pending() == []


@pytest.mark.parametrize("full", [False, True])
def test_a_loss_is_told_before_an_answer_that_was_asked_for_later(bus: Bus, connect: Connect, full: bool) -> None:
    """A client that reads all and then asks knows of all losses when the answer comes, even if that has to wait."""
    hub = bus(queued_packets=2)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on")
    flood(publisher, 0, 7)
    publisher.barrier()
    got = [reader.receive()]
    eventually(lambda: receiving.outgoing.queued == 1)
    got.append(reader.receive())
    eventually(lambda: receiving.outgoing.queued == 0)  # the last of them fills the kernel's buffer
    if full:
        reader.send(WHOAMI)
        settle(hub)
        got.append(reader.receive())
    else:
        got.append(reader.receive())
        reader.send(WHOAMI)  # both at once: the buffer has room for the notice, and there is a question
    assert numbers(got) == [0, 1, 2]
    assert lost_notice(reader.receive()) == ("overflow", 4)
    assert reader.receive() == WHOAMI + b"\0" + own_key()


def test_a_loss_is_told_before_an_answer_with_all_of_it(bus: Bus, connect: Connect) -> None:
    """Also what was refused before it was copied, and whose counting is put off."""
    hub = bus(queued_bytes=4_000)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on")
    for start in range(0, 20, 5):
        flood(publisher, start, start + 5)
        settle(hub)
        publisher.barrier()
    assert receiving.outgoing.refuses
    got = [reader.receive()]
    reader.send(WHOAMI)
    assert numbers(got) == [0]
    assert lost_notice(reader.receive()) == ("overflow", 19)
    assert reader.receive() == WHOAMI + b"\0" + own_key()
    assert reader.pending() == []


@pytest.mark.parametrize("engine_of", ["deliver", "deliver_packet"])
def test_a_discarding_receiver_is_told_once_a_gap(bus: Bus, connect: Connect, engine_of: str) -> None:
    """However much is lost meanwhile, notices do not pile up for a receiver that does not read."""
    hub = bus(queued_answers=3)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on", b"blocking/soft/discard")
    if engine_of == "deliver":
        flood(publisher, 0, 101)
        publisher.barrier()
    else:
        for number in range(101):
            hub.publish(b"k", big(number))
    assert receiving.outgoing.lost == {"discard": 100}
    assert not receiving.outgoing.closed
    got = [reader.receive(), reader.receive()]
    assert numbers(got) == [0]
    assert lost_notice(got[1]) == ("discard", 100)
    assert reader.pending() == []
    flood(publisher, 101, 102)
    assert numbers([reader.receive()]) == [101]


def test_a_receiver_beyond_its_share_is_told_once_for_each_gap(bus: Bus, connect: Connect) -> None:
    hub = bus(user_queued_packets=4, queued_answers=3)
    other, reader, publisher = connect(), connect(), connect()
    slow(hub, other)
    flood(publisher, 0, 3)
    publisher.barrier()  # the share is used up by another of the user's clients
    receiving = slow(hub, reader, b"notices/on")
    flood(publisher, 3, 104)
    publisher.barrier()
    assert receiving.outgoing.lost == {"quota": 100}
    assert not receiving.outgoing.closed
    got = [reader.receive(), reader.receive()]
    assert numbers(got) == [3]
    assert lost_notice(got[1]) == ("quota", 100)
    assert reader.pending() == []


def test_losses_of_several_causes(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_packets=2)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on")
    flood(publisher, 0, 5)
    publisher.publish(b"k", bytes(40_000))  # longer than this connection takes, had there been room
    publisher.barrier()
    got = [reader.receive() for _ in range(2)]
    settle(hub)
    publisher.publish(b"k", bytes(40_000))
    publisher.barrier()
    reader.send(b"CMSG blocking/soft/discard")
    eventually(lambda: receiving.outgoing.outbox.soft == "discard")
    flood(publisher, 5, 7)
    publisher.barrier()
    got += [reader.receive() for _ in range(4)]
    assert numbers(got) == [0, 1, 2]
    told: dict[str, int] = {}
    for packet in got[3:]:
        cause, count = lost_notice(packet)
        told[cause] = told.get(cause, 0) + count
    assert told == receiving.outgoing.lost == {"overflow": 3, "discard": 2, "oversize": 1}


def test_a_client_that_asks_for_nothing_sees_the_plain_protocol(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_packets=2)
    reader, publisher = connect(), connect()
    slow(hub, reader)
    flood(publisher, 0, 7)
    publisher.barrier()
    assert numbers([reader.receive() for _ in range(3)]) == [0, 1, 2]
    assert reader.pending() == []
    reader.send(b"nonsense")
    assert reader.is_disconnected()


def test_notices_may_be_turned_off_again(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_packets=2)
    reader, publisher = connect(), connect()
    slow(hub, reader, b"notices/on", b"notices/off")
    flood(publisher, 0, 7)
    publisher.barrier()
    assert numbers([reader.receive() for _ in range(3)]) == [0, 1, 2]
    assert reader.pending() == []


def test_a_kicked_client_is_told_why(bus: Bus, connect: Connect) -> None:
    hub = bus()
    reader = connect()
    reader.send(b"CMSG notices/on")
    reader.subscribe(b"k")
    hub.publish(b"k", b"before")
    reader.send(b"nonsense")
    assert reader.receive() == b"MSG k\0before"
    assert reader.receive() == b"CMSG notice/kicked\0unknown verb"
    assert reader.is_disconnected()


@pytest.mark.parametrize(("modes", "reason"), [
    ((b"blocking/soft/error",), b"does not keep up, and asked for error"),
    ((b"blocking/soft/block",), b"held publishers back for too long"),
])  # fmt: skip
def test_a_client_that_does_not_keep_up_is_told_why(
    bus: Bus, connect: Connect, modes: tuple[bytes, ...], reason: bytes
) -> None:
    """Although what was sent to it has filled the kernel's buffer."""
    hub = bus(block_timeout=0.01)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on", *modes)
    flood(publisher, 0, 3)
    eventually(lambda: receiving.outgoing.closed)
    assert numbers([reader.receive()]) == [0]
    assert reader.receive() == b"CMSG notice/kicked\0" + reason
    assert reader.is_disconnected()


# -- the client's side ------------------------------------------------------------------------------------


@pytest.fixture(params=[sbuslib.Client, blocking.Client], ids=["gevent", "blocking"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_client_chooses(address: str, engine: str, kind: Any) -> None:
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


def test_a_client_that_reconnects_chooses_again(address: str, engine: str, kind: Any) -> None:
    with HubThread(address):
        client = kind(address, reconnect=True)
        client.flood_control(soft="discard", order="random")
    with client, HubThread(address) as server:
        client.sync()
        (told,) = server.call(server.hub.statistics).per_client
        assert (told.soft, told.hard, told.order) == ("discard", "discard", "random")


def test_a_client_is_told_of_losses_and_counts_them(address: str, engine: str, kind: Any) -> None:
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
                client.receive(PATIENCE)
            client.sync()
            assert client.lost == dict([lost]) == statistics.lost
            assert lost[0] == "overflow"
            assert [type(notice) for notice in told] == [Lost]
            assert isinstance(told[0], Lost)
            assert told[0].count == lost[1]


def test_a_client_knows_why_it_was_kicked(address: str, engine: str, kind: Any) -> None:
    told: list[object] = []
    with HubThread(address), kind(address, on_notice=told.append) as client:
        client.socket.send(b"nonsense")
        with pytest.raises(DisconnectedError, match="unknown verb"):
            client.receive(PATIENCE)
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
