"""The rules of a shared queue against a plain model, and the corners one by one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from sbuslib.clients.recipes.queue import MOST_PREFETCH
from sbuslib.services import queue_entries, queue_rules
from sbuslib.services.queue_entries import HELD_BYTES, JOB_EXTRA, KnownWorker, Submits
from sbuslib.services.queue_rules import GONE, MOST_WORKERS, Jobs, Turn

LIMIT = 20.0
ATTEMPTS = 3
MOST = 12
NAME, DEAD = b"q", b"q-dead"


def make(**options: Any) -> Jobs:
    return Jobs(MOST, 1_000_000, LIMIT, ATTEMPTS, **options)


def join(jobs: Jobs, name: str, room: int, now: float = 0.0, queue: bytes = NAME) -> KnownWorker:
    worker = jobs.announce(queue, name.encode(), None, b"token", room, (), now)
    assert worker is not None
    return worker


def numbers(turn: Turn) -> dict[str, list[int]]:
    return {worker.key.decode(): [job.number for job in some] for worker, some in turn.given.items()}


@dataclass
class Kept:
    """A job of the model."""

    number: int
    key: bytes
    priority: int
    due: float
    until: float
    attempts: int = 0
    is_dead: bool = False


class Model:
    """The same rules as plainly as can be: one list of jobs in the order in which they are given."""

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self.all: dict[int, Kept] = {}
        self.line: list[int] = []  # may be given, next first
        self.timed: list[int] = []  # not due
        self.dying: list[int] = []
        self.held: dict[str, dict[int, float]] = {}
        self.last: dict[int, str] = {}
        self.given: set[int] = set()  # ever
        self.room: dict[str, int] = {}
        self.seen: dict[str, float] = {}
        self.total: dict[str, int] = {}

    def add(self, job: Kept) -> None:
        self.all[job.number] = job
        if job.is_dead or not self.blocked(job):
            self.enter([job.number])

    def blocked(self, job: Kept) -> bool:
        others = (one for one in self.all.values() if not one.is_dead)
        return self.ordered and any(one.number < job.number and one.key == job.key for one in others)

    def enter(self, some: list[int], *, first: bool = False) -> None:
        ready = []
        for job in map(self.all.__getitem__, some):
            if job.is_dead:
                continue
            if job.attempts >= ATTEMPTS:
                self.dying.append(job.number)
            elif job.due:
                self.timed.append(job.number)
            else:
                ready.append(job.number)
        if not first:
            self.line += ready
            return
        for number in ready:  # behind those that came back, too, and had come before
            same = [one for one in self.line if self.all[one].priority == self.all[number].priority]
            ahead = [*takewhile(lambda one: one in self.given and one < number, same)]  # noqa: B023
            self.line.insert(self.line.index(ahead[-1]) + 1 if ahead else 0, number)

    def release(self, name: str, some: list[int]) -> None:
        back = [number for number in some if self.held[name].pop(number, None) is not None]
        self.enter(back, first=True)

    def part(self, job: Kept) -> None:
        """It is of this queue no more: the next of its key may be given."""
        for some in (self.line, self.timed, self.dying):
            if job.number in some:
                some.remove(job.number)
        for held in self.held.values():
            held.pop(job.number, None)
        after = [one for one in sorted(self.all) if not self.all[one].is_dead and self.all[one].key == job.key]
        was_first = all(number > job.number for number in after)
        if self.ordered and after and was_first:
            self.enter(after[:1])

    def forget(self, number: int) -> None:
        job = self.all.pop(number)
        if not job.is_dead:
            self.part(job)

    def is_held(self, number: int) -> bool:
        return any(number in held for held in self.held.values())

    def pass_time(self, at: float) -> None:
        while True:
            waiting = [job for job in self.all.values() if not self.is_held(job.number)]
            events = [(job.until, job.number, False) for job in waiting if job.until <= at]
            events += [(self.all[n].due, n, True) for n in self.timed if self.all[n].due <= at]
            if not events:
                return
            _, number, _ = min(events)
            if self.all[number].until <= at:
                self.forget(number)
            else:
                self.timed.remove(number)
                self.all[number].due = 0.0
                self.line.append(number)

    def turn(self, at: float) -> dict[str, list[int]]:
        self.pass_time(at)
        while self.dying:
            job = self.all[self.dying.pop(0)]
            job.is_dead, job.attempts, job.due = True, 0, 0.0
            self.part(job)
        given: dict[str, list[int]] = {}
        while self.line:
            free = [(len(self.held[n]) - room, self.total[n], n) for n, room in self.room.items()]
            free = [entry for entry in free if entry[0] < 0]
            if not free:
                break
            name = min(free)[2]
            number = max(self.line, key=lambda one: (self.all[one].priority, -self.line.index(one)))
            self.line.remove(number)
            self.held[name][number] = at
            self.all[number].attempts += 1
            self.total[name] += 1
            self.last[number] = name
            self.given.add(number)
            given.setdefault(name, []).append(number)
        return given

    def drop_worker(self, name: str) -> None:
        self.release(name, [*self.held[name]])
        for table in (self.held, self.room, self.seen, self.total):
            del table[name]
        self.last = {n: other for n, other in self.last.items() if other != name}


class Machine(RuleBasedStateMachine):
    """Everything that can happen, in any order, to the rules and to the model."""

    given = Bundle("given")
    names = st.sampled_from(["a", "b", "c"])

    def __init__(self) -> None:
        super().__init__()
        self.now = 1.0
        self.number = 0
        self.stored: dict[int, tuple[bytes, int]] = {}  # queue and attempts by number, as a store would have them

    @initialize(ordered=st.booleans())
    def begin(self, ordered: bool) -> None:
        self.jobs, self.model = make(ordered=ordered), Model(ordered=ordered)

    @rule(
        keys=st.lists(st.sampled_from([b"x", b"y"]), min_size=1, max_size=5),
        delay=st.sampled_from([0.0, 0.0, 2.0]),
        expires=st.sampled_from([None, None, 0.5, 3.0, 6.0]),
        priority=st.sampled_from([0, 0, 0, 5]),
    )
    def submit(self, keys: list[bytes], delay: float, expires: float | None, priority: int) -> None:
        pairs = [(key, b"") for key in keys]
        taken = self.jobs.accept(NAME, pairs, None, self.now, delay=delay, expires=expires, priority=priority)
        assert taken == (len(self.model.all) + len(keys) <= MOST)
        for key in keys if taken else ():
            self.number += 1
            due, until = self.now + delay if delay else 0.0, inf if expires is None else self.now + expires
            self.model.add(Kept(self.number, key, priority, due, until))

    @rule(name=names, room=st.integers(-1, 4), named=st.sets(given, max_size=6))
    def announce(self, name: str, room: int, named: set[int]) -> None:
        assert self.jobs.announce(NAME, name.encode(), None, b"", room, named, self.now) is not None
        if name not in self.model.room:
            self.model.held[name], self.model.total[name] = {}, 0
        self.model.room[name], self.model.seen[name] = max(0, room), self.now
        lost = [n for n, since in self.model.held[name].items() if since < self.now - GONE and n not in named]
        self.model.release(name, lost)

    @rule(name=names, words=st.tuples(*[st.lists(given, max_size=3, unique=True)] * 4))
    def finish(self, name: str, words: tuple[list[int], ...]) -> None:
        worker = self.jobs.workers.get(name.encode())
        if worker is None:
            assert name not in self.model.room
            return
        done, failed, returned, rejected = words
        mine = [n for n in done if n in self.model.all and self.model.last.get(n) == name]
        assert self.jobs.finish(worker, done, failed, self.now, returned, rejected) == len(mine)
        self.model.seen[name] = self.now
        for number in mine:
            self.model.forget(number)
        for number in rejected:
            if self.model.held[name].pop(number, None) is not None:
                self.model.dying.append(number)
        self.model.release(name, failed)
        back = [number for number in returned if number in self.model.held[name]]
        for number in back:
            self.model.all[number].attempts -= 1
        self.model.release(name, back)

    @rule(name=names)
    def leave(self, name: str) -> None:
        if name in self.model.room:
            self.jobs.leave(self.jobs.workers[name.encode()])
            self.model.drop_worker(name)

    @rule()
    def purge(self) -> None:
        waiting = [n for n, job in self.model.all.items() if not job.is_dead and not self.model.is_held(n)]
        assert self.jobs.purge(NAME) == len(waiting)
        for number in waiting:
            self.model.forget(number)

    @rule(seconds=st.sampled_from([1.0, 4.0, GONE + 1, LIMIT + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.jobs.expire(self.now)
        for name in list(self.model.room):
            if self.now - self.model.seen[name] > GONE:
                self.model.drop_worker(name)
            else:
                old = [n for n, since in self.model.held[name].items() if since < self.now - LIMIT]
                self.model.release(name, old)

    def take_turn(self) -> Turn:
        turn = self.jobs.turn(self.now, self.now)
        assert numbers(turn) == self.model.turn(self.now)
        changed = (*turn.new, *turn.changed)
        self.stored |= {job.number: (job.queue.name, job.attempts) for job in changed}
        for number in turn.finished:
            self.stored.pop(number, None)
        return turn

    @rule(target=given)
    def turn(self) -> object:
        return multiple(*(job.number for some in self.take_turn().given.values() for job in some))

    @rule()
    def restart(self) -> None:
        """The service is killed after a turn, and begins again with what was stored."""
        self.take_turn()
        kept = self.model.all
        assert self.stored == {n: (DEAD if job.is_dead else NAME, job.attempts) for n, job in kept.items()}
        self.jobs = make(ordered=self.model.ordered)
        self.jobs.load(
            (
                number,
                self.stored[number][0],
                job.key,
                b"",
                None,
                None,
                job.priority,
                job.attempts,
                0.0,
                job.due,
                job.until,
            )
            for number, job in sorted(kept.items())
        )
        self.model = Model(ordered=self.model.ordered)
        self.number = max(kept, default=0)
        for number in sorted(kept):
            self.model.add(kept[number])

    @invariant()
    def nothing_is_lost(self) -> None:
        assert {n: job.queue.name == DEAD for n, job in self.jobs.jobs.items()} == {
            n: job.is_dead for n, job in self.model.all.items()
        }
        assert self.jobs._bytes.used == sum(job.size for job in self.jobs.jobs.values())
        assert self.jobs._names.used == len(self.jobs.queues)
        assert all(queue.jobs or queue.workers for queue in self.jobs.queues.values())
        for worker in self.jobs.workers.values():
            assert len(worker.held) <= MOST_PREFETCH
            assert [*worker.held] == [*self.model.held[worker.key.decode()]]
            assert worker.bytes == sum(job.size for job in worker.held.values())


TestRules = Machine.TestCase
TestRules.settings = settings(max_examples=80, stateful_step_count=40)


def test_many_jobs_at_once_are_no_way_around_a_share() -> None:
    jobs = make()
    assert not jobs.accept(NAME, [(b"x", b"")] * (MOST // 2 + 1), 1, 0.0)
    assert jobs.accept(NAME, [(b"x", b"")] * (MOST // 2), 1, 0.0)
    by_bytes = Jobs(100, 10 * (JOB_EXTRA + 1), LIMIT, ATTEMPTS)
    assert not by_bytes.accept(NAME, [(b"x", b"")] * 6, 1, 0.0)
    assert by_bytes.accept(NAME, [(b"x", b"")] * 5, 1, 0.0)
    assert not by_bytes.accept(NAME, [(b"x", b"")], 1, 0.0)


def test_jobs_that_come_back_one_by_one_are_given_again_in_the_order_of_their_arrival() -> None:
    jobs = make()
    worker = join(jobs, "a", 3)
    assert jobs.accept(NAME, [(b"k", b"%d" % number) for number in range(4)], None, 0.0)
    assert numbers(jobs.turn(0.0, 0.0)) == {"a": [1, 2, 3]}
    for number in (2, 1, 3):
        jobs.finish(worker, (), [number], 0.0)
    assert numbers(jobs.turn(0.0, 0.0)) == {"a": [1, 2, 3]}


def test_bytes_are_bounded_too() -> None:
    jobs = Jobs(MOST, 2 * JOB_EXTRA + 10, LIMIT, ATTEMPTS)
    assert jobs.accept(NAME, [(b"x", b"1234")], None, 0.0)
    assert not jobs.accept(NAME, [(b"x", b"12345")], None, 0.0)
    assert jobs.accept(NAME, [(b"x", b"1234")], None, 0.0)


def test_one_queue_may_take_no_more_than_it_may_and_others_still_do() -> None:
    jobs = Jobs(MOST, 1_000_000, LIMIT, ATTEMPTS, each=2, age=5.0)
    assert jobs.accept(NAME, [(b"x", b"")] * 2, None, 0.0)
    assert not jobs.accept(NAME, [(b"x", b"")], None, 0.0)
    assert jobs.accept(b"other", [(b"x", b"")], None, 0.0, expires=9.0)
    assert jobs.turn(6.0, 6.0).finished == [1, 2]
    assert [*jobs.queues] == [b"other"]


def test_names_are_shared_out_among_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_rules, "MOST_QUEUES", 10)
    jobs = Jobs(100, 1_000_000, LIMIT, ATTEMPTS)
    taken = [jobs.accept(b"%d" % number, [(b"x", b"")], 1, 0.0) for number in range(8)]
    assert taken == [True] * 5 + [False] * 3
    assert jobs.accept(b"0", [(b"x", b"")], 1, 0.0), "it is there already"
    assert jobs.accept(b"ours", [(b"x", b"")], None, 0.0)


def test_the_newest_submits_are_remembered_and_those_of_strangers_push_out_none_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_entries, "MOST_SUBMITS", 2)
    submits = Submits()
    ours, theirs = Submits.digest(NAME, None, b"x"), [Submits.digest(NAME, user, b"x") for user in range(3)]
    for digest in (ours, *theirs):
        submits.add(digest, is_trusted=digest == ours)
    assert [digest in submits for digest in (ours, *theirs)] == [True, False, True, True]
    assert submits.changes() == {ours: True, theirs[0]: None, theirs[1]: False, theirs[2]: False}
    assert not submits.changes()


def test_what_has_ended_is_not_kept_where_it_waited() -> None:
    jobs = Jobs(10_000, 2**30, LIMIT, ATTEMPTS, ordered=True)
    jobs.accept(NAME, [(b"x", b"")], None, 0.0, delay=1e6)
    for second in range(5_000):
        jobs.accept(NAME, [(b"x", b"")], None, float(second), expires=1.0)
        jobs.turn(float(second), float(second))
    queue = jobs.queues[NAME]
    assert queue.lines is not None
    assert len(queue.jobs) <= 2
    assert len(queue.lines[b"x"]) + len(jobs._times) < 4_000


def test_a_dead_job_may_still_be_done_by_its_last_holder_and_dies_no_more() -> None:
    jobs = make()
    worker = join(jobs, "a", 8)
    jobs.accept(NAME, [(b"x", b"1"), (b"x", b"2")], None, 0.0)
    jobs.turn(0.0, 0.0)
    assert jobs.finish(worker, [], [], 0.0, rejected=[1, 2]) == 0
    assert [job.number for job in jobs.turn(0.0, 0.0).changed] == [1, 2]
    assert jobs.queues[DEAD].state(3.0).waiting == 2
    assert jobs.finish(worker, [1], [], 0.0) == 1
    undertaker = join(jobs, "b", 8, queue=DEAD)
    for attempt in range(1, 9):
        assert jobs.turn(0.0, 0.0).given[undertaker][0].attempts == attempt
        jobs.finish(undertaker, [], [2], 0.0)
    jobs.turn(0.0, 0.0)
    jobs.finish(undertaker, [], [], 0.0, rejected=[2])
    assert not jobs.jobs


@pytest.mark.parametrize(("room", "most"), [(-5, 0), (2**70, MOST_PREFETCH)])
def test_an_absurd_room_is_bounded(room: int, most: int) -> None:
    assert join(make(), "a", room).prefetch == most


def test_a_worker_with_large_jobs_gets_few() -> None:
    jobs = Jobs(100, 2**30, LIMIT, ATTEMPTS)
    worker = join(jobs, "a", 100)
    assert jobs.accept(NAME, [(b"x", bytes(HELD_BYTES // 2))] * 9, None, 0.0)
    assert len(jobs.turn(0.0, 0.0).given[worker]) == 2
    jobs.finish(worker, [1], [], 0.0)
    assert len(jobs.turn(0.0, 0.0).given[worker]) == 1


def test_workers_are_bounded_and_nobody_speaks_for_another() -> None:
    jobs = make()
    for number in range(MOST_WORKERS):
        assert jobs.announce(NAME, b"%d" % number, b"me", b"", 0, (), 0.0)
    assert jobs.announce(NAME, b"more", b"me", b"", 0, (), 0.0) is None
    assert jobs.announce(NAME, b"1", b"me", b"", 0, (), 0.0)
    assert jobs.announce(NAME, b"1", b"somebody", b"", 0, (), 0.0) is None
    assert jobs.announce(DEAD, b"1", b"me", b"", 0, (), 0.0) is None


def test_jobs_expire_in_order_after_the_times_of_jobs_that_are_gone_were_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_rules, "_FEW", 4)
    jobs = make()
    lasts = [float(5 + 37 * number % 101) for number in range(200)]

    # 1. Nearly all are gone by and by; their times are left out each time when there are too many.
    kept: list[float] = []
    for number, seconds in enumerate(lasts):
        assert jobs.accept(NAME, [(b"x", b"")], None, 0.0, expires=seconds)
        if number % 25:
            assert jobs.purge(NAME, max(jobs.jobs)) == 1
        else:
            kept.append(seconds)

    assert len(jobs._times) <= 2 * len(kept) + 4 + 2

    # 2. Each of the others expires at its time, the first one first.
    for gone, at in enumerate(sorted(kept), 1):
        assert jobs.next_time() <= at
        jobs.turn(at, at)
        assert jobs.expired == gone
