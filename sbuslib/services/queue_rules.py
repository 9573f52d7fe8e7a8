"""Rules of shared queues: waiting jobs, delivery to workers, redelivery, and dead letters.

Without input, output or a clock; times are seconds that the caller gives, by two clocks. ``now`` is for the heartbeats
of workers. ``at`` is for delays and expiry of jobs, and goes on while the service is stopped. :meth:`Jobs.turn` gives
jobs to workers and returns the changes, which the service stores *before* it sends anything.

A job waits, or is held by one worker. A held job comes back to the front of the queue when the worker fails, leaves,
falls silent for :data:`GONE` seconds, does not name the job any more, or holds it for longer than the time limit. Until
another worker has the job, its last holder may still acknowledge it. A job that is rejected, or was given as often as
it may be, is dead: it goes into the dead queue of its queue, :func:`dead_name`. That is a queue as others, in which no
job dies.

Where order is kept, each key has a line, and only the first job of a line may be given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from ..clients.recipes.queue import LONGEST_NAME, MOST_PREFETCH
from ..shares import Shares
from .queue_entries import JOB_EXTRA, Entry, KnownQueue, KnownWorker, Submits

GONE: Final = 5.0
"""A worker announces itself once a second. After so many seconds of silence it is gone, and a job that it does not
name so long after it was given was lost on the way. Less would take a busy machine for a dead one."""

MOST_WORKERS: Final = 1_024
"""More than have jobs on one machine. Each costs a step in every turn."""

MOST_QUEUES: Final = 16_384
"""Queues that have jobs or workers, shared out among the users who began them. Each takes some 2 KB."""

_FEW: Final = 1_024
"""Times that are remembered, beside two for each job, before those of finished jobs are looked for."""

Row = tuple[int, bytes, bytes, bytes, int | None, bytes | None, int, int, float, float, float]
"""Number, name of the queue, key, payload, owner, sender, priority, attempts; when it came, is due, and expires."""


def dead_name(name: bytes, separator: bytes) -> bytes:
    """The queue for the dead jobs of another one, ``NAME-dead``; of a dead queue, itself."""
    ending = b"_dead" if separator == b"-" else b"-dead"
    return name if name.endswith(ending) else name[: LONGEST_NAME - len(ending)] + ending


def _put_back(line: deque[Entry], job: Entry) -> None:
    """Put a job that came back before all that wait, but behind older ones that came back."""
    place = 0
    while place < len(line) and line[place].holder is not None and line[place].number < job.number:
        place += 1
    line.insert(place, job)


class Turn(NamedTuple):
    """Changes since the last turn."""

    new: list[Entry]
    """They may have been given at once."""
    changed: list[Entry]
    """Jobs stored before that were given now, came back unbegun, or are dead."""
    finished: list[int]
    given: dict[KnownWorker, list[Entry]]
    submits: dict[bytes, bool | None]
    """See :meth:`Submits.changes`."""


class Jobs:
    """All jobs of one service, and its workers.

    :param most: jobs that it takes.
    :param most_bytes: bytes of them, each counted with :data:`JOB_EXTRA`.
    :param limit: seconds for which a worker may hold a job.
    :param attempts: how often a job is given.
    :param each: jobs that one queue takes.
    :param age: seconds after which a job expires by default.
    """

    def __init__(
        self,
        most: int,
        most_bytes: int,
        limit: float,
        attempts: int,
        *,
        ordered: bool = False,
        each: int | None = None,
        age: float | None = None,
        separator: bytes = b"/",
    ) -> None:
        #: All that are not done, by number.
        self.jobs: dict[int, Entry] = {}
        #: Those that have jobs or workers, by name.
        self.queues: dict[bytes, KnownQueue] = {}
        #: Of all queues, by the keys under which they get jobs.
        self.workers: dict[bytes, KnownWorker] = {}
        #: Jobs that expired, and that died, ever.
        self.expired = self.died = 0
        #: Submits that are not accepted again.
        self.submits = Submits()
        self.separator = separator
        everybody: frozenset[int | None] = frozenset({None})
        self._count, self._bytes, self._names = (Shares(n, everybody) for n in (most, most_bytes, MOST_QUEUES))
        self._limit, self._attempts = limit, attempts
        self._ordered, self._each, self._age = ordered, each, age
        self._touched: dict[bytes, KnownQueue] = {}  # where jobs may have to be given
        self._times: list[tuple[float, int, bool]] = []  # a heap: when a job is due, or else expires
        self._changes = 0  # jobs that came into a queue or left one, ever
        self._number = self._stored = 0  # of the newest job, and of the newest before this turn
        self._finished: list[int] = []
        self._dying: list[Entry] = []  # rejected, or given too often, since the last turn
        self._changed: dict[int, Entry] = {}  # of the jobs stored before

    # -- new jobs -----------------------------------------------------------------------------------

    def load(self, rows: Iterable[Row], submits: Iterable[tuple[bytes, bool]] = ()) -> None:
        """Take jobs up that were stored, in the order of their numbers, and submits, oldest first."""
        jobs = []
        for number, name, key, payload, owner, *rest in rows:
            jobs.append(Entry(number, self._queue(name, owner), key, payload, owner, *rest))  # type: ignore[arg-type]
            self._number = number
        self._add(jobs)
        self._stored = self._number
        for digest, is_trusted in submits:
            self.submits.add(digest, is_trusted=is_trusted)
        self.submits.changes()  # the store has them

    def accept(
        self,
        name: bytes,
        pairs: Iterable[tuple[bytes, bytes]],
        owner: int | None,
        at: float,
        *,
        sender: bytes | None = None,
        delay: float = 0.0,
        expires: float | None = None,
        priority: int = 0,
    ) -> bool:
        """Take all these jobs, or none: ``False`` when there is no room.

        An ``owner`` may hold its share, see :mod:`sbuslib.shares`; ``None`` may fill the queue.
        """
        # 1. Whether there is room, in this queue and in all.
        pairs = list(pairs)
        queue = self.queues.get(name)
        size = sum(len(key) + len(payload) for key, payload in pairs) + len(pairs) * (JOB_EXTRA + len(sender or b""))
        if not (self._count.could_take(owner, len(pairs)) and self._bytes.could_take(owner, size)):
            return False
        if queue is None and not self._names.could_take(owner, 1):
            return False
        if self._each is not None and (len(queue.jobs) if queue is not None else 0) + len(pairs) > self._each:
            return False

        # 2. The jobs, with the times at which they are due and expire.
        if not pairs:
            return True
        queue = queue or self._queue(name, owner)
        due = at + delay if delay else 0.0
        lasts = expires if expires is not None else self._age
        until = inf if lasts is None else at + lasts
        first = self._number + 1
        self._number += len(pairs)
        self._add(
            [
                Entry(number, queue, key, payload, owner, sender, priority, 0, at, due, until)
                for number, (key, payload) in enumerate(pairs, first)
            ]
        )
        return True

    def _queue(self, name: bytes, owner: int | None) -> KnownQueue:
        """The queue of this name, which is made if there is none, and charged to ``owner``."""
        if (queue := self.queues.get(name)) is None:
            is_dead = dead_name(name, self.separator) == name
            queue = self.queues[name] = KnownQueue(name, owner, is_dead=is_dead, ordered=self._ordered)
            self._names.force(owner, 1)
        return queue

    def _let_go(self, queue: KnownQueue) -> None:
        """Forget a queue that has neither jobs nor workers."""
        if not (queue.jobs or queue.workers):
            del self.queues[queue.name]
            self._touched.pop(queue.name, None)
            self._names.give(queue.owner, 1)

    def _add(self, new: list[Entry]) -> None:
        for job in new:
            self.jobs[job.number] = job
            self._count.force(job.owner, 1)
            self._bytes.force(job.owner, job.size)
            self._watch(job)
            self._join(job)

    def _join(self, job: Entry) -> None:
        """Add a job to the end of its queue."""
        queue = job.queue
        queue.jobs[job.number] = job
        self._note_change(queue, job, 1)
        if queue.lines is not None:
            line = queue.lines.setdefault(job.key, deque())
            line.append(job)
            if len(line) > 1:
                return
        self._line_up([job])

    def _note_change(self, queue: KnownQueue, job: Entry, more: int) -> None:
        """Note that a job came into a queue or left it."""
        self._changes += 1
        queue.changed = self._changes
        queue.delayed += more if job.due else 0

    def _line_up(self, jobs: Iterable[Entry], *, first: bool = False) -> None:
        """Line up jobs of one queue, in this order, to be given once they are due; after too many attempts they die."""
        waiting: list[Entry] = []
        for job in jobs:
            if job.attempts >= self._attempts and not job.queue.is_dead:
                self._dying.append(job)
            elif job.due:
                heappush(self._times, (job.due, job.number, True))
            else:
                waiting.append(job)

        if not waiting:
            return
        queue = waiting[0].queue
        self._touched[queue.name] = queue
        is_first = first and not queue.is_dead  # a dead one that comes back lets others go first
        for job in sorted(waiting, key=attrgetter("number"), reverse=True) if is_first else waiting:
            line = queue.ready.setdefault(job.priority, deque())
            if is_first:
                _put_back(line, job)
            else:
                line.append(job)

    def _watch(self, job: Entry) -> None:
        """Remember when a job expires."""
        if job.until == inf:
            return
        if len(self._times) > 2 * len(self.jobs) + _FEW:
            self._times = [*{entry for entry in self._times if entry[1] in self.jobs}]
            heapify(self._times)
        heappush(self._times, (job.until, job.number, False))

    # -- packets of workers -------------------------------------------------------------------------

    def announce(
        self, name: bytes, key: bytes, sender: bytes | None, token: bytes, room: int, named: Iterable[int], now: float
    ) -> KnownWorker | None:
        """Take the announcement of a worker: its key, its prefetch, and the jobs that it holds.

        ``token`` is for a new one. ``None``: there are too many workers, or ``key`` is that of another.
        """
        worker = self.workers.get(key)
        if worker is None:
            if len(self.workers) >= MOST_WORKERS:
                return None
            queue = self._queue(name, None)
            worker = self.workers[key] = queue.workers[key] = KnownWorker(queue, key, sender, token)
        elif worker.sender != sender or worker.queue.name != name:
            return None
        worker.prefetch = max(0, min(room, MOST_PREFETCH))
        worker.seen = now
        self._touched[name] = worker.queue
        known = set(named)
        self._release(worker, [job for job in worker.held_since(now - GONE) if job.number not in known])
        return worker

    def finish(
        self,
        worker: KnownWorker,
        done: Iterable[int],
        failed: Iterable[int],
        now: float,
        returned: Iterable[int] = (),
        rejected: Iterable[int] = (),
    ) -> int:
        """Take acknowledgements of a worker, see :class:`~sbuslib.clients.recipes.queue.Acknowledgement`.

        Returns the number done.
        """
        worker.seen = now
        self._touched[worker.queue.name] = worker.queue
        ended = list(dict.fromkeys(job for job in map(self.jobs.get, done) if job is not None and job.holder is worker))
        for job in ended:
            self._forget(job)
        for job in self._held_of(worker, rejected):
            worker.drop(job)
            if job.queue.is_dead:
                self._forget(job)
            else:
                self._dying.append(job)
        self._release(worker, self._held_of(worker, failed))
        self._take_back(worker, self._held_of(worker, returned))
        return len(ended)

    def _held_of(self, worker: KnownWorker, numbers: Iterable[int]) -> list[Entry]:
        held = map(worker.held.get, numbers)
        return list(dict.fromkeys(job for job in held if job is not None))

    def leave(self, worker: KnownWorker) -> None:
        """Remove a worker, and give its jobs again."""
        del self.workers[worker.key]
        self._release(worker, list(worker.held.values()))
        del worker.queue.workers[worker.key]
        self._let_go(worker.queue)

    def expire(self, now: float) -> None:
        """Remove silent workers, and give jobs again that were held for too long."""
        for worker in list(self.workers.values()):
            if now - worker.seen > GONE:
                self.leave(worker)
            else:
                self._release(worker, [*worker.held_since(now - self._limit)])

    def _take_back(self, worker: KnownWorker, jobs: list[Entry]) -> None:
        """Take back jobs that a worker has not begun: those were no attempts."""
        for job in jobs:
            job.attempts -= 1
            self._changed[job.number] = job
        self._release(worker, jobs)

    def _release(self, worker: KnownWorker, jobs: list[Entry]) -> None:
        for job in jobs:
            worker.drop(job)
            self._watch(job)
        self._line_up(jobs, first=True)

    # -- the end of jobs ----------------------------------------------------------------------------

    def purge(self, name: bytes, number: int | None = None) -> int:
        """Forget all waiting jobs of a queue, or one of them. Returns their number."""
        queue = self.queues.get(name)
        jobs = [] if queue is None else [*queue.jobs.values()] if number is None else [queue.jobs.get(number)]
        waiting = [job for job in jobs if job is not None and not job.is_held]
        for job in waiting:
            self._forget(job)
        return len(waiting)

    def retry(self, name: bytes) -> int:
        """Put the dead jobs of a queue that no worker holds back into it, as far as it takes them; return how many."""
        queue, dead = self.queues.get(name), self.queues.get(dead_name(name, self.separator))
        if dead is None or dead is queue:
            return 0
        jobs = [job for job in dead.jobs.values() if not job.is_held]
        if self._each is not None:
            jobs = jobs[: max(0, self._each - (len(queue.jobs) if queue is not None else 0))]
        for job in jobs:
            self._move(job, name)
        return len(jobs)

    def _bury(self, job: Entry) -> None:
        """Move a dead job into the dead queue."""
        if self.jobs.get(job.number) is not job:  # its last holder has done it, after all
            return
        self._move(job, dead_name(job.queue.name, self.separator))
        self.died += 1

    def _move(self, job: Entry, name: bytes) -> None:
        """Move a job, with its number, to the end of another queue, where its attempts begin anew."""
        self._part(job)
        job.queue = self._queue(name, job.owner)
        job.attempts, job.due = 0, 0.0
        self._changed[job.number] = job
        self._join(job)

    def _forget(self, job: Entry) -> None:
        del self.jobs[job.number]
        self._finished.append(job.number)
        self._count.give(job.owner, 1)
        self._bytes.give(job.owner, job.size)
        if job.holder is not None:
            job.holder.drop(job)
        self._part(job)

    def _part(self, job: Entry) -> None:
        """Remove a job from its queue. The next of its line may be given."""
        queue = job.queue
        del queue.jobs[job.number]
        self._note_change(queue, job, -1)
        if queue.lines is not None:
            line = queue.lines[job.key]
            is_first = line[0] is job
            while line and line[0].number not in queue.jobs:
                line.popleft()
            if not line:
                del queue.lines[job.key]
            elif is_first:
                self._line_up([line[0]])
        queue.note_end()
        self._let_go(queue)

    # -- delivery -----------------------------------------------------------------------------------

    def next_time(self) -> float:
        """Time at which the next job is due, or expires."""
        return self._times[0][0] if self._times else inf

    def turn(self, now: float, at: float) -> Turn:
        """Give each job that may be given to the worker with most room; among equals, to the one that had least."""
        self._pass_time(at)
        while self._dying:
            self._bury(self._dying.pop(0))
        given: dict[KnownWorker, list[Entry]] = {}
        for queue in [*self._touched.values()]:
            self._give(queue, given, now)
        self._touched.clear()

        # The changes that the store has to write for this turn.
        new = [job for job in map(self.jobs.get, range(self._stored + 1, self._number + 1)) if job is not None]
        changed = [job for number, job in self._changed.items() if number <= self._stored and number in self.jobs]
        finished, self._finished = self._finished, []
        self._changed = {}
        self._stored = self._number
        return Turn(new, changed, finished, given, self.submits.changes())

    def _pass_time(self, at: float) -> None:
        """Line up due jobs, and forget jobs that expired before a worker had them."""
        while self._times and self._times[0][0] <= at:
            _, number, is_due = heappop(self._times)
            job = self.jobs.get(number)
            if job is None or job.is_held:
                continue
            if job.until <= at:
                self.expired += 1
                self._forget(job)
            elif is_due and job.due:
                job.due = 0.0
                job.queue.delayed -= 1
                self._line_up([job])

    def _give(self, queue: KnownQueue, given: dict[KnownWorker, list[Entry]], now: float) -> None:
        # 1. Workers with room: a heap, the one with most of it first.
        workers = queue.workers
        able = (worker for worker in workers.values() if queue.ready and worker.free() > 0)
        free = [(-worker.free(), worker.total, worker.key) for worker in able]
        heapify(free)

        # 2. The next job to the first of them, until there is no job or no room.
        while free and (job := queue.next_ready()) is not None:
            worker = workers[free[0][2]]
            worker.take(job, now)
            given.setdefault(worker, []).append(job)
            self._changed[job.number] = job
            room = worker.free()
            if room > 0:
                heapreplace(free, (-room, worker.total, worker.key))
            else:
                heappop(free)
