"""The rules of a shared queue: which job waits, which worker is given it, when it is given again, when it is dead.

Without input, output or a clock; times are seconds that the caller gives. :meth:`Jobs.turn` gives jobs to workers and
tells what has changed, which the service stores *before* it tells anybody.

A job waits, or is held by one worker, or is dead. What a worker holds comes back to the front of the queue when the
worker fails, leaves, falls silent for :data:`GONE` seconds, does not name the job any more, or holds it for longer than
the time limit. Until another worker has the job, its last holder may still acknowledge it. A job that was given as
often as it may be is dead: the service publishes it under the dead-letter key, and then :meth:`Jobs.bury` forgets it.

Where order is kept, each key has a line, and only the first job of a line may be given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import takewhile
from typing import Final, NamedTuple

from ..recipes.queue import MOST_ROOM
from ..shares import Shares

__all__ = ["GONE", "HELD_BYTES", "JOB_EXTRA", "MOST_WORKERS", "Jobs", "KnownWorker", "Turn"]

GONE: Final = 5.0
"""A worker announces itself once a second. After so many seconds of silence it is gone, and a job that it does not
name so long after it was given was lost on the way. Less would take a busy machine for a dead one."""

MOST_WORKERS: Final = 1_024
"""More than have jobs on one machine. Each costs a step in every turn."""

HELD_BYTES: Final = 1024 * 1024
"""Bytes of jobs after which a worker gets no more: a sixteenth of what a hub queues for a client that is slow."""

JOB_EXTRA: Final = 400
"""What a job counts beside its key and payload: what Python takes for it, about."""


class Entry:
    """One job of the queue, as the service keeps it.

    ``attempts`` is how often it was given; ``holder`` was given it last, and may acknowledge it.
    """

    __slots__ = ("attempts", "given", "holder", "key", "number", "owner", "payload", "size")

    def __init__(self, number: int, key: bytes, payload: bytes, owner: int | None, attempts: int = 0) -> None:
        self.number = number
        self.key = key
        self.payload = payload
        self.owner = owner
        self.attempts = attempts
        #: What it costs in memory, in bytes.
        self.size = len(key) + len(payload) + JOB_EXTRA
        #: Who has it now.
        self.holder: KnownWorker | None = None
        self.given = 0.0  # when, on the clock of the service


class KnownWorker:
    """One worker, and what it holds, oldest first. ``key`` is where it gets jobs."""

    __slots__ = ("bytes", "held", "key", "room", "seen", "sender", "token", "total")

    def __init__(self, key: bytes, sender: bytes | None, token: bytes) -> None:
        self.key = key
        self.sender = sender
        self.token = token
        #: How many jobs it takes at once.
        self.room = 0
        #: When it was last heard of, on the clock of the service.
        self.seen = 0.0
        #: The jobs that it has and has not acknowledged.
        self.held: dict[int, Entry] = {}
        self.bytes = 0  # of those jobs
        self.total = 0  # jobs that it was ever given

    def free(self) -> int:
        """How many more jobs it may be given."""
        return self.room - len(self.held) if self.bytes < HELD_BYTES else 0

    def held_since(self, time: float) -> Iterator[Entry]:
        """The jobs that it was given before ``time``."""
        return takewhile(lambda job: job.given < time, self.held.values())

    def take(self, job: Entry, now: float) -> None:
        """Be given a job."""
        job.attempts += 1
        job.holder = self
        job.given = now
        self.held[job.number] = job
        self.bytes += job.size
        self.total += 1

    def drop(self, job: Entry) -> None:
        """Hold a job no more, if it does."""
        if self.held.pop(job.number, None) is not None:
            self.bytes -= job.size


class Turn(NamedTuple):
    """What has changed since the last turn. New jobs may be given at once, and are then not ``again``."""

    new: list[Entry]
    again: list[Entry]
    """Jobs stored before that were given now."""
    finished: list[int]
    dead: list[Entry]
    given: dict[KnownWorker, list[Entry]]


class Jobs:
    """All jobs of one queue, and its workers.

    :param most: jobs that it takes. :param most_bytes: bytes of them, each counted with :data:`JOB_EXTRA`.
    :param limit: seconds for which a worker may hold a job. :param attempts: how often a job is given.
    """

    def __init__(self, most: int, most_bytes: int, limit: float, attempts: int, *, ordered: bool = False) -> None:
        #: All that are neither done nor dead, by number.
        self.jobs: dict[int, Entry] = {}
        #: By the keys that they are reached under.
        self.workers: dict[bytes, KnownWorker] = {}
        self._count, self._bytes = Shares(most, frozenset({None})), Shares(most_bytes, frozenset({None}))
        self._limit, self._attempts = limit, attempts
        self._ready: deque[Entry] = deque()  # some may be finished
        self._lines: dict[bytes, deque[Entry]] | None = {} if ordered else None
        self._number = self._stored = 0  # of the newest job, and of the newest before this turn
        self._finished: list[int] = []
        self._dead: list[Entry] = []  # given too often, since the last turn

    # -- what goes in -------------------------------------------------------------------------------

    def load(self, rows: Iterable[tuple[int, bytes, bytes, int | None, int]]) -> None:
        """Take jobs up that were stored: number, key, payload, owner, attempts."""
        self._add([Entry(*row) for row in rows])
        self._stored = self._number

    def accept(self, pairs: Iterable[tuple[bytes, bytes]], owner: int | None) -> bool:
        """Take all these jobs, or none: ``False`` when there is no room.

        An ``owner`` may hold its share, see :mod:`sbuslib.shares`; ``None`` may fill the queue.
        """
        new = [Entry(number, key, payload, owner) for number, (key, payload) in enumerate(pairs, self._number + 1)]
        size = sum(job.size for job in new)
        if not (self._count.could_take(owner, len(new)) and self._bytes.could_take(owner, size)):
            return False
        self._add(new)
        return True

    def _add(self, new: list[Entry]) -> None:
        ready = []
        for job in new:
            self._number = job.number
            self.jobs[job.number] = job
            self._count.force(job.owner, 1)
            self._bytes.force(job.owner, job.size)
            if self._lines is not None:
                line = self._lines.setdefault(job.key, deque())
                line.append(job)
                if len(line) > 1:
                    continue
            ready.append(job)
        self._line_up(ready)

    def _line_up(self, jobs: list[Entry], *, first: bool = False) -> None:
        """These jobs may be given, in this order; those that were given too often are dead."""
        alive = [job for job in jobs if job.attempts < self._attempts]
        self._dead += [job for job in jobs if job.attempts >= self._attempts]
        if first:
            self._ready.extendleft(reversed(alive))
        else:
            self._ready.extend(alive)

    # -- what workers say ---------------------------------------------------------------------------

    def announce(
        self, key: bytes, sender: bytes | None, token: bytes, room: int, named: Iterable[int], now: float
    ) -> KnownWorker | None:
        """A worker says that it is there, how much room it has, and which jobs it holds. ``token`` is for a new one.

        ``None``: there are too many workers, or ``key`` is that of another.
        """
        worker = self.workers.get(key)
        if worker is None:
            if len(self.workers) >= MOST_WORKERS:
                return None
            worker = self.workers[key] = KnownWorker(key, sender, token)
        elif worker.sender != sender:
            return None
        worker.room = max(0, min(room, MOST_ROOM))
        worker.seen = now
        known = set(named)
        self._release(worker, [job for job in worker.held_since(now - GONE) if job.number not in known])
        return worker

    def finish(self, worker: KnownWorker, numbers: Iterable[int], failed: Iterable[int], now: float) -> None:
        """A worker has done some jobs, and gives others back."""
        worker.seen = now
        for job in map(self.jobs.get, numbers):
            if job is not None and job.holder is worker:
                self._forget(job)
        back = map(worker.held.get, failed)
        self._release(worker, list(dict.fromkeys(job for job in back if job is not None)))

    def leave(self, worker: KnownWorker) -> None:
        """A worker is gone."""
        del self.workers[worker.key]
        self._release(worker, list(worker.held.values()))

    def expire(self, now: float) -> None:
        """Let workers go that are silent, and give jobs again that were held for too long."""
        for worker in list(self.workers.values()):
            if now - worker.seen > GONE:
                self.leave(worker)
            else:
                self._release(worker, [*worker.held_since(now - self._limit)])

    def _release(self, worker: KnownWorker, jobs: list[Entry]) -> None:
        for job in jobs:
            worker.drop(job)
        self._line_up(jobs, first=True)

    def _forget(self, job: Entry) -> None:
        del self.jobs[job.number]
        self._finished.append(job.number)
        self._count.give(job.owner, 1)
        self._bytes.give(job.owner, job.size)
        if job.holder is not None:
            job.holder.drop(job)
        if self._lines is not None:
            line = self._lines[job.key]
            line.popleft()
            if line:
                self._line_up([line[0]])
            else:
                del self._lines[job.key]

    def bury(self, dead: Iterable[Entry]) -> None:
        """Forget jobs that :attr:`Turn.dead` told, once they were published."""
        for job in dead:
            if job.number in self.jobs:
                self._forget(job)

    # -- what comes out -----------------------------------------------------------------------------

    def turn(self, now: float) -> Turn:
        """Give each job that may be given to the worker with most room; among equals, to the one that had least."""
        # 1. Who has room: a heap, the one with most of it first.
        given: dict[KnownWorker, list[Entry]] = {}
        again: list[Entry] = []
        ready, jobs, workers, stored = self._ready, self.jobs, self.workers, self._stored
        able = (worker for worker in workers.values() if ready and worker.free() > 0)
        free = [(-worker.free(), worker.total, worker.key) for worker in able]
        heapify(free)

        # 2. The oldest job to the first of them, until there is no job or no room.
        while free and ready:
            job = ready.popleft()
            if job.number not in jobs:
                continue
            worker = workers[free[0][2]]
            worker.take(job, now)
            given.setdefault(worker, []).append(job)
            if job.number <= stored:
                again.append(job)
            left = worker.free()
            if left > 0:
                heapreplace(free, (-left, worker.total, worker.key))
            else:
                heappop(free)

        # 3. What the store has to know of this turn.
        new = [jobs[number] for number in range(stored + 1, self._number + 1)]
        finished, self._finished = self._finished, []
        dead, self._dead = [job for job in self._dead if job.number in jobs], []
        self._stored = self._number
        return Turn(new, again, finished, dead, given)
