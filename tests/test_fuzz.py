"""A hub under a stream of random and mutated packets keeps serving its well-behaved clients."""

from __future__ import annotations

import random

import gevent
import pytest
from support import LONGEST, Connect, MakeHub, Peer, eventually, own_key

from sbuslib import Limits
from sbuslib.limits import PACKET_BYTES
from sbuslib.wire.batches import BATCH, pack
from sbuslib.wire.packets import check_key

((BATCHED, _),) = pack([(b"a/b", b"x" * number) for number in range(40)] + [(b"c/d", b"y")], check_key, 10_000)

SEEDS = [
    b"SUB a/*",
    b"SUB ",
    b"UNSUB a/*",
    b"MSG a/b\0payload",
    b"MSG \0",
    b"MSG !/cred/%b/x\0y" % own_key()[7:],
    b"SUB %b/x" % own_key(),
    b"CMSG !/cred/whoami",
    b"CMSG hub/features\0",
    b"CMSG hub/sync\0token\0tree",
    b"CMSG echo/off",
    b"CMSG senders/on",
    b"CMSG senders/off",
    b"CMSG from\0!/cred/0/0/0\0MSG a\0b",
    b"CMSG batch/on",
    BATCH,
    BATCHED,
    b"CMSG from\0!/cred/0/0/0\0" + BATCHED,
    b"SUB " + b"*/" * 100,
    b"SUB " + b"a*" * 50,
    b"MSG " + b"/" * 2_000 + b"\0",
    b"SUB " + b"x" * 5_000,
]


def mutated(rng: random.Random) -> bytes:
    """A packet that is nearly right, or not at all."""
    packet = bytearray(rng.choice(SEEDS))
    for _ in range(rng.choice((0, 0, 1, 1, 2, 8))):
        kind, place = rng.randrange(6), rng.randrange(len(packet) + 1)
        if kind == 0:
            packet[place:place] = rng.randbytes(rng.randrange(4))
        elif kind == 1:
            del packet[place : place + rng.randrange(4)]
        elif kind == 2 and packet:
            packet[min(place, len(packet) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            packet[place:place] = rng.choice((b"!", b"/", b"*", b"\0", b"!/", b"\xff", b"cred"))
        elif kind == 4:
            packet = packet[:place] + bytearray(rng.choice(SEEDS))[rng.randrange(5) :]
        else:
            packet += b"x" * rng.choice((1, 100, 10_000, PACKET_BYTES, LONGEST))
    return bytes(packet[: LONGEST + 5])


@pytest.mark.parametrize("asking", [False, True], ids=["open", "asking"])
def test_well_behaved_clients_do_not_notice(make_hub: MakeHub, connect: Connect, asking: bool) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    authorize = (lambda credentials, verb, key: b"\xff" not in key) if asking else None
    hub = make_hub(authorize=authorize, limits=Limits(queued_packets=2_000, queued_bytes=2_000_000))
    subscriber, publisher, holder = connect(), connect(), connect()
    subscriber.subscribe(b"good/")
    holder.subscribe(own_key() + b"/good")
    inbox = hub.subscribe(b"good/")
    done = False

    def attack(number: int) -> None:
        rng = random.Random(seed + number)
        for _ in range(100):  # as many as there is time for would take minutes on a busy machine
            if done:
                break
            with Peer(hub.address) as peer:
                peer.socket.settimeout(0.05)
                try:
                    if rng.random() < 0.5:
                        peer.send(b"CMSG batch/on")
                    for _ in range(rng.randrange(1, 60)):
                        peer.send(mutated(rng))
                        if rng.random() < 0.2:
                            gevent.sleep(0)
                    if rng.random() < 0.5:
                        while peer.receive():
                            pass
                except OSError:
                    pass  # thrown out, or stuck: it does not read
            gevent.sleep(0)

    attackers = [gevent.spawn(attack, number) for number in range(8)]
    for number in range(150):
        publisher.publish(b"good/%d" % (number % 5), b"%d" % number)
        publisher.publish(own_key() + b"/good", b"%d" % number)
        publisher.barrier()
    done = True
    gevent.joinall(attackers, raise_error=True)
    expected = [b"MSG good/%d\0%d" % (number % 5, number) for number in range(150)]
    assert [packet for packet in subscriber.pending() if b"good" in packet.partition(b"\0")[0]] == expected
    assert [inbox.receive(timeout=0).payload for _ in range(150)] == [b"%d" % number for number in range(150)]
    assert len([packet for packet in holder.pending() if packet.startswith(b"MSG ")]) >= 150
    eventually(lambda: hub.statistics().clients == 3)
    eventually(lambda: hub.statistics().patterns == 3)  # the inbox's, and what two of us hold; others' leave in turns
    statistics = hub.statistics()
    assert statistics.waiting == 0
    assert sum(statistics.violations.values()) > 20
    assert len(statistics.violations) >= 5
    print(statistics)
