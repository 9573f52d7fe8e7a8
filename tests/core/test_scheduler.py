"""Turns shared out among users, with a clock that the test moves."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
from accounting import big, narrow, numbers, settle
from support import Peer, eventually

from sbuslib import Hub, Limits
from sbuslib.core import scheduler as crowd_module
from sbuslib.core.quotas import Account
from sbuslib.core.scheduler import DOOR, Scheduler

pytest_plugins = ["accounting_fixtures"]

ONE, OTHER = 1, 2
LIMITS = Limits(turns_per_round=8, crowded_turns=1, batch=64)


class Timer:
    """A timer of a loop that has none."""

    def __init__(self, loop: Loop, seconds: float) -> None:
        self.loop, self.seconds = loop, seconds

    def start(self, callback: Callable[[], None], update: bool) -> None:
        assert self.loop.callback is None
        self.loop.callback, self.loop.due = callback, self.loop.time + self.seconds

    def close(self) -> None:
        self.loop.callback = None


class Loop:
    """An event loop whose rounds the test makes."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self.callback: Callable[[], None] | None = None
        self.due = 0.0
        self.jumped = 0.0

    def now(self) -> float:
        return self.time + self.jumped

    def timer(self, seconds: float) -> Timer:
        return Timer(self, seconds)


CHILD = """
import os, select, socket, sys, time
address, uid, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
socks = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
for sock in socks:
    sock.connect(address)
    sock.setblocking(False)

def flood(packet):
    poll = select.epoll()
    for sock in socks:
        poll.register(sock, select.EPOLLOUT)
    by_number = {sock.fileno(): sock for sock in socks}
    while True:
        for number, _ in poll.poll():
            try:
                for _ in range(64):
                    by_number[number].send(packet)
            except BlockingIOError:
                pass

def read():
    for sock in socks:
        sock.send(b"SUB k")
    print("ready", flush=True)
    while True:
        for sock in select.select(socks, [], [])[0]:
            try:
                for _ in range(64):
                    sock.recv(4096)
            except BlockingIOError:
                pass

def murmur(pause):
    while True:
        socks[0].send(b"MSG murmur\\0x")
        time.sleep(pause)

"""


@contextmanager
def process(hub: Hub, uid: int, count: int, action: str) -> Iterator[subprocess.Popen[bytes]]:
    """Clients of a user in a process of their own."""
    arguments = [sys.executable, "-c", CHILD + action, hub.address, str(uid), str(count)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


class Client:
    """A client that always has something to say."""

    def __init__(self, bench: Bench, uid: int) -> None:
        self.bench, self.account, self.closed, self.watched = bench, bench.accounts[uid], False, True

    def resume(self) -> None:
        assert not self.watched
        self.watched = not self.closed
        if self.watched:
            self.bench.turn(self)


class Bench:
    """A crowd and clients that are ready in every round; what a turn costs, by user."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: dict[int, float]) -> None:
        self.loop = Loop()
        self.crowd = Scheduler(self.loop, LIMITS)
        self.crowd.several = True
        self.costs = costs
        self.accounts = {uid: Account(uid, LIMITS) for uid in costs}
        self.clients: list[Client] = []
        self.turns: Counter[int] = Counter()
        self.cpu = self.seen = 0.0
        monkeypatch.setattr(crowd_module, "thread_time", lambda: self.cpu)
        # A turn takes time, though the round has the name that it had when it began.
        monkeypatch.setattr(crowd_module, "monotonic", lambda: self.loop.time + self.cpu - self.seen)

    def add(self, uid: int, count: int) -> None:
        self.clients += [Client(self, uid) for _ in range(count)]

    def run(self, rounds: int) -> Counter[int]:
        """How many turns each user had."""
        before = self.turns.copy()
        for _ in range(rounds):
            self.loop.time += self.cpu - self.seen + 1e-6
            self.seen = self.cpu
            if self.loop.callback is not None:
                if not any(client.watched for client in self.clients):
                    self.loop.time = max(self.loop.time, self.loop.due)
                if self.loop.due <= self.loop.time:
                    callback, self.loop.callback = self.loop.callback, None
                    callback()
            for client in self.clients:
                if client.watched and not client.closed:
                    self.turn(client)
        return self.turns - before

    def turn(self, client: Client) -> None:
        if self.crowd.may_go(client.account):
            self.cpu += self.costs[client.account.uid]
            self.turns[client.account.uid] += 1
            self.crowd.went()
        else:
            client.watched = False
            self.crowd.postpone(client.account, client.resume)


def test_a_single_user_has_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4})
    bench.crowd.several = False
    bench.add(ONE, 20)
    assert bench.run(10) == {ONE: 200}
    assert bench.loop.callback is None


def test_one_busy_user_beside_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many turns a round, and none of its clients is forgotten."""
    bench = Bench(monkeypatch, {ONE: 1e-5})
    bench.add(ONE, 40)
    had = bench.run(100)
    assert had[ONE] >= 700
    assert all(client.watched or client.resume in bench.crowd._users[ONE].waiting for client in bench.clients)


@pytest.mark.parametrize("many", [2, 30, 1_000])
def test_a_crowd_is_worth_no_more_than_one(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 1e-4})
    bench.add(ONE, 1)
    bench.add(OTHER, many)
    bench.run(50)
    had = bench.run(2_000)
    assert had[ONE] >= 1_500  # most rounds
    assert 0 < had[OTHER] <= had[ONE]
    if many >= 1_000:
        assert had[OTHER] <= had[ONE] / 5


