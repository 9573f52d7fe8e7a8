"""The shared receive buffer: no other code runs between the receive call and the last use of its packets.

Otherwise one client's bytes, secrets included, could leave in another's packet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import greenlet
import pytest
from accounting import big, called_by_logging, narrow
from support import Connect, MakeHub, Peer, both_ways, own_key

from sbuslib import Hub, Limits
from sbuslib.core.connection import Connection
from sbuslib.kernel.receive_buffer import PlainReceiveBuffer, ReceiveBuffer
from sbuslib.wire.batches import BATCH, pack
from sbuslib.wire.packets import check_key


class Watch:
    """Notes every switch of greenlets between a receive of the hub's and the end of its turn."""

    def __init__(self) -> None:
        self.turns = 0
        self.batches = 0
        self.switches = 0
        self.wrong: list[tuple[str, object]] = []
        self.in_turn = False
        self.holds_packets = False

    def trace(self, event: str, arguments: object) -> None:
        self.switches += 1
        if self.holds_packets:
            self.wrong.append((event, arguments))

    def turn(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def turn(connection: Connection) -> Any:
            assert not self.in_turn, "a turn within a turn"
            self.in_turn = True
            self.turns += 1
            try:
                return original(connection)
            finally:
                self.in_turn = self.holds_packets = False

        return turn

    def receive(self, original: Callable[..., list[int]]) -> Callable[..., list[int]]:
        def receive(buffer: PlainReceiveBuffer, *arguments: Any) -> list[int]:
            if self.in_turn:
                self.holds_packets = True
            lengths = original(buffer, *arguments)
            if self.in_turn and lengths:
                self.batches += 1
            return lengths

        return receive


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    watch = Watch()
    monkeypatch.setattr(Connection, "take_turn", watch.turn(Connection.take_turn))
    for kind in (PlainReceiveBuffer, ReceiveBuffer):
        monkeypatch.setattr(kind, "receive", watch.receive(kind.receive))
    before = greenlet.settrace(watch.trace)
    yield watch
    greenlet.settrace(before)


def traffic(hub: Hub, connect: Connect) -> None:
    """A bit of everything, from greenlets that get in each other's way."""
    inbox = hub.subscribe(b"a/")
    tap = hub.tap(secrets=True)
    slow, vouched, holder, batching = connect(), connect(), connect(), connect()
    slow.subscribe(b"")
    batching.send(b"CMSG batch/on")
    batching.subscribe(b"a/", b"b/*")
    ((packet, _),) = pack(
        [(b"%b/%d" % (key, n), b"x" * n) for n in range(40) for key in (b"a", b"c")], check_key, 99_999
    )
    vouched.send(b"CMSG senders/on")
    vouched.subscribe(b"a/", b"b/*")
    holder.subscribe(own_key() + b"/")

    def publish(number: int) -> None:
        with Peer(hub.address) as peer:
            peer.send(b"CMSG batch/on")
            peer.subscribe(b"a/%d" % number)
            for count in range(60):
                peer.publish(b"a/%d" % (count % 4), bytes([number]) * (count * 40))
                peer.publish(b"b/%d" % number, b"x")
                peer.publish(own_key() + b"/s", b"secret")
                if count % 10 == 0:
                    peer.send(packet)
                if count % 5 == 0:
                    peer.send(b"CMSG hub/features", b"CMSG hub/sync\0t", b"SUB c/%d" % count, b"UNSUB never")
                if count % 16 == number:
                    gevent.sleep(0)
            if number % 2:
                peer.send(b"MSG a/last\0x", b"nonsense", b"MSG a/never\0x")
                while peer.receive():
                    pass
            else:
                peer.pending()

    gevent.joinall([gevent.spawn(publish, number) for number in range(4)], raise_error=True)
    assert len(inbox) >= 240
    assert len(tap) >= 700
    assert hub.statistics().waiting > 0
    assert slow.pending()
    assert vouched.pending()
    assert any(packet.startswith(BATCH) for packet in batching.pending())
    assert len(holder.pending()) == 240
    assert inbox.lost == tap.lost == {}


@pytest.mark.promise("architecture.md", "While the receive buffer is in use, no other code runs")
def test_no_switch_within_a_turn_that_asks_and_logs(watch: Watch, make_hub: MakeHub, connect: Connect) -> None:
    hubs: list[Hub] = []
    asked: list[bytes] = []
    tried: list[bool] = []

    def authorize(credentials: object, verb: str, key: bytes) -> bool:
        asked.append(key)
        gevent.spawn(lambda: None)
        if verb == "publish" and not key.startswith(b"audit"):
            hubs[0].publish(b"audit", key)
        return True

    def try_to_yield() -> None:
        try:
            gevent.sleep(0)
        except BaseException:
            tried.append(False)
        else:
            tried.append(True)

    hubs.append(make_hub(authorize=authorize))
    with called_by_logging(try_to_yield):
        traffic(hubs[0], connect)
    assert watch.wrong == []
    assert min(watch.turns, watch.batches) > 20
    assert watch.switches > 50  # so that the trace was on
    assert asked
    assert set(tried) == {False}


def test_an_authorize_function_that_yields_refuses(watch: Watch, make_hub: MakeHub, connect: Connect) -> None:
    def authorize(credentials: object, verb: str, key: bytes) -> bool:
        if key == b"slow":
            gevent.sleep(0)
        return True

    make_hub(authorize=authorize)
    witness, offender = connect(), connect()
    witness.subscribe(b"")
    offender.send(b"MSG a\0x", b"MSG slow\0x", b"MSG a\0y")
    assert offender.is_disconnected()
    assert witness.pending() == [b"MSG a\0x"]
    assert watch.wrong == []


def test_no_switch_while_the_hub_stops(watch: Watch, make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub()
    peers = [connect() for _ in range(5)]
    peers[0].subscribe(b"k")
    for peer in peers:
        peer.barrier()
        for number in range(200):
            peer.publish(b"k", bytes(number))
    reading = gevent.spawn(lambda: sum(1 for _ in iter(peers[0].receive, b"")))
    hub.stop(10)
    assert reading.get() == 1_000
    assert watch.wrong == []


class Scribbling:
    """Overwrites the hub's receive buffer whenever it is called, as if it were in use for another client already."""

    def __init__(self) -> None:
        self.hub: Hub | None = None
        self.calls = 0

    def scribble(self) -> None:
        assert self.hub is not None
        self.calls += 1
        for offset in self.hub.context.running.buffer.offsets:
            self.hub.context.running.buffer.data[offset : offset + 64] = b"MSG somebody else's\0secret".ljust(64, b"!")

    def authorize(self, credentials: object, verb: str, key: bytes) -> bool:
        self.scribble()
        return b"refused" not in key


def test_the_buffer_is_free_when_a_stranger_is_called(make_hub: MakeHub, connect: Connect) -> None:
    """By ``authorize=`` and by logging: no client receives what they write into the receive buffer."""
    scribbling = Scribbling()
    hub = scribbling.hub = make_hub(authorize=scribbling.authorize)

    with called_by_logging(scribbling.scribble):
        witness, vouched = connect(), connect()
        vouched.send(b"CMSG senders/on")
        for peer in (witness, vouched):
            peer.subscribe(b"")
        sent = []
        for turn in range(20):
            with Peer(hub.address) as peer:
                for number in range(20):
                    key = b"k%d" % (number if number % 3 else turn)
                    sent.append(b"MSG %b\0%d %d" % (key, turn, number))
                    peer.send(sent[-1])
                peer.send(b"MSG refused\0x")
                assert peer.is_disconnected()
    assert witness.pending() == sent
    assert [packet[-len(wanted) :] for packet, wanted in zip(vouched.pending(), sent, strict=True)] == sent
    assert scribbling.calls > 100


def test_a_question_to_the_tree_kicks_nobody_while_the_buffer_is_in_use(hub: Hub, connect: Connect) -> None:
    """A receiver that asked for ``error`` is kicked, which is logged, after the packets that follow the question."""
    scribbling = Scribbling()
    scribbling.hub = hub

    with called_by_logging(scribbling.scribble):
        below, witness, slow, publisher = connect(), connect(), connect(), connect()
        below.send(b"CMSG interest/on")
        below.barrier()
        witness.subscribe(b"k/")
        narrow(hub, slow)
        slow.send(b"CMSG blocking/soft/error")
        slow.subscribe(b"big")
        sent = [b"MSG k/%d\0%d" % (number % 2, number) for number in range(20)]
        publisher.send(*(b"MSG big\0" + big(number) for number in range(4)), b"CMSG hub/sync\0token\0tree", *sent)
        publisher.barrier()
        assert witness.pending() == sent
        assert slow.receive()
        assert slow.is_disconnected()
    assert scribbling.calls


@both_ways
@pytest.mark.parametrize(("authorize", "batch"), [(None, 64), (lambda *_: True, 3)], ids=["open", "asking"])
def test_no_client_receives_bytes_of_another(
    make_hub: MakeHub, connect: Connect, authorize: Callable[..., bool] | None, batch: int
) -> None:
    """Each payload names its key in all its bytes, whatever its size and whichever client is slow."""
    hub = make_hub(authorize=authorize, limits=Limits(batch=batch))
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    names = [b"key/%d" % number for number in range(12)]
    keys = [*names, own_key() + b"/private", own_key() + b"/" + b"x" * 300]
    peers = [connect() for _ in keys]
    for number, (key, peer) in enumerate(zip(keys, peers, strict=True)):
        if number % 3 == 0:
            peer.send(b"CMSG senders/on")
        peer.subscribe(key)
    inboxes = {key: hub.subscribe(key) for key in keys[:3]}

    def read_all(peer: Peer) -> list[bytes]:
        packets: list[bytes] = []
        while not packets or not packets[-1].endswith(b"MSG end\0"):
            packets.append(peer.receive())
        return packets[:-1]

    for peer in peers[::2]:
        peer.subscribe(b"end")
    eager = [gevent.spawn(read_all, peer) for peer in peers[::2]]

    def content(key: bytes, number: int, size: int) -> bytes:
        return (b"<%b %d>" % (key, number)) * (size // (len(key) + 4) + 1)

    expected: dict[bytes, list[bytes]] = {key: [] for key in keys}
    publishers = [connect() for _ in range(6)]
    for number in range(1_500):
        key = rng.choice(keys)
        size = rng.choice((0, 10, 100, 1_000, rng.randrange(5_000), rng.randrange(60_000)))
        expected[key].append(content(key, number, size))
        publisher = publishers[keys.index(key) % 6]  # each key has one publisher, so its order is known
        publisher.publish(key, expected[key][-1])
        if rng.random() < 0.05:
            publisher.send(b"SUB nothing/%d" % number)  # changes the routes in the middle of a batch
    for publisher in publishers:
        publisher.barrier()
    hub.publish(b"end")
    received = {
        **dict(zip(keys[::2], [one.get(timeout=20) for one in eager], strict=True)),
        **{key: peer.pending() for key, peer in zip(keys[1::2], peers[1::2], strict=True)},
    }
    assert hub.statistics().lost == {}
    for key in keys:
        got = [packet.split(b"\0", 2)[2] if packet.startswith(b"CMSG") else packet for packet in received[key]]
        assert got == [b"MSG %b\0%b" % (key, payload) for payload in expected[key]]
    for key, inbox in inboxes.items():
        assert [inbox.receive(timeout=0).payload for _ in expected[key]] == expected[key]
