"""Turns shared out among users of whom each speaks when it likes, in a loop whose work takes time, too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from core import test_scheduler
from support import Peer, eventually

from sbuslib import Hub, Limits
from sbuslib.core import scheduler as crowd_module
from sbuslib.core.quotas import Account
from sbuslib.core.scheduler import DOOR, Scheduler

pytest_plugins = ["accounting_fixtures"]


class Loop(test_scheduler.Loop):
    """An event loop whose clock goes on within a round."""

    def __init__(self) -> None:
        super().__init__()
        self.round_time = self.time

    def now(self) -> float:
        return self.round_time


class Speaker:
    """Has something to say, then again so long after its turn."""

    def __init__(self, world: World, uid: int, cost: float, pause: Callable[[], float] | None) -> None:
        self.world, self.account, self.uid, self.cost, self.pause = world, world.account(uid), uid, cost, pause
        self.watched, self.ready, self.worked = True, world.loop.time, 0.0
        self.waits: list[float] = []

    def resume(self) -> None:
        self.watched = True
        self.world.turn(self)

    @property
    def worst(self) -> float:
        return max([*self.waits, self.world.loop.time - self.ready])


class World:
    """Rounds as libev makes them. ``overhead``: seconds of each round and callback beside its turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, overhead: float = 1e-6, stolen: float = 0.0) -> None:
        self.loop, self.cpu, self.overhead, self.stolen = Loop(), 1.0, overhead, stolen
        self.crowd = Scheduler(self.loop, Limits())
        self.crowd.several = True
        self.accounts: dict[int, Account] = {}
        self.speakers: list[Speaker] = []
        self.idle = 0.0  # seconds slept while somebody waited
        monkeypatch.setattr(crowd_module, "thread_time", lambda: self.cpu)
        monkeypatch.setattr(crowd_module, "monotonic", lambda: self.loop.time)

    def account(self, uid: int) -> Account:
        return self.accounts.setdefault(uid, Account(uid, Limits()))

    def add(self, uid: int, cost: float, pause: Callable[[], float] | None = None) -> Speaker:
        self.speakers.append(Speaker(self, uid, cost, pause))
        return self.speakers[-1]

    def spend(self, seconds: float) -> None:
        self.cpu += seconds
        self.loop.time += seconds * (1 + self.stolen)

    def turn(self, speaker: Speaker) -> None:
        self.spend(self.overhead)
        if not self.crowd.may_go(speaker.account):
            speaker.watched = False
            self.crowd.postpone(speaker.account, speaker.resume)
            return
        self.spend(speaker.cost)
        speaker.worked += speaker.cost
        speaker.waits.append(max(0.0, self.loop.time - speaker.ready))
        speaker.ready = self.loop.time + (speaker.pause() if speaker.pause else 0.0)
        self.crowd.went()

    def run(self, seconds: float) -> None:
        end = self.loop.time + seconds
        loop = self.loop
        while loop.time < end:
            if not any(one.watched and one.ready <= loop.time for one in self.speakers):
                timer = [loop.due] if loop.callback is not None else []
                wake = min([one.ready for one in self.speakers if one.watched] + timer + [end])
                if wake > loop.time:
                    self.idle += (wake - loop.time) * any(not one.watched for one in self.speakers)
                    loop.time = wake
            ready = [one for one in self.speakers if one.watched and one.ready <= loop.time]
            self.spend(self.overhead)
            loop.round_time = loop.time
            if loop.callback is not None and loop.due <= loop.time:
                callback, loop.callback = loop.callback, None
                callback()
            for one in ready:
                if one.watched and one.ready <= loop.round_time:
                    self.turn(one)


@pytest.mark.parametrize("many", [1, 3, 20])
@pytest.mark.parametrize("uid", [1, DOOR])
def test_who_comes_and_goes_waits_no_longer_than_for_a_turn_of_each(
    monkeypatch: pytest.MonkeyPatch, many: int, uid: int
) -> None:
    """Each of the others had but its share of what passed meanwhile: it counts as if it had had that, and no more."""
    world = World(monkeypatch)
    for n in range(many):
        world.add(100 + n, 1e-4)
    some = random.Random(1)
    seldom = world.add(uid, 5e-5, lambda: some.uniform(0.03, 0.06))
    world.run(5.0)
    assert seldom.worst < 0.1  # a round of all is 2 ms where there are 20