def test_turns_that_cost_more_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 1.5e-3})
    bench.add(ONE, 1)
    bench.add(OTHER, 1)
    bench.run(50)
    had = bench.run(2_000)
    assert had[OTHER] > 0
    assert had[OTHER] * 1.5e-3 <= had[ONE] * 1e-4 * 1.5


def test_two_crowds_share_alike_and_waste_little(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 1e-4})
    bench.add(ONE, 50)
    bench.add(OTHER, 50)
    bench.run(50)
    start, had = bench.loop.time, bench.run(4_000)
    assert had[ONE] == pytest.approx(had[OTHER], rel=0.1)
    worked = had[ONE] * 1e-4 + had[OTHER] * 1e-4
    assert worked >= 0.7 * (bench.loop.time - start)


def test_nobody_naps_while_somebody_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose turns were dear is due again once the other has had as much, however late that had seemed."""
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 5e-2})
    bench.add(ONE, 1)
    bench.add(OTHER, 1)
    bench.run(50)
    start, cpu = bench.loop.time, bench.cpu
    bench.run(5_000)
    assert bench.cpu - cpu >= 0.95 * (bench.loop.time - start)


def test_every_client_of_a_crowd_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 1e-4})
    bench.add(ONE, 1)
    bench.add(OTHER, 20)
    seen: Counter[int] = Counter()
    original = bench.turn

    def turn(client: Client) -> None:
        before = bench.turns[OTHER]
        original(client)
        if bench.turns[OTHER] > before:
            seen[id(client)] += 1

    monkeypatch.setattr(bench, "turn", turn)
    bench.run(5_000)
    assert len(seen) == 20
    assert max(seen.values()) <= 2 * min(seen.values()) + 2


def test_the_crowd_is_over_soon_after_the_others_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 1e-4})
    bench.add(ONE, 1)
    bench.add(OTHER, 100)
    bench.run(200)
    assert bench.crowd.crowded
    bench.clients[0].closed = True
    bench.loop.time += 1.0
    had = bench.run(100)
    assert not bench.crowd.crowded
    assert had[OTHER] >= 700


def test_dear_turns_get_shorter_and_cheap_ones_longer_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 0.1})
    bench.add(ONE, 1)
    bench.add(OTHER, 1)
    account = bench.accounts[OTHER]
    assert bench.crowd.most(account, None) is None
    bench.run(3_000)
    assert bench.crowd.most(account, None) == LIMITS.crowd_batch
    assert bench.crowd.most(account, 20) == LIMITS.crowd_batch
    assert bench.crowd.most(bench.accounts[ONE], 20) == 20
    bench.costs[OTHER] = 1e-5
    bench.run(3_000)
    assert bench.crowd.most(account, None) is None


@pytest.mark.parametrize("jump", [-3_600.0, -1.0, 1.0, 3_600.0])
def test_a_clock_that_is_set_gives_nobody_more(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """The loop's time is that of the wall. Whoever is not busy when it jumps must not pay for it, nor gain."""
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 1e-4})
    bench.add(ONE, 1)
    bench.add(OTHER, 5)
    bench.run(200)
    first, *others = bench.clients
    for idle in ([first], others):
        bench.clients = [client for client in (first, *others) if client not in idle]
        bench.run(3)
        bench.loop.jumped += jump
        bench.run(1)
        bench.clients = [first, *others]
        had = bench.run(400)
        assert min(had[ONE], had[OTHER]) >= 30
    bench.clients = [first]
    for client in others:
        client.closed = True
    bench.loop.jumped += jump
    bench.loop.time += 0.1
    bench.run(200)
    assert not bench.crowd.crowded


