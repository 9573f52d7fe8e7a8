"""The scheduler in a model: users whose clients speak when they like, and an event loop whose work takes time."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import log2
from typing import Any

import pytest

from sbuslib.core import scheduler as scheduler_module
from sbuslib.core.scheduler import ACCEPTOR, Scheduler

SLICE = scheduler_module._SLICE


class Timer:
    def __init__(self, loop: Loop, seconds: float, priority: int) -> None:
        assert priority == loop.MINPRI  # else it would be called before the sockets of its round
        self.loop, self.seconds = loop, seconds
        self.callback: Callable[[], None] | None = None
        self.due = 0.0
        self.starts = 0

    def start(self, callback: Callable[[], None], update: bool) -> None:
        if self.callback is None:
            self.callback = callback
            self.starts += 1
            self.due = (self.loop.time if update else self.loop.now()) + self.seconds

    def stop(self) -> None:
        self.callback = None

    def close(self) -> None:
        self.stop()
        self.loop.timers.discard(self)


class Loop:
    """An event loop whose rounds the test makes, and whose time of the round stands still within it."""

    MINPRI = -2

    def __init__(self) -> None:
        self.time = self.round_time = 1_000.0
        self.jumped = 0.0
        self.timers: set[Timer] = set()

    def now(self) -> float:
        return self.round_time + self.jumped

    def timer(self, seconds: float, priority: int) -> Timer:
        timer = Timer(self, seconds, priority)
        self.timers.add(timer)
        return timer

    def next_due(self) -> float:
        return min((timer.due for timer in self.timers if timer.callback is not None), default=float("inf"))

    def due_timers(self) -> list[tuple[Timer, int]]:
        return [(timer, timer.starts) for timer in self.timers if timer.callback is not None and timer.due <= self.time]


class Client:
    """Has something to say, then again so long after its turn."""

    def __init__(self, world: World, uid: int, cost: float, pause: Callable[[], float] | None) -> None:
        self.world, self.uid, self.cost, self.pause = world, uid, cost, pause
        self.watched, self.ready, self.worked = True, world.loop.time, 0.0
        self.waits: list[float] = []

    def resume(self) -> None:
        self.watched = True
        self.world.turn(self)

    @property
    def worst(self) -> float:
        """The longest that it had to wait, the wait at hand included."""
        return max([*self.waits, self.world.loop.time - self.ready])


class World:
    """Rounds as libev makes them: it waits, calls back for sockets that are ready, and for timers of low priority.

    ``overhead`` is seconds of each round and callback beside its turn, ``stolen`` how much of each second other
    processes take besides.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, overhead: float = 1e-6, stolen: float = 0.0) -> None:
        self.loop, self.cpu, self.overhead, self.stolen = Loop(), 1.0, overhead, stolen
        monkeypatch.setattr(scheduler_module, "thread_time", lambda: self.cpu)
        monkeypatch.setattr(scheduler_module, "monotonic", lambda: self.loop.time)
        self.scheduler = Scheduler(self.loop)
        self.scheduler.several = True
        self.clients: list[Client] = []
        self.idle = 0.0  # seconds slept while somebody waited
        self.order = random.Random(7)

    def add(self, uid: int, cost: float, pause: Callable[[], float] | None = None, count: int = 1) -> list[Client]:
        added = [Client(self, uid, cost, pause) for _ in range(count)]
        self.clients += added
        return added

    def spend(self, seconds: float) -> None:
        self.cpu += seconds
        self.loop.time += seconds * (1 + self.stolen)

    def turn(self, client: Client) -> None:
        self.spend(self.overhead)
        if not self.scheduler.may_go():
            client.watched = False
            self.scheduler.postpone(client.uid, client.resume)
            return
        self.spend(client.cost)
        client.worked += client.cost
        client.waits.append(self.loop.time - client.ready)
        client.ready = self.loop.time + (client.pause() if client.pause else 0.0)

    def run(self, seconds: float) -> None:
        loop, end = self.loop, self.loop.time + seconds
        while loop.time < end:
            wake = min([one.ready for one in self.clients if one.watched] + [loop.next_due(), end])
            if wake > loop.time:
                self.idle += (wake - loop.time) * self.scheduler.anybody_waits()
                loop.time = wake
            self.spend(self.overhead)
            loop.round_time = loop.time
            due = loop.due_timers()  # one that a callback starts is called in the next round
            ready = [one for one in self.clients if one.watched and one.ready <= loop.time]
            self.order.shuffle(ready)
            for one in ready:
                self.turn(one)
            for timer, starts in due:
                if timer.callback is not None and timer.starts == starts:
                    callback, timer.callback = timer.callback, None
                    callback()

    def worked(self, seconds: float, *users: list[Client]) -> list[float]:
        """Let time pass; the seconds of turns that each of these had."""
        before = [sum(client.worked for client in clients) for clients in users]
        self.run(seconds)
        return [sum(client.worked for client in clients) - had for clients, had in zip(users, before, strict=True)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


# -- shares ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("overhead", "stolen"), [(1e-6, 0.0), (5e-6, 0.0), (5e-6, 1.0)])
@pytest.mark.parametrize("costs", [(1e-4, 1e-4), (2e-5, 1e-4), (2e-5, 1e-2), (1e-4, 1e-2)])
def test_two_busy_users_get_equal_time_whatever_a_turn_costs(
    monkeypatch: pytest.MonkeyPatch, overhead: float, stolen: float, costs: tuple[float, float]
) -> None:
    world = World(monkeypatch, overhead, stolen)
    one, other = (world.add(1 + n, cost) for n, cost in enumerate(costs))
    world.run(0.5)
    had = world.worked(1.0, one, other)
    # What the loop itself takes until somebody is seen to be ready counts as a wait for it.
    assert had[0] == pytest.approx(had[1], rel=0.05 + 2 * overhead * (1 + stolen) / costs[0])


@pytest.mark.parametrize("many", [33, 1_025])
@pytest.mark.parametrize("cost", [2e-5, 1e-3])
def test_a_user_with_many_waiting_clients_has_a_smaller_share(world: World, many: int, cost: float) -> None:
    (one, others) = world.add(1, 1e-4), world.add(2, cost, count=many)
    world.run(0.5)
    had = world.worked(1.0, one, others)
    weight = 1 + log2(many - 1)
    assert had[0] == pytest.approx(had[1] * weight, rel=0.15)


def test_a_fan_out_counts_as_the_clients_that_it_serves(world: World) -> None:
    one, fan_out, worked = world.add(1, 1e-4), 2, 0.0

    def go_on() -> None:
        nonlocal worked
        world.spend(1e-3)
        worked += 1e-3
        world.scheduler.serves(1_024)
        world.scheduler.postpone(fan_out, go_on)

    world.scheduler.postpone(fan_out, go_on)
    had = world.worked(3.0, one)
    assert had[0] == pytest.approx(worked * 11, rel=0.1)


@pytest.mark.parametrize("pause", [2e-5, 1e-4, 3e-4])
def test_a_user_that_answers_at_once_waits_for_one_turn_of_another(world: World, pause: float) -> None:
    """It is not in the queue when the next turn is given, however many clients the other has."""
    (good,) = world.add(1, 1e-4, lambda: pause)
    world.add(2, 2e-3, count=100)
    world.run(0.5)
    good.waits.clear()
    world.run(3.0)
    assert len(good.waits) > 1_000
    assert max(good.waits) < 2e-3 + 1e-4 + SLICE


def test_time_that_is_charged_to_a_user_counts_as_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, accepting = (world.add(uid, 1e-4) for uid in (1, 2, 3))
    turn = world.turn

    def accept(client: Client) -> None:
        worked = client.worked
        turn(client)
        if client in accepting and client.worked > worked:
            world.scheduler.charge(1, 1e-4)

    monkeypatch.setattr(world, "turn", accept)
    world.run(0.5)
    had = world.worked(3.0, one, other, accepting)
    assert had[1] == pytest.approx(had[2], rel=0.1)
    assert had[0] < had[1] / 5


def test_while_turns_wait_the_only_user_that_is_connected_does_not_go_before_accepting(
    world: World,
) -> None:
    world.scheduler.several = False
    clients, acceptor = world.add(1, 1e-4, count=100), world.add(ACCEPTOR, 1e-4)
    for client in clients:
        client.watched = False
        world.scheduler.postpone(client.uid, client.resume)  # as a connection that was accepted waits to be served
    had = world.worked(0.005, acceptor, clients)
    assert had[0] > had[1]


def test_accepting_takes_a_fifth_of_the_time_beside_one_busy_client(world: World) -> None:
    one, acceptor = world.add(1, 1e-4), world.add(ACCEPTOR, 1e-4)
    world.run(0.5)
    had = world.worked(3.0, one, acceptor)
    assert had[1] / sum(had) == pytest.approx(1 / 5, rel=0.1)


def test_a_user_that_was_busy_long_ago_owes_nothing(world: World) -> None:
    world.add(1, 0.5)
    world.run(0.4)  # one turn
    world.clients.clear()
    world.run(1.0)
    one, other = world.add(1, 1e-4), world.add(2, 1e-4)
    had = world.worked(0.1, one, other)
    assert had[0] == pytest.approx(had[1], rel=0.1)


@pytest.mark.parametrize("jump", [-3_600.0, -1.0, 1.0, 3_600.0])
def test_setting_the_clock_changes_no_share(world: World, jump: float) -> None:
    """The loop's time is that of the wall."""
    one, other = world.add(1, 1e-4), world.add(2, 1e-4)
    world.run(0.2)
    world.loop.jumped = jump
    had = world.worked(0.5, one, other)
    assert had[0] == pytest.approx(had[1], rel=0.1)


# -- waits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 3, 20])
@pytest.mark.parametrize("cost", [1e-4, 2e-3])
def test_a_newcomer_waits_for_no_more_than_a_turn_of_each(world: World, many: int, cost: float) -> None:
    """A turn of each other, one that is under way, and what is not noticed before a slice has passed."""
    for n in range(many):
        world.add(100 + n, cost)
    some = random.Random(1)
    (seldom,) = world.add(1, 5e-5, lambda: some.uniform(0.03, 0.06))
    world.run(3.0)
    assert len(seldom.waits) > 30
    assert seldom.worst <= (many + 1) * (cost + 1e-5) + SLICE + 5e-5


@pytest.mark.parametrize("seed", range(8))
def test_no_user_starves(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Random users of one client each: no user waits for many turns of another, or while the hub is idle."""
    some = random.Random(seed)
    world = World(monkeypatch, some.choice((1e-6, 2e-5)), some.choice((0.0, 1.0)))
    dearest, many = 0.0, some.choice((2, 3, 20))
    for n in range(many):
        cost = some.choice((2e-5, 1e-4, 1e-3, 1e-2))
        shortest, most = some.choice(((0.0, 0.0), (1e-4, 1e-3), (0.03, 0.06)))
        dearest = max(dearest, cost)
        world.add(100 + n, cost, lambda low=shortest, high=most: some.uniform(low, high))  # type: ignore[misc]
    world.run(2.0)
    waited = max(client.worst for client in world.clients)
    assert waited < max(0.1, 3 * many * dearest * (1 + world.stolen))  # who has dear turns has few
    assert not world.idle


@pytest.mark.parametrize(("count", "cost"), [(66, 1e-2), (96, 3e-3), (127, 1e-3), (130, 1e-5)])
def test_clients_of_one_user_go_in_turn(world: World, count: int, cost: float) -> None:
    clients = world.add(1, cost, count=count)
    world.run(12 * count * cost)
    turns = [len(client.waits) for client in clients]
    assert min(turns) > 0
    assert max(turns) <= 2 * min(turns) + 2


def test_work_that_goes_on_leaves_turns_to_clients_of_the_same_user(world: World) -> None:
    """A fan-out queue that is filled all the time, or what is left of a batch, has its turns in between."""
    world.add(1, 1e-4)
    (client,) = world.add(2, 1e-4)
    worked = 0

    def go_on() -> None:
        nonlocal worked
        world.spend(1e-4)
        worked += 1
        world.scheduler.postpone(client.uid, go_on)

    world.scheduler.postpone(client.uid, go_on)
    world.run(1.0)
    assert worked > 100
    assert len(client.waits) > 100


# -- what is kept, and errors -------------------------------------------------------------------------


def test_with_one_user_connected_every_turn_goes_at_once(world: World) -> None:
    world.scheduler.several = False
    clients = world.add(1, 1e-4, count=20)
    world.run(0.1)
    assert all(client.watched for client in clients)
    assert not world.scheduler._shares
    assert world.loop.next_due() == float("inf")


def test_users_that_are_not_busy_are_forgotten(world: World) -> None:
    for uid in range(100):
        world.add(uid, 1e-4)
    world.run(0.1)
    del world.clients[1:]
    world.run(0.2)
    assert len(world.scheduler._shares) == 1


def test_an_error_in_a_postponed_turn_stops_no_other_user(world: World) -> None:
    resumed: list[int] = []

    def fail() -> None:
        raise MemoryError

    world.scheduler.postpone(1, fail)
    world.scheduler.postpone(2, lambda: resumed.append(2))
    with pytest.raises(MemoryError):  # the event loop prints it, and goes on
        world.run(0.1)
    world.run(0.1)
    assert resumed == [2]


def test_a_scheduler_that_is_closed_in_a_turn_gives_no_other(world: World) -> None:
    resumed: list[Any] = []

    def close() -> None:
        world.scheduler.postpone(1, lambda: resumed.append(1))
        world.scheduler.close()

    world.scheduler.postpone(1, close)
    world.scheduler.postpone(2, lambda: resumed.append(2))
    world.run(0.1)
    assert not resumed
    assert not world.loop.timers
