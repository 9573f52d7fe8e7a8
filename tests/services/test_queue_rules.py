"""The rules of a shared queue against a plain model, and the corners one by one."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from sbuslib.recipes.queue import MOST_ROOM
from sbuslib.services.queue_rules import GONE, HELD_BYTES, JOB_EXTRA, MOST_WORKERS, Jobs, KnownWorker, Turn

LIMIT = 20.0
ATTEMPTS = 3
MOST = 12


def make(**options: bool) -> Jobs:
    return Jobs(MOST, 1_000_000, LIMIT, ATTEMPTS, **options)


def join(jobs: Jobs, name: str, room: int, now: float = 0.0) -> KnownWorker:
    worker = jobs.announce(name.encode(), None, b"token", room, (), now)
    assert worker is not None
    return worker


def numbers(turn: Turn) -> dict[str, list[int]]:
    return {worker.key.decode(): [job.number for job in some] for worker, some in turn.given.items()}


class Model:
    """The same rules as plainly as can be: one list of jobs in the order in which they are given."""

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self.line: list[tuple[int, bytes]] = []  # waits, next first
        self.held: dict[str, list[tuple[int, bytes, float]]] = {}
        self.keys: dict[int, bytes] = {}  # of all that is not finished
        self.last: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.room: dict[str, int] = {}
        self.seen: dict[str, float] = {}
        self.total: dict[str, int] = {}
        self.dead: list[int] = []

    def add(self, number: int, key: bytes) -> None:
        self.keys[number], self.attempts[number] = key, 0
        if not self.blocked(number):
            self.line.append((number, key))

    def blocked(self, number: int) -> bool:
        return self.ordered and any(n < number and key == self.keys[number] for n, key in self.keys.items())

    def release(self, name: str, some: list[int]) -> None:
        back = [(n, key) for n, key, _ in self.held[name] if n in some]
        self.held[name] = [entry for entry in self.held[name] if entry[0] not in some]
        self.line[:0] = [(n, key) for n, key in back if self.attempts[n] < ATTEMPTS]
        self.dead += [n for n, _ in back if self.attempts[n] >= ATTEMPTS]

    def forget(self, number: int) -> None:
        key = self.keys.pop(number)
        self.dead = [n for n in self.dead if n != number]
        self.line = [entry for entry in self.line if entry[0] != number]
        for name, held in self.held.items():
            self.held[name] = [entry for entry in held if entry[0] != number]
        after = sorted(n for n, other in self.keys.items() if other == key)
        if self.ordered and after:
            self.line.append((after[0], key))

    def give(self, now: float) -> dict[str, list[int]]:
        given: dict[str, list[int]] = {}
        while self.line:
            free = [(len(self.held[n]) - room, self.total[n], n) for n, room in self.room.items()]
            free = [entry for entry in free if entry[0] < 0]
            if not free:
                break
            name = min(free)[2]
            number, key = self.line.pop(0)
            self.held[name].append((number, key, now))
            self.attempts[number] += 1
            self.total[name] += 1
            self.last[number] = name
            given.setdefault(name, []).append(number)
        return given

    def drop_worker(self, name: str) -> None:
        self.release(name, [n for n, _, _ in self.held[name]])
        for table in (self.held, self.room, self.seen, self.total):
            del table[name]
        self.last = {n: other for n, other in self.last.items() if other != name}


class Machine(RuleBasedStateMachine):
    """Everything that can happen, in any order, to the rules and to the model."""

    given = Bundle("given")
    names = st.sampled_from(["a", "b", "c"])

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.stored: dict[int, int] = {}  # number and attempts, as a store would have them

    @initialize(ordered=st.booleans())
    def begin(self, ordered: bool) -> None:
        self.jobs, self.model = make(ordered=ordered), Model(ordered=ordered)

    @rule(keys=st.lists(st.sampled_from([b"x", b"y"]), min_size=1, max_size=5))
    def submit(self, keys: list[bytes]) -> None:
        taken = self.jobs.accept([(key, b"") for key in keys], None)
        assert taken == (len(self.model.keys) + len(keys) <= MOST)
        for key in keys if taken else ():
            self.number += 1
            self.model.add(self.number, key)

    @rule(name=names, room=st.integers(-1, 4), named=st.sets(given, max_size=6))
    def announce(self, name: str, room: int, named: set[int]) -> None:
        assert self.jobs.announce(name.encode(), None, b"", room, named, self.now) is not None
        if name not in self.model.room:
            self.model.held[name], self.model.total[name] = [], 0
        self.model.room[name], self.model.seen[name] = max(0, room), self.now
        lost = [n for n, _, since in self.model.held[name] if since < self.now - GONE and n not in named]
        self.model.release(name, lost)

    @rule(name=names, done=st.lists(given, max_size=4), failed=st.lists(given, max_size=2))
    def finish(self, name: str, done: list[int], failed: list[int]) -> None:
        worker = self.jobs.workers.get(name.encode())
        if worker is None:
            assert name not in self.model.room
            return
        self.jobs.finish(worker, done, failed, self.now)
        self.model.seen[name] = self.now
        for number in done:
            if number in self.model.keys and self.model.last.get(number) == name:
                self.model.forget(number)
        # what is given back keeps the order in which the worker names it
        order = [n for n in dict.fromkeys(failed) if any(n == held for held, _, _ in self.model.held[name])]
        for number in reversed(order):
            self.model.release(name, [number])

    @rule(name=names)
    def leave(self, name: str) -> None:
        if name in self.model.room:
            self.jobs.leave(self.jobs.workers[name.encode()])
            self.model.drop_worker(name)

    @rule(seconds=st.sampled_from([1.0, 4.0, GONE + 1, LIMIT + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.jobs.expire(self.now)
        for name in list(self.model.room):
            if self.now - self.model.seen[name] > GONE:
                self.model.drop_worker(name)
            else:
                old = [n for n, _, since in self.model.held[name] if since < self.now - LIMIT]
                self.model.release(name, old)

    @rule(target=given)
    def turn(self) -> object:
        turn = self.jobs.turn(self.now)
        assert numbers(turn) == self.model.give(self.now)
        self.stored |= {job.number: job.attempts for job in (*turn.new, *turn.again)}
        for number in turn.finished:
            del self.stored[number]
        assert sorted(job.number for job in turn.dead) == sorted(n for n in self.model.dead)
        self.jobs.bury(turn.dead)
        for number in list(self.model.dead):
            self.model.forget(number)
        return multiple(*(job.number for some in turn.given.values() for job in some))

    @rule()
    def restart(self) -> None:
        """The service is killed after a turn, and begins again with what was stored."""
        turn = self.jobs.turn(self.now)
        self.model.give(self.now)
        self.stored |= {job.number: job.attempts for job in (*turn.new, *turn.again)}
        for number in turn.finished:
            del self.stored[number]
        keys = {number: job.key for number, job in self.jobs.jobs.items()}
        assert self.stored == {number: job.attempts for number, job in self.jobs.jobs.items()}
        self.jobs = make(ordered=self.model.ordered)
        self.jobs.load((number, keys[number], b"", None, self.stored[number]) for number in sorted(keys))
        attempts = self.model.attempts
        self.model = Model(ordered=self.model.ordered)
        self.number = max(keys, default=0)
        for number in sorted(keys):
            self.model.add(number, keys[number])
            self.model.attempts[number] = attempts[number]
            if attempts[number] >= ATTEMPTS and (number, keys[number]) in self.model.line:
                self.model.line.remove((number, keys[number]))
                self.model.dead.append(number)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert set(self.jobs.jobs) == set(self.model.keys)
        assert self.jobs._bytes.used == sum(job.size for job in self.jobs.jobs.values())
        for worker in self.jobs.workers.values():
            assert len(worker.held) <= MOST_ROOM
            assert [*worker.held] == [number for number, _, _ in self.model.held[worker.key.decode()]]
            assert worker.bytes == sum(job.size for job in worker.held.values())


TestRules = Machine.TestCase
TestRules.settings = settings(max_examples=80, stateful_step_count=40)


def test_many_jobs_at_once_are_no_way_around_a_share() -> None:
    jobs = make()
    assert not jobs.accept([(b"x", b"")] * (MOST // 2 + 1), 1)
    assert jobs.accept([(b"x", b"")] * (MOST // 2), 1)
    by_bytes = Jobs(100, 10 * (JOB_EXTRA + 1), LIMIT, ATTEMPTS)
    assert not by_bytes.accept([(b"x", b"")] * 6, 1)
    assert by_bytes.accept([(b"x", b"")] * 5, 1)
    assert not by_bytes.accept([(b"x", b"")], 1)


def test_bytes_are_bounded_too() -> None:
    jobs = Jobs(MOST, 2 * JOB_EXTRA + 10, LIMIT, ATTEMPTS)
    assert jobs.accept([(b"x", b"1234")], None)
    assert not jobs.accept([(b"x", b"12345")], None)
    assert jobs.accept([(b"x", b"1234")], None)


@pytest.mark.parametrize(("room", "most"), [(-5, 0), (2**70, MOST_ROOM)])
def test_an_absurd_room_is_bounded(room: int, most: int) -> None:
    assert join(make(), "a", room).room == most


def test_a_worker_with_large_jobs_gets_few() -> None:
    jobs = Jobs(100, 2**30, LIMIT, ATTEMPTS)
    worker = join(jobs, "a", 100)
    assert jobs.accept([(b"x", bytes(HELD_BYTES // 2))] * 9, None)
    assert len(jobs.turn(0.0).given[worker]) == 2
    jobs.finish(worker, [1], [], 0.0)
    assert len(jobs.turn(0.0).given[worker]) == 1


def test_workers_are_bounded_and_nobody_speaks_for_another() -> None:
    jobs = make()
    for number in range(MOST_WORKERS):
        assert jobs.announce(b"%d" % number, b"me", b"", 0, (), 0.0)
    assert jobs.announce(b"more", b"me", b"", 0, (), 0.0) is None
    assert jobs.announce(b"1", b"me", b"", 0, (), 0.0)
    assert jobs.announce(b"1", b"somebody", b"", 0, (), 0.0) is None
