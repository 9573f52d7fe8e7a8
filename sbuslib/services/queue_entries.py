"""State of the service of shared queues: jobs, queues and workers, for :mod:`.queue_rules`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile
from math import inf
from typing import Final

from ..clients.recipes.queue import QueueState

HELD_BYTES: Final = 1024 * 1024
"""Bytes of jobs after which a worker gets no more: a sixteenth of what a hub queues for a client that is slow."""

JOB_EXTRA: Final = 600
"""Overhead of a job beside its key and payload: roughly Python's memory for it."""

MOST_SUBMITS: Final = 16_384
"""Ids of submits that are remembered: more than are sent in the seconds in which one that times out is repeated."""

_FEW: Final = 1_024
"""Ended jobs that may stay in the lines, besides as many as there are, before they are removed."""


@dataclass(slots=True, eq=False)
class Entry:
    """One job, as the service keeps it.

    ``attempts`` is how often it was given; ``holder`` was given it last, and may acknowledge it.
    """

    number: int
    queue: KnownQueue
    key: bytes
    payload: bytes
    owner: int | None
    sender: bytes | None = None
    priority: int = 0
    attempts: int = 0
    came: float = 0.0
    due: float = 0.0
    until: float = inf
    holder: KnownWorker | None = None
    given: float = 0.0
    """When, on the clock of workers."""
    size: int = field(init=False)
    """Its memory, in bytes."""

    def __post_init__(self) -> None:
        self.size = len(self.key) + len(self.payload) + len(self.sender or b"") + JOB_EXTRA

    @property
    def is_held(self) -> bool:
        """Whether a worker has it."""
        return self.holder is not None and self.number in self.holder.held


class KnownQueue:
    """One queue: its jobs, and its workers. It is there while it has any of them."""

    __slots__ = ("changed", "delayed", "gone", "is_dead", "jobs", "lines", "name", "owner", "ready", "workers")

    def __init__(self, name: bytes, owner: int | None, *, is_dead: bool, ordered: bool) -> None:
        self.name = name
        self.owner = owner
        self.is_dead = is_dead
        #: All that are not done, by number.
        self.jobs: dict[int, Entry] = {}
        #: By the keys under which they get jobs.
        self.workers: dict[bytes, KnownWorker] = {}
        self.ready: dict[int, deque[Entry]] = {}  # what may be given, by priority; some may be finished
        self.lines: dict[bytes, deque[Entry]] | None = {} if ordered else None  # by key; some may be finished
        self.gone = 0  # jobs that have ended since those were looked for
        self.delayed = 0  # jobs that are not due yet
        self.changed = 0  # the number of its newest change, among all queues of this service

    def next_ready(self) -> Entry | None:
        """Remove and return the first job that may be given."""
        while self.ready:
            level = max(self.ready)
            line = self.ready[level]
            while line:
                job = line.popleft()
                if self.jobs.get(job.number) is job:
                    return job
            del self.ready[level]
        return None

    def note_end(self) -> None:
        """Note the end of a job. As many as there are may stay in the lines, until they are removed."""
        self.gone += 1
        if self.gone <= len(self.jobs) + _FEW:
            return
        self.gone = 0
        for line in (*self.ready.values(), *(self.lines or {}).values()):
            jobs = [job for job in line if self.jobs.get(job.number) is job]
            line.clear()
            line.extend(jobs)

    def state(self, at: float, service: bytes = b"") -> QueueState:
        """Return the state of the queue, with a version that is this service's alone."""
        held = sum(len(worker.held) for worker in self.workers.values())
        oldest = next((job.came for job in self.jobs.values() if not job.is_held), None)
        age = None if oldest is None else max(0.0, at - oldest)
        version = b"%s.%d" % (service, self.changed)
        return QueueState(len(self.jobs) - held, held, age, len(self.workers), [], self.delayed, version)


class Submits:
    """The newest submits that have an id. Those of untrusted users push out none of trusted ones."""

    def __init__(self) -> None:
        self._known: dict[bool, dict[bytes, None]] = {False: {}, True: {}}  # by whether they are trusted; oldest first
        self._changed: dict[bytes, bool | None] = {}  # since the last turn; None if it is forgotten

    @staticmethod
    def digest(name: bytes, owner: int | None, submit: bytes) -> bytes:
        """The same for submits to one queue, charged to one user, with the same id."""
        return sha256(repr((name, owner, submit)).encode()).digest()[:16]

    def __contains__(self, digest: bytes | None) -> bool:
        return any(digest in known for known in self._known.values())

    def add(self, digest: bytes, *, is_trusted: bool) -> None:
        """Remember a submit, and forget the oldest one beyond :data:`MOST_SUBMITS`."""
        known = self._known[is_trusted]
        known[digest] = None
        self._changed[digest] = is_trusted
        if len(known) > MOST_SUBMITS:
            oldest = next(iter(known))
            del known[oldest]
            self._changed[oldest] = None

    def changes(self) -> dict[bytes, bool | None]:
        """Changes since the last call: whether a submit is of a trusted user; ``None``: forgotten."""
        changed, self._changed = self._changed, {}
        return changed


class KnownWorker:
    """One worker, and the jobs that it holds, oldest first. It gets jobs under ``key``."""

    __slots__ = ("bytes", "held", "key", "prefetch", "queue", "seen", "sender", "token", "total")

    def __init__(self, queue: KnownQueue, key: bytes, sender: bytes | None, token: bytes) -> None:
        self.queue = queue
        self.key = key
        self.sender = sender
        self.token = token
        #: Most jobs that it takes at once (prefetch).
        self.prefetch = 0
        #: Time of its last message, on the clock of workers.
        self.seen = 0.0
        #: The jobs that it has and has not acknowledged.
        self.held: dict[int, Entry] = {}
        self.bytes = 0  # of those jobs
        self.total = 0  # jobs that it was ever given

    def free(self) -> int:
        """Number of further jobs that it may be given."""
        return self.prefetch - len(self.held) if self.bytes < HELD_BYTES else 0

    def held_since(self, time: float) -> Iterator[Entry]:
        """The jobs that it was given before ``time``."""
        return takewhile(lambda job: job.given < time, self.held.values())

    def take(self, job: Entry, now: float) -> None:
        """Note that it was given a job."""
        job.attempts += 1
        job.holder = self
        job.given = now
        self.held[job.number] = job
        self.bytes += job.size
        self.total += 1

    def drop(self, job: Entry) -> None:
        """Release a job, if it holds it."""
        if self.held.pop(job.number, None) is not None:
            self.bytes -= job.size