def test_the_door_is_one_more_user(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, DOOR: 5e-5})
    bench.add(ONE, 1)
    bench.add(DOOR, 1)
    bench.run(50)
    had = bench.run(2_000)
    assert 0 < had[DOOR] * 5e-5 <= had[ONE] * 1e-4 / 8


def test_clients_that_closed_are_soon_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 1e-4})
    bench.add(ONE, 1)
    bench.add(OTHER, 50)
    bench.run(50)
    for client in bench.clients:
        client.closed = True
    watched = [client.watched for client in bench.clients]
    bench.loop.time += 10
    bench.run(200)
    assert [client.watched for client in bench.clients] == watched
    assert bench.loop.callback is None


# -- in a hub ---------------------------------------------------------------------------------------------


def test_a_hub_whose_users_crowd_loses_nothing(bus: Callable[..., Hub], connect_as: Callable[..., Peer]) -> None:
    """Clients of two users flood together; all that was postponed comes, in order for each of them."""
    hub = bus({"mode": 0o777})
    receiver = connect_as(1001)
    receiver.subscribe(b"")
    publishers = {(uid, n): connect_as(uid) for uid, count in ((1001, 1), (1002, 15)) for n in range(count)}

    def publish(who: tuple[int, int]) -> None:
        for number in range(150):
            publishers[who].publish(b"%d/%d" % who, b"%d" % number)
            if not number % 10:
                gevent.sleep(0)

    got: dict[bytes, list[int]] = {}

    def receive() -> None:
        for _ in range(150 * len(publishers)):
            key, _, payload = receiver.receive()[4:].partition(b"\0")
            got.setdefault(key, []).append(int(payload))

    greenlets: list[gevent.Greenlet[..., None]] = [gevent.spawn(receive)]
    greenlets += [gevent.spawn(publish, who) for who in publishers]
    gevent.joinall(greenlets, raise_error=True)
    assert len(got) == len(publishers)
    assert all(numbers == list(range(150)) for numbers in got.values())
    assert not hub.context.scheduler.anybody_waits()


