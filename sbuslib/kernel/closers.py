"""Threads that close descriptors of other users, which may take for ever: a FUSE file waits for its owner's answer.

Each user has one thread at most, and all untrusted users together a few, so a user that sends slow files ties up only
that one thread. Further descriptors of it stay open behind it and are counted, and callers of :func:`is_behind` accept
nothing more of that user. No descriptor is ever closed in the thread that calls.
"""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeAlias

from .threads import in_a_thread, unpatched

MOST_THREADS: Final = 16
"""Threads for all untrusted users: if the files of more users than that do not close, those of others stay open."""
MOST_KEPT: Final = 1_012
"""Most descriptors of one user that wait to be closed: four packets full. Beyond that, no more are accepted for now."""
STUCK_SECONDS: Final = 1.0
"""An untrusted user's close that takes longer may take for ever. Most take some microseconds."""

_Job: TypeAlias = "tuple[Callable[[], object], int]"
"""A function that closes descriptors, and their number."""


class _Pile:
    """Descriptors of one user to be closed, in order."""

    __slots__ = ("has_thread", "jobs", "kept", "since")

    def __init__(self) -> None:
        self.jobs = deque[_Job]()  # that have not begun
        self.kept = 0  # descriptors that are open, those of the job that runs included
        self.since = monotonic()  # when the job that runs, or waits for a thread, became the first
        self.has_thread = False  # whether a thread works on it


class _Closers:
    """The piles of all users, and the number of threads that work on them."""

    def __init__(self) -> None:
        self._lock = unpatched("_thread", "allocate_lock")()  # over the next three, and all piles
        self._piles: dict[int, _Pile] = {}  # by user, while there is anything to close
        self._kept = 0  # descriptors in all of them
        self._threads = 0  # those that run

    def add(self, user: int, job: Callable[[], object], count: int) -> None:
        with self._lock:
            pile = self._piles.setdefault(user, _Pile())
            pile.jobs.append((job, count))
            pile.kept += count
            self._kept += count

            # Also for others, where no thread could be started for them before.
            begun = [other for other in self._piles if self._may_begin(other)][: max(1, MOST_THREADS - self._threads)]
            for other in begun:
                self._piles[other].has_thread = True
            self._threads += len(begun)
        for other in begun:
            self._begin(other)

    def _may_begin(self, user: int) -> bool:
        """Whether a thread may begin, with the lock held: our own user and root always have one each."""
        return not self._piles[user].has_thread and (_is_trusted(user) or self._threads < MOST_THREADS)

    def _begin(self, user: int) -> None:
        try:
            in_a_thread(self._run, user)
        except OSError:  # this stays open until the next try
            with self._lock:
                self._piles[user].has_thread = False
                self._threads -= 1

    def _run(self, user: int | None) -> None:
        """Close all descriptors of this user; then those of users without a thread."""
        while user is not None:
            pile = self._piles[user]
            while pile.jobs:
                job, count = pile.jobs.popleft()
                job()
                with self._lock:
                    pile.since = monotonic()
                    pile.kept -= count
                    self._kept -= count
            user = self._end(user)

    def _end(self, user: int) -> int | None:
        """Choose the user whose descriptors the thread closes next; ``None``: it ends."""
        with self._lock:
            if self._piles[user].jobs:
                return user
            del self._piles[user]
            for other, pile in self._piles.items():
                if not pile.has_thread and self._threads <= MOST_THREADS:
                    pile.has_thread = True
                    return other
            self._threads -= 1
            return None

    def is_behind(self, user: int) -> bool:
        with self._lock:
            pile = self._piles.get(user)
            if pile is not None and pile.kept >= MOST_KEPT:
                return True

            # A socket of our own user may take some seconds.
            if _is_trusted(user):
                return False
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
            is_stuck = pile is not None and monotonic() - pile.since > STUCK_SECONDS
            return is_stuck or 0 < most < self._kept


def _is_trusted(user: int) -> bool:
    return user in (0, os.geteuid())


_closers = _Closers()


def close_later(user: int, job: Callable[[], object], count: int) -> None:
    """Let a thread run a job that closes ``count`` descriptors of this user. Never waits."""
    _closers.add(user, job, count)


def is_behind(user: int) -> bool:
    """Whether a user's descriptors do not close, or too many wait for it: then accept nothing more of it.

    True for any untrusted user while half of all files that this process may open are kept open in this way.
    """
    return _closers.is_behind(user)


def _forget() -> None:
    """Forget all, in the child of a fork: it has none of the threads, and its copies stay open, as a close may wait."""
    global _closers
    _closers = _Closers()


os.register_at_fork(after_in_child=_forget)
