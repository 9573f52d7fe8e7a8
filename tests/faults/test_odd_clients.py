"""Clients that only send or only receive, or do so slowly; clocks that are set; and all of this at once.

Each ends with nothing charged to anybody: ``bus`` sees to it.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable

import gevent
import pytest
from accounting import balance, big, connection_of, narrow, numbers, settle
from support import Peer, eventually

from sbuslib import Hub
from sbuslib.core import outgoing as delivery_module
from sbuslib.wire.control import Lost, decode_notice

pytest_plugins = ["accounting_fixtures"]

Bus = Callable[..., Hub]
Connect = Callable[..., Peer]
ConnectAs = Callable[..., Peer]


def lost_of(packet: bytes) -> int:
    """How many messages a packet says were lost; 0 for any other."""
    key, _, payload = packet.removeprefix(b"CMSG ").partition(b"\0")
    notice = decode_notice(key, payload)
    return notice.count if isinstance(notice, Lost) else 0


# -- half-open and half-closed -------------------------------------------------------------------------------


def test_clients_that_connect_and_say_nothing(bus: Bus, connect: Connect) -> None:
    hub = bus()
    silent = [connect() for _ in range(200)]
    reader, publisher = connect(), connect()
    reader.subscribe(b"k")
    for number in range(100):
        publisher.publish(b"k", b"%d" % number)
        assert reader.receive() == b"MSG k\0%d" % number
    assert hub.statistics().clients == 202
    for peer in silent:
        peer.close()
    eventually(lambda: hub.statistics().clients == 2)


def test_clients_that_subscribe_and_never_receive(bus: Bus, connect: Connect) -> None:
    """50 clients are flooded: their queues stay within the bounds, and a client that reads gets everything."""
    hub = bus(queued_packets=100)
    mute = [connect() for _ in range(50)]
    for peer in mute:
        peer.send(b"SUB k")
    reader, publisher = connect(), connect()
    reader.subscribe(b"k")
    for start in range(0, 3_000, 100):
        for number in range(start, start + 100):
            publisher.publish(b"k", b"%d" % number + bytes(1_000))
        assert [reader.receive()[6:].rstrip(b"\0") for _ in range(100)] == [
            b"%d" % n for n in range(start, start + 100)
        ]
    told = hub.statistics()
    assert max(client.queued for client in told.per_client) <= 100
    assert told.lost["overflow"] > 0
    balance(hub)


def test_a_client_that_closes_its_writing_half(bus: Bus, connect: Connect) -> None:
    """For the hub that is the end of the client: its packets are routed, and then the hub closes the connection."""
    hub = bus()
    reader, half = connect(), connect()
    reader.subscribe(b"k")
    half.send(b"SUB k")
    for number in range(200):
        half.publish(b"k", b"%d" % number)
    half.socket.shutdown(socket.SHUT_WR)
    assert [reader.receive() for _ in range(200)] == [b"MSG k\0%d" % number for number in range(200)]
    while half.receive():
        pass
    eventually(lambda: hub.statistics().clients == 1)
    assert hub.statistics().breaches == {}


@pytest.mark.parametrize("mode", [b"queue", b"block"])
def test_a_client_that_closes_its_reading_half(bus: Bus, connect: Connect, mode: bytes) -> None:
    """Messages wait for the client already. For the hub it is a client that sends but does not read."""
    hub = bus(block_timeout=0.05)
    half, reader, publisher = connect(), connect(), connect()
    half.send(b"SUB k", b"CMSG blocking/soft/" + mode)
    reader.subscribe(b"k")
    receiving = narrow(hub, half)
    for number in range(5):
        publisher.publish(b"k", big(number))
    eventually(lambda: receiving.outgoing.queued)
    half.socket.shutdown(socket.SHUT_RD)
    half.publish(b"k", b"%08d" % 5)
    got = numbers([reader.receive() for _ in range(6)])
    assert sorted(got) == [*range(6)]
    if mode == b"block":
        eventually(lambda: receiving.outgoing.closed)
        assert hub.statistics().breaches == {"held publishers back for too long": 1}
    else:
        publisher.barrier()
        half.close()
        eventually(lambda: receiving.outgoing.closed)
    assert receiving.outgoing.lost == {"outage": 5}
    balance(hub)


def test_a_connection_that_the_client_shuts_down_in_both_directions(bus: Bus, connect: Connect) -> None:
    hub = bus()
    for turn in range(30):
        peer = connect()
        peer.send(b"SUB k", b"CMSG notices/on", b"MSG k\0x")
        peer.socket.shutdown(socket.SHUT_RDWR)
        if turn % 2:
            hub.publish(b"k", b"y")
        peer.close()
    eventually(lambda: not hub.statistics().clients)
    balance(hub)


# -- a slow trickle ------------------------------------------------------------------------------------------


def test_a_trickle_of_packets_in_and_out(bus: Bus, connect_as: ConnectAs) -> None:
    """Some clients send or read a packet now and then. They belong to another user than the busy clients."""
    hub = bus({"mode": 0o777}, queued_packets=50)
    slow = [connect_as(1001) for _ in range(10)]
    fast_reader, fast = connect_as(1002), connect_as(1002)
    fast_reader.subscribe(b"k")
    fast.send(b"CMSG echo/off")
    for peer in slow:
        peer.send(b"SUB k", b"CMSG notices/on")
        narrow(hub, peer)
    seen: dict[int, list[int]] = {n: [] for n in range(len(slow))}
    told = 0
    for number in range(300):
        fast.publish(b"k", big(number))
        assert numbers([fast_reader.receive()]) == [number]
        if not number % 10:
            for n, peer in enumerate(slow):
                peer.send(b"CMSG unknown/%d" % number)
                packet = peer.receive()
                seen[n] += numbers([packet])
                told += lost_of(packet)
        balance(hub)
    assert all(got == sorted(got) and got for got in seen.values())
    lost = hub.statistics().lost
    assert lost["overflow"] > 0
    assert told <= lost["overflow"]
    eventually(lambda: hub.context.ignored == 300)


# -- clocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_a_clock_that_is_set(bus: Bus, connect: Connect, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """Clients are disconnected neither too early nor never, and losses are counted as always."""
    hub = bus(block_timeout=0.05, queued_packets=3)
    jumped = [0.0]

    def now() -> float:
        jumped[0] += jump
        return time.time() + jumped[0]

    monkeypatch.setattr(delivery_module, "time", now)
    patient, holder, loser, publisher = connect(), connect(), connect(), connect()
    loser.send(b"SUB l", b"CMSG notices/on")
    losing = narrow(hub, loser)
    for number in range(10):
        publisher.publish(b"l", big(number))
    publisher.barrier()
    assert losing.outgoing.lost == {"overflow": 6}
    holder.send(b"SUB k", b"CMSG blocking/soft/block")
    holding = narrow(hub, holder)
    patient.subscribe(b"k")
    for number in range(3):
        publisher.publish(b"k", big(number))
    eventually(lambda: connection_held(hub))
    assert not holding.outgoing.closed
    eventually(lambda: holding.outgoing.closed)  # after block_timeout, by a clock that only goes on
    assert hub.statistics().breaches == {"held publishers back for too long": 1}
    assert numbers([patient.receive() for _ in range(3)]) == [0, 1, 2]
    got = [loser.receive() for _ in range(5)]
    assert numbers(got) == [0, 1, 2, 3]
    assert sum(map(lost_of, got)) == 6
    balance(hub)


def connection_held(hub: Hub) -> bool:
    return any(connection.publisher.holders for connection in hub._clients.connections.values())


# -- everything at once --------------------------------------------------------------------------------------


def test_a_soak(bus: Bus, connect_as: ConnectAs) -> None:
    """Clients of three users do some thousand things, from a fixed seed. One pair of clients must not notice."""
    hub = bus({"mode": 0o777}, queued_packets=200, user_queued_packets=2_000, queued_answers=64, block_timeout=0.2)
    rng = random.Random(20)
    reader, publisher = connect_as(0), connect_as(0)
    reader.subscribe(b"mine")
    peers: list[Peer] = []
    keys = [b"k%d" % n for n in range(5)]
    sent = 0

    def act(peer: Peer) -> None:
        peer.socket.settimeout(0.0)
        match rng.randrange(9):
            case 0 | 1:
                peer.send(b"SUB " + rng.choice([*keys, b"*", b""]))
            case 2:
                peer.send(b"UNSUB " + rng.choice(keys))
            case 3 | 4:
                for _ in range(rng.randrange(20)):
                    peer.publish(rng.choice(keys), bytes(rng.choice((1, 100, 10_000, 100_000))))
            case 5:
                kind, modes = rng.choice(((b"soft", b"queue discard block error"), (b"hard", b"discard block error")))
                peer.send(b"CMSG blocking/%b/%b" % (kind, rng.choice(modes.split())))
            case 6:
                for _ in range(rng.randrange(50)):
                    peer.socket.recv(500_000)
            case 7:
                peer.send(
                    rng.choice((b"CMSG !/cred/whoami", b"CMSG notices/on", b"CMSG senders/on", b"CMSG order/random"))
                )
            case 8:
                if rng.random() < 0.3:
                    peer.send(rng.choice((b"nonsense", b"SUB !/cred/0/0/1/x", b"MSG k", b"")))
                elif rng.random() < 0.3:
                    peer.socket.shutdown(rng.choice((socket.SHUT_RD, socket.SHUT_WR)))

    for _ in range(3_000):
        if len(peers) < 30:
            peers.append(connect_as(rng.choice((1001, 1002))))
        number = rng.randrange(len(peers))
        gone = rng.random() < 0.03
        try:
            act(peers[number])
        except BlockingIOError:
            pass
        except OSError:
            gone = True
        if gone:
            peers[number].close()
            peers[number] = peers[-1]
            peers.pop()
        if rng.random() < 0.1:
            publisher.publish(b"mine", b"%d" % sent)
            assert reader.receive() == b"MSG mine\0%d" % sent
            sent += 1
            balance(hub)
        elif rng.random() < 0.2:
            gevent.sleep(0)
    settle(hub)
    told = hub.statistics()
    # Who does not keep up is a matter of how fast this machine is; what is against the protocol is not.
    assert told.breaches.keys() >= {"unknown verb", "message without NUL", "secret pattern of another"}
    assert connection_of(hub, reader).outgoing.lost == {}