def test_slow_readers_have_their_turns_too(
    bus: Callable[..., Hub], connect_as: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent on to clients that had let it wait counts: thousands of them take no more than one."""
    hub = bus({"mode": 0o777}, turns_per_round=2)
    publisher = connect_as(1001)
    readers = [connect_as(1002) for _ in range(10)]
    for reader in readers:
        reader.send(b"SUB k")
        narrow(hub, reader)
    for number in range(3):
        publisher.publish(b"k", big(number))
    publisher.barrier()
    turns: Counter[float] = Counter()
    original = Scheduler.may_go

    def may_go(crowd: Scheduler, account: Account) -> bool:
        may = original(crowd, account)
        if may and account.uid == 1002:
            turns[hub.context.loop.now()] += 1
        return may

    monkeypatch.setattr(Scheduler, "may_go", may_go)
    for number in range(3):  # each makes all of them writable at once
        assert [numbers([reader.receive()]) for reader in readers] == [[number]] * len(readers)
    eventually(lambda: not hub.statistics().queued)
    assert sum(turns.values()) >= 2 * len(readers)
    assert max(turns.values()) <= 2
    assert not hub.context.scheduler.anybody_waits()


def test_a_slow_reader_that_leaves_while_its_turn_is_put_off(
    bus: Callable[..., Hub], connect_as: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = bus({"mode": 0o777})
    publisher, reader = connect_as(1001), connect_as(1002)
    reader.send(b"SUB k")
    receiving = narrow(hub, reader)
    for number in range(3):
        publisher.publish(b"k", big(number))
    publisher.barrier()
    original = Scheduler.postpone

    def postpone(crowd: Scheduler, account: Account, resume: Callable[[], None]) -> None:
        original(crowd, account, resume)
        hub.kick(receiving, "on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, "may_go", lambda crowd, account: account.uid != 1002)
        patched.setattr(Scheduler, "postpone", postpone)
        assert numbers([reader.receive()]) == [0]
        eventually(lambda: receiving.closed)
    settle(hub)
    assert receiving.lost == {"outage": 2}
    assert not hub.context.scheduler.anybody_waits()


def test_patterns_of_who_left_go_a_few_each_round(make_hub: Callable[..., Hub], connect: Callable[..., Peer]) -> None:
    """So a client that held many and leaves keeps nobody waiting."""
    hub = make_hub(limits=Limits(forgotten_per_round=5))
    leaver, other = connect(), connect()
    leaver.subscribe(*(b"p/%d" % number for number in range(200)))
    other.barrier()
    steps: list[Any] = []
    original = hub.context.router.forget_some

    def forget_some(count: int, user: int) -> bool:
        steps.append(hub.context.loop.now())
        return original(count, user)

    hub.context.router.forget_some = forget_some  # type: ignore[method-assign]
    leaver.close()
    eventually(lambda: not hub.statistics().patterns)
    assert len(steps) >= 40
    assert len(set(steps)) >= len(steps) - 2  # each in a round of its own
    other.barrier()


@pytest.mark.parametrize("beside", [True, False])
def test_a_turn_of_many_counts_as_many_only_beside_others(monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 1e-4})
    crowd, account = bench.crowd, bench.accounts[OTHER]
    bench.cpu = 1.0
    for _ in range(3):  # both are busy
        bench.loop.time += 1e-3
        for uid in (ONE, OTHER):
            if crowd.may_go(bench.accounts[uid]):
                crowd.went()
    assert crowd.crowded
    for _ in range(2):  # rounds in which the other one has nothing to say, and the first has or has not
        bench.loop.time += 1e-5
        crowd._look_at_the_clock()
        if beside:
            assert crowd.may_go(bench.accounts[ONE])
            crowd.went()
    before = crowd._users[OTHER].had
    assert crowd.may_go(account)
    bench.cpu += 1e-3
    crowd.went(clients=1_023)
    weight = (crowd._users[OTHER].had - before) / 1e-3
    assert weight == pytest.approx(1 + math.log2(1_023) if beside else 1)


def rounds_of(bench: Bench, uid: int, most: int) -> int:
    """How many turns a user may have in the round at hand, one after the other; ``most``: when to stop asking."""
    for had in range(most):
        if not bench.crowd.may_go(bench.accounts[uid]):
            return had
        bench.crowd.went()
    return most


def test_the_only_busy_user_has_no_more_turns_a_round_than_any(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-5, OTHER: 1e-5})
    bench.cpu = 1.0
    for _ in range(3):
        bench.loop.time += 1e-3
        assert rounds_of(bench, ONE, 100) == LIMITS.turns_per_round


def test_the_only_busy_user_is_busy_no_longer_than_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was the only one, an hour ago, takes nothing from somebody who comes now."""
    bench = Bench(monkeypatch, {ONE: 1e-5, OTHER: 1e-5})
    bench.cpu = 1.0
    bench.loop.time += 1e-3
    assert rounds_of(bench, ONE, 3) == 3
    bench.loop.time += 3_600
    for _ in range(3):
        bench.loop.time += 1e-5
        assert rounds_of(bench, OTHER, 100) == LIMITS.turns_per_round
        assert not bench.crowd.crowded
    bench.loop.time += 1e-5
    assert rounds_of(bench, OTHER, 3) == 3
    assert rounds_of(bench, ONE, 3) == 3
    bench.loop.time += 1e-5
    assert rounds_of(bench, ONE, 3) == 1
    assert bench.crowd.crowded


def test_who_may_read_again_is_not_idle_until_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what the others took meanwhile would count as had, and it would be put off again and again."""
    bench = Bench(monkeypatch, {ONE: 1e-5, OTHER: 2e-3})
    bench.cpu = 1.0
    crowd, one, other = bench.crowd, bench.accounts[ONE], bench.accounts[OTHER]
    for _ in range(2):
        bench.loop.time += 1e-3
        for account in (one, other):
            if crowd.may_go(account):
                crowd.went()
    assert crowd.crowded
    resumed: list[int] = []

    def resume() -> None:
        if crowd.may_go(one):
            resumed.append(ONE)
            crowd.went()

    crowd.postpone(one, resume)
    before = crowd._users[ONE].had
    bench.loop.time += 1e-3
    assert bench.loop.callback is not None
    bench.loop.callback()
    assert resumed == [ONE]
    bench.loop.time += 5e-3  # for as long others are called back
    crowd._look_at_the_clock()
    assert crowd._users[ONE].had == before


def test_nobody_is_resumed_once_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the hub's event loop would be kept waiting, and be called back for clients that are gone."""
    bench = Bench(monkeypatch, {ONE: 1e-5})
    bench.add(ONE, 40)
    bench.run(3)
    assert bench.loop.callback is not None
    assert bench.crowd.anybody_waits()
    bench.crowd.close()
    assert bench.loop.callback is None
    assert not bench.crowd.anybody_waits()
    bench.crowd.close()


def test_a_hub_that_stops_leaves_no_turn_to_come(hub: Hub) -> None:
    resumed: list[int] = []
    hub.context.scheduler.postpone(hub.context.quotas.account(OTHER), lambda: resumed.append(OTHER))
    hub.close()
    gevent.sleep(0.001)
    assert not resumed


def test_who_does_what_nobody_may_is_served_less_until_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 1e-4})
    bench.add(ONE, 1)
    bench.add(OTHER, 1)
    bench.run(50)
    before = bench.run(1_000)
    for _ in range(15):
        bench.crowd.offended(OTHER)
    had = bench.run(1_000)
    assert before[OTHER] == pytest.approx(before[ONE], rel=0.1)
    assert 0 < had[OTHER] <= 1.2 * had[ONE] / 5  # its turns count 1 + log2(16) times
    bench.loop.time += 4 * LIMITS.crowd_pardon
    assert not bench.crowd._offences or bench.run(50)
    after = bench.run(1_000)
    assert after[OTHER] == pytest.approx(after[ONE], rel=0.1)
    assert not bench.crowd._offences


