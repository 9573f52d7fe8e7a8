"""Watches of many patterns: who pays for changes, how much one step does, and that each state is right at the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support import Peer, eventually
from worlds import OTHER, STRANGER, World

from sbuslib.core import watching_user
from sbuslib.core.charged_work import ChargedWork
from sbuslib.keys.covering import may_meet, overlap
from sbuslib.matcher import Pattern

STATE = b"CMSG notice/interest\0"


class Watching:
    """A client that watches, and the states that it was sent last."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.states: dict[bytes, bytes] = {}
        self.events = 0

    def watch(self, *patterns: bytes) -> None:
        self.peer.send(*(b"CMSG interest/watch\0" + pattern for pattern in patterns))

    def read(self) -> dict[bytes, bytes]:
        for packet in self.peer.pending():
            state, _, pattern = packet.removeprefix(STATE).partition(b"\0")
            if packet.startswith(STATE):
                self.states[pattern] = state
                self.events += 1
        return self.states


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Each step of the jobs of users that compared or looked at something: the user, and how often."""
    steps: list[tuple[int, int, int]] = []
    counts = Counter[str]()

    def counted(name: str, function: Any) -> Any:
        def counting(*arguments: Any) -> Any:
            counts[name] += 1
            return function(*arguments)

        return counting

    def add(work: ChargedWork, user: int, job: Iterator[None], on_end: Any) -> None:
        def steps_of() -> Iterator[None]:
            try:
                while True:
                    counts.clear()
                    next(job)
                    steps.append((user, counts["compared"], counts["looked"]))
                    yield
            except StopIteration:
                steps.append((user, counts["compared"], counts["looked"]))

        works(work, user, steps_of(), on_end)

    works = ChargedWork.add
    monkeypatch.setattr(ChargedWork, "add", add)
    monkeypatch.setattr(watching_user, "may_meet", counted("compared", may_meet))
    monkeypatch.setattr(watching_user.WatchingUser, "_look_at", counted("looked", watching_user.WatchingUser._look_at))
    return steps


def test_a_change_is_compared_in_turns_of_who_watches_and_only_what_it_concerns_is_looked_at(
    world: World, compared: list[tuple[int, int, int]]
) -> None:
    world.hub("top", mode=0o777)
    watching = Watching(world.peer_of("top", STRANGER))
    watching.watch(*(b"w/%d/*" % number for number in range(600)))
    eventually(lambda: len(watching.read()) == 600)
    compared.clear()
    changing = world.peer_of("top", OTHER)
    changing.subscribe(b"w/7/x")
    eventually(lambda: watching.read()[b"w/7/*"] == b"yes")
    assert Counter(watching.states.values()) == {b"yes": 1, b"no": 599}
    assert sum(count for user, count, _ in compared if user == STRANGER) == 600
    assert sum(looked for *_, looked in compared) == 1
    assert not any(count or looked for user, count, looked in compared if user != STRANGER)


def test_no_step_compares_more_than_its_share_however_many_watches_and_patterns_there_are(
    world: World, compared: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching_user, "COMPARED_A_STEP", 16)
    monkeypatch.setattr(watching_user, "LOOKED_AT_A_STEP", 8)
    world.hub("top", mode=0o777)
    holding, watching = world.peer_of("top", OTHER), Watching(world.peer_of("top", STRANGER))
    holding.subscribe(*(b"h/%d/x" % number for number in range(100)))
    holding.barrier()
    watching.watch(*(b"w/%d/*" % number for number in range(100)), b"h/9/*")
    eventually(lambda: Counter(watching.read().values()) == {b"no": 100, b"yes": 1})
    holding.send(*(b"%b w/%d/x" % (verb, number) for verb in (b"SUB", b"UNSUB") for number in range(100)))
    holding.subscribe(b"w/")
    eventually(lambda: Counter(watching.read().values()) == {b"yes": 101})
    assert max(count for _, count, _ in compared) <= 16
    assert max(looked for *_, looked in compared) <= 8


def test_of_two_users_that_watch_one_that_is_compared_with_much_keeps_no_other_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching_user, "COMPARED_A_STEP", 1)
    world.hub("top", mode=0o777)
    holding = world.peer_of("top", OTHER)
    holding.subscribe(*(b"h/%d/x" % number for number in range(500)))
    holding.barrier()
    much, little = Watching(world.peer_of("top", STRANGER)), Watching(world.peer_of("top", STRANGER + 1))
    much.watch(*(b"w/%d/*" % number for number in range(100)))
    eventually(lambda: len(much.read()) == 100)  # unknown yet
    little.watch(b"h/*/x")
    eventually(lambda: little.read() == {b"h/*/x": b"yes"})
    assert Counter(much.read().values())[b"unknown"] > 50


@pytest.mark.parametrize("bound", ["CHANGES", "CANDIDATES"])
def test_beyond_the_bounds_all_is_looked_at_anew(world: World, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(watching_user, bound, 2)
    world.hub("top", mode=0o777)
    watching = Watching(world.peer_of("top", STRANGER))
    watching.watch(b"w/*", b"*/a", b"x", b"v/*")
    eventually(lambda: watching.read() == dict.fromkeys((b"w/*", b"*/a", b"x", b"v/*"), b"no"))
    changing = world.peer_of("top", OTHER)
    changing.subscribe(*(b"w/%d" % number for number in range(50)), b"x", b"x/a")
    eventually(lambda: watching.read() == {b"w/*": b"yes", b"*/a": b"yes", b"x": b"yes", b"v/*": b"no"})
    changing.send(*(b"UNSUB w/%d" % number for number in range(50)), b"UNSUB x/a")
    eventually(lambda: watching.read() == {b"w/*": b"no", b"*/a": b"no", b"x": b"yes", b"v/*": b"no"})


def test_a_client_that_left_takes_its_watches_with_it_in_steps(world: World) -> None:
    hub = world.hub("top", mode=0o777)
    watching = Watching(world.peer_of("top", STRANGER))
    watching.watch(*(b"w/%d/*" % number for number in range(500)), *(b"w/%d" % number for number in range(500)))
    eventually(lambda: len(watching.read()) == 1_000)
    account = hub.context.quotas.account(STRANGER)
    assert account.patterns == 1_000
    watching.peer.close()
    eventually(lambda: account.is_clear())
    world.peer_of("top", OTHER).subscribe(b"w/1/x")
    again = Watching(world.peer_of("top", STRANGER))
    again.watch(b"w/1/*")
    eventually(lambda: again.read() == {b"w/1/*": b"yes"})


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_and_goes_each_state_is_right_when_all_is_quiet(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also in steps of two, with few changes remembered, while watches come and go."""
    rng = random.Random(seed)
    for bound, most in (("COMPARED_A_STEP", 2), ("LOOKED_AT_A_STEP", 2), ("CHANGES", 8), ("CANDIDATES", 2)):
        monkeypatch.setattr(watching_user, bound, most)
    hub = world.hub("top", mode=0o777)
    parts = (b"a", b"b", b"*", b"a*", b"c")
    patterns = [b"/".join(rng.choices(parts, k=rng.randint(1, 3))) + b"/" * rng.randint(0, 1) for _ in range(40)]
    holders = [world.peer_of("top", OTHER + number) for number in range(2)]
    held = [Counter[bytes]() for _ in holders]
    watching = [Watching(world.peer_of("top", STRANGER + number)) for number in range(2)]
    watched: list[set[bytes]] = [set() for _ in watching]
    for _ in range(20):
        for _ in range(10):
            pattern, which = rng.choice(patterns), rng.randrange(2)
            if rng.random() < 0.5 and held[which][pattern]:
                holders[which].send(b"UNSUB " + pattern)
                held[which][pattern] -= 1
            else:
                holders[which].send(b"SUB " + pattern)
                held[which][pattern] += 1
        pattern, which = rng.choice(patterns), rng.randrange(2)
        if pattern in watched[which]:
            watching[which].peer.send(b"CMSG interest/unwatch\0" + pattern)
            watched[which].discard(pattern)
        else:
            watching[which].watch(pattern)
            watched[which].add(pattern)
        rng.choice(holders).barrier()

    def is_right() -> bool:
        in_force = {pattern for one in held for pattern, times in one.items() if times}
        for one, names in zip(watching, watched, strict=True):
            states = one.read()
            for name in names:
                is_literal = Pattern(name, b"/").is_literal
                meets = (Pattern(p, b"/").matches(name) if is_literal else overlap(p, name, b"/") for p in in_force)
                if states.get(name) != (b"yes" if any(meets) else b"no"):
                    return False
        return True

    for peer in holders:
        peer.barrier()
    eventually(is_right)
    assert not hub.context.running.work.closed