def test_a_request_and_its_answer_take_no_longer_for_being_polite(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of each of the others, and not as many as would go into its pause."""
    world = World(monkeypatch, 2e-6)
    for n in range(20):
        world.add(100 + n, 1e-3)
    some = random.Random(1)
    asks = world.add(1, 5e-5, lambda: some.uniform(5e-4, 3e-2))
    world.run(5.0)
    assert asks.worst < 0.1


@pytest.mark.parametrize(("overhead", "stolen"), [(1e-6, 0.0), (2e-5, 0.0), (2e-5, 1.0)])
@pytest.mark.parametrize("costs", [(1e-4, 1e-4), (2e-5, 1e-4), (2e-5, 1e-2), (1e-4, 1e-2)])
def test_two_busy_users_share_alike_whatever_a_turn_costs(
    monkeypatch: pytest.MonkeyPatch, overhead: float, stolen: float, costs: tuple[float, float]
) -> None:
    """What the loop itself takes, and what other processes do, is no idleness, so whoever is busy is awaited."""
    world = World(monkeypatch, overhead, stolen)
    one, other = (world.add(1 + n, cost) for n, cost in enumerate(costs))
    world.run(1.0)
    before = one.worked, other.worked
    world.run(3.0)
    assert one.worked - before[0] == pytest.approx(other.worked - before[1], rel=0.1)


@pytest.mark.parametrize("others", [0, 18])
@pytest.mark.parametrize("stolen", [0.0, 1.0])
def test_offences_count_on_a_busy_machine_too(monkeypatch: pytest.MonkeyPatch, others: int, stolen: float) -> None:
    """The offender is measured against those who are busy, and not against itself."""
    world = World(monkeypatch, 2e-5, stolen)
    good = world.add(1, 1e-4)
    for n in range(others):
        world.add(100 + n, 1e-4)
    bad = [world.add(2, 2e-3) for _ in range(100)]
    for _ in range(15):
        world.crowd.offended(2)
    world.run(3.0)
    assert sum(one.worked for one in bad) < good.worked


@pytest.mark.parametrize("seed", range(40))
def test_everybody_is_served_in_time(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Random users of one client each: nobody waits for many turns of each other, nor long while the hub is idle."""
    some = random.Random(seed)
    world = World(monkeypatch, some.choice((1e-6, 2e-5)), some.choice((0.0, 1.0)))
    dearest, many = 0.0, some.choice((2, 3, 20))
    for n in range(many):
        cost = some.choice((2e-5, 1e-4, 1e-3, 1e-2))
        shortest, most = some.choice(((0.0, 0.0), (1e-4, 1e-3), (0.03, 0.06)))
        dearest = max(dearest, cost)
        world.add(100 + n, cost, lambda low=shortest, high=most: some.uniform(low, high))  # type: ignore[misc]
    world.run(8.0)
    waited = max(speaker.worst for speaker in world.speakers)
    assert waited < max(1.0, 6 * many * dearest * (1 + world.stolen))  # who has dear turns has few
    assert world.idle < 0.4 * 8.0  # it is idle with somebody waiting only where others are awaited


def test_work_that_goes_on_leaves_turns_to_clients_of_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is filled all the time, or what is left of a batch, has its turns in between."""
    world = World(monkeypatch)
    world.add(1, 1e-4)
    speaker = world.add(2, 1e-4)
    crowd, worked = world.crowd, 0

    def go_on() -> None:
        nonlocal worked
        if crowd.may_go(speaker.account):
            world.spend(1e-4)
            worked += 1
            crowd.went(1)
        crowd.postpone(speaker.account, go_on)

    crowd.postpone(speaker.account, go_on)
    world.run(1.0)
    assert worked > 100
    assert len(speaker.waits) > 100


# -- resumption -----------------------------------------------------------------------------------------


def test_a_hub_that_authorize_closes_in_a_turn_that_was_put_off(
    bus: Callable[..., Hub], connect_as: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits any more then."""
    errors: list[Any] = []
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda *error: errors.append(error[1:3]))
    hubs: list[Hub] = []

    def authorize(credentials: object, verb: str, key: bytes) -> bool:
        if hubs[0].crowd._resuming is None and hubs[0].crowd.anybody_waits() and key.startswith(b"k"):
            hubs[0].close()
        return True

    hub = bus({"mode": 0o777, "authorize": authorize}, turns_per_round=3)
    hubs.append(hub)
    connect_as(1001)
    clients = [connect_as(1002) for _ in range(20)]
    for client in clients:
        for number in range(5):
            client.publish(b"k%d" % number, b"x")
    eventually(lambda: hub.closed)
    gevent.sleep(0.05)
    assert not errors


# -- the order in which clients of one user go ---------------------------------------------------------------


@pytest.mark.parametrize(("count", "cost"), [(66, 1e-2), (96, 3e-3), (127, 1e-3), (128, 3e-3), (130, 1e-2)])
def test_no_client_of_the_only_busy_user_is_left_out(monkeypatch: pytest.MonkeyPatch, count: int, cost: float) -> None:
    """Whose turn is too late for a round keeps its place in the queue."""
    world = World(monkeypatch)
    for _ in range(count):
        world.add(1, cost)
    world.run(12 * count * cost)
    turns = [len(speaker.waits) for speaker in world.speakers]
    assert min(turns) > 0
    assert max(turns) <= 2 * min(turns) + 2