def test_half_of_the_offences_are_forgotten_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4})
    crowd, pardon = bench.crowd, LIMITS.crowd_pardon
    for _ in range(10):
        crowd.offended(ONE)
    start = bench.loop.time
    counts = [crowd._unforgotten(ONE, start + periods * pardon) for periods in (0, 0.9, 1, 1.9, 2.5, 3)]
    assert counts == [10, 10, 5, 5, 2, 1]
    bench.loop.time = start + 5 * pardon
    crowd.offended(OTHER)
    assert set(crowd._offences) == {OTHER}  # of those who have gone nothing is kept for ever


def test_offences_are_what_a_client_does_by_itself(bus: Callable[..., Hub], connect_as: Callable[..., Peer]) -> None:
    """Not what another can bring it to: who floods somebody, or takes its room, would rob it of turns, too."""
    hub = bus({"mode": 0o777}, user_connections=2, queued_packets=4)
    victim = connect_as(1001)
    victim.send(b"SUB k", b"CMSG blocking/soft/error", b"CMSG blocking/hard/error")
    narrow(hub, victim)
    publisher = connect_as(1002)
    for number in range(20):
        publisher.publish(b"k", big(number))
    publisher.barrier()
    assert hub.statistics().breaches == {"does not keep up, and asked for error": 1}
    assert not hub.context.scheduler._offences
    connect_as(1003).send(b"nonsense")
    eventually(lambda: hub.context.scheduler._offences.keys() == {1003})
    for _ in range(2):
        connect_as(1002)
    eventually(lambda: "too many connections" in hub.statistics().breaches)
    assert hub.context.scheduler._offences.keys() == {1003}


