"""Clients that only send or only receive, or do so slowly; clocks that are set; and all of this at once.

Each ends with nothing charged to anybody: ``bus`` sees to it.
"""

from __future__ import annotations

import random
import socket
import time

import gevent
import pytest
from accounting import balance, big, connection_of, narrow, numbers, settle
from flooding import flood, slow
from support import Bus, Connect, ConnectAs, Peer, eventually

from sbuslib.wire.control import Lost, decode_notice

# -- half-open and half-closed -------------------------------------------------------------------------------


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
    eventually(lambda: receiving.outbound.queued)
    half.socket.shutdown(socket.SHUT_RD)
    half.publish(b"k", b"%08d" % 5)
    got = numbers([reader.receive() for _ in range(6)])
    assert sorted(got) == [*range(6)]
    if mode == b"block":
        eventually(lambda: receiving.outbound.closed)
        assert hub.statistics().violations == {"held publishers back for too long": 1}
    else:
        publisher.barrier()
        half.close()
        eventually(lambda: receiving.outbound.closed)
    assert receiving.outbound.lost == {"outage": 5}
    balance(hub)


# -- clocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_losses_are_told_whatever_the_clock_says(
    bus: Bus, connect: Connect, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    hub = bus(queued_packets=3)
    now = [time.time()]

    def jumping() -> float:
        now[0] += jump
        return now[0]

    monkeypatch.setattr("sbuslib.core.outbound.time", jumping)
    loser, publisher = connect(), connect()
    losing = slow(hub, loser, b"notices/on")
    flood(publisher, 0, 10)
    publisher.barrier()
    assert losing.outbound.lost == {"overflow": 6}
    *messages, told = [loser.receive() for _ in range(5)]
    assert numbers(messages) == [0, 1, 2, 3]
    key, _, payload = told.removeprefix(b"CMSG ").partition(b"\0")
    notice = decode_notice(key, payload)
    assert isinstance(notice, Lost)
    assert notice.count == 6


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
    assert told.violations.keys() >= {"unknown verb", "message without NUL", "secret pattern of another"}
    assert connection_of(hub, reader).outbound.lost == {}