def test_who_has_little_to_say_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are held back for it no longer than twice as long as it took: the hub works while anybody has work."""
    bench = Bench(monkeypatch, {ONE: 1e-5, OTHER: 1e-4})
    crowd, one = bench.crowd, bench.accounts[ONE]
    bench.add(OTHER, 50)
    for _ in range(5):
        crowd.offended(OTHER)
    bench.run(20)
    start, cpu = bench.loop.time, bench.cpu
    said = bench.loop.time
    for _ in range(5_000):
        bench.run(1)
        if bench.loop.time - said > 1e-3:  # a word each millisecond
            said = bench.loop.time
            assert crowd.may_go(one)
            bench.cpu += 1e-5
            crowd.went()
    assert crowd.crowded
    assert bench.cpu - cpu > 0.9 * (bench.loop.time - start)


def test_a_line_that_another_user_fills_starves_no_client(
    bus: Callable[..., Hub], connect_as: Callable[..., Peer]
) -> None:
    hub = bus({"mode": 0o777})
    speaker = connect_as(1001)
    speaker.subscribe(b"mine")
    with process(hub, 1001, 20, "read()") as readers, process(hub, 1002, 1, "flood(b'MSG k\\0x')"):
        assert readers.stdout is not None
        gevent.get_hub().threadpool.apply(readers.stdout.readline)
        eventually(lambda: hub.statistics().routed > 10_000)
        speaker.publish(b"mine", b"hello")
        with gevent.Timeout(3.0):
            assert speaker.receive() == b"MSG mine\0hello"


def test_who_says_little_does_not_keep_a_hub_idle_that_others_wait_for(
    bus: Callable[..., Hub], connect_as: Callable[..., Peer]
) -> None:
    """Whoever waits is due when the others have had as much, and one who says little never has.

    What it is without: 1/140 of the rate.
    """
    hub = bus({"mode": 0o777})
    connect_as(1002)
    rates = []
    with process(hub, 1001, 100, "flood(b'MSG k\\0x')"):
        eventually(lambda: hub.statistics().received > 10_000)
        for action in ("time.sleep(100)", "murmur(0.001)"):
            with process(hub, 1002, 1, action):
                gevent.sleep(0.5)
                before = hub.statistics().received
                gevent.sleep(0.5)
                rates.append(hub.statistics().received - before)
    assert rates[1] > rates[0] / 20


def test_an_error_of_one_who_is_resumed_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4, OTHER: 1e-4})
    resumed: list[int] = []

    def fail() -> None:
        raise MemoryError

    bench.crowd.postpone(bench.accounts[ONE], fail)
    bench.crowd.postpone(bench.accounts[OTHER], lambda: resumed.append(OTHER))
    for _ in range(5):
        bench.loop.time += 1.0
        callback, bench.loop.callback = bench.loop.callback, None
        try:
            if callback is not None:
                callback()
        except MemoryError:  # the loop prints it, and goes on
            pass
    bench.crowd.postpone(bench.accounts[OTHER], lambda: resumed.append(ONE))
    assert bench.loop.callback is not None or resumed == [OTHER, ONE]
    assert resumed


def test_an_error_in_a_turn_that_was_put_off_stops_nobody_else(
    bus: Callable[..., Hub], connect_as: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in a hub: what is left of a batch goes on as it is resumed."""
    hub = bus({"mode": 0o777}, turn_deliveries=1)
    one, other = connect_as(1001), connect_as(1002)
    one.subscribe(b"k")
    other.subscribe(b"o")
    failed: list[object] = []
    work_off = type(next(iter(hub._clients.connections.values())))._work_off

    def fail_once(connection: object) -> None:
        failed.append(connection)
        if len(failed) == 2:  # the first is that of the turn in which the batch came
            raise MemoryError
        work_off(connection)  # type: ignore[arg-type]

    monkeypatch.setattr(type(next(iter(hub._clients.connections.values()))), "_work_off", fail_once)
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda *_: None)
    for number in range(64):
        one.publish(b"k", b"%d" % number)
    eventually(lambda: len(failed) >= 2)
    for number in range(64):
        other.publish(b"o", b"%d" % number)
    with gevent.Timeout(3.0):
        assert [other.receive() for _ in range(64)]


def test_a_fresh_offence_counts_though_an_old_one_was_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, {ONE: 1e-4})
    bench.crowd.offended(ONE)
    bench.loop.time += 100 * LIMITS.crowd_pardon
    for _ in range(16):
        bench.crowd.offended(ONE)
    assert bench.crowd._unforgotten(ONE, bench.loop.time) == 16


def test_of_who_has_gone_no_shorter_turns_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else there is one entry for each user that ever was; and the only busy user never has the quick way again."""
    bench = Bench(monkeypatch, {ONE: 1e-4} | {OTHER + n: 0.1 for n in range(20)})
    bench.add(ONE, 1)
    for n in range(20):
        bench.add(OTHER + n, 1)
        bench.run(20)
        bench.clients.pop().closed = True
        bench.loop.time += 10
    bench.run(200)
    assert bench.crowd._most == {}
    assert bench.crowd._only is not None
