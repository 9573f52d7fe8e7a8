"""Work that is charged to a user whose changes caused it, and done in turns of that user.

Work that grows with the number of patterns cannot be done in the turn of the client that caused it: everybody else
would wait. If it were done in no turn, it would be charged to no user, and one user could take all the time of the hub.
So it is a *job*, done in short steps, in turns that the scheduler gives to the user as it does to clients.

Others may wait for the end of a job, for example a reload for all clients that it looks at. So every job that was added
ends in any case: it is done, a step of it fails, or the hub stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from .scheduler import Scheduler

T = TypeVar("T")


class _Job(NamedTuple):
    steps: Iterator[None]
    on_end: Callable[[], None]


class ChargedWork:
    """The jobs of all users.

    :param turn_time: seconds after which a turn ends, between two steps.
    """

    def __init__(self, scheduler: Scheduler, turn_time: float) -> None:
        self._scheduler = scheduler
        self._turn_time = turn_time
        self._jobs: dict[int, deque[_Job]] = {}  # by user, who waits for a turn; never empty
        self.closed = False
        """Whether all work was cleared: no job begins any more."""

    def add(self, user: int, steps: Iterator[None], on_end: Callable[[], None]) -> None:
        """Do a job in later turns of a user, and never at once. The jobs of a user take turns.

        Each step is short. ``on_end`` is called once: after the last step, after one that raised, or when all work is
        cleared; at once, and no step is done, if it was.
        """
        if self.closed:
            on_end()
        else:
            self._put(user, _Job(steps, on_end))

    def empty(self, user: int, rest: dict[T, Any], take_out: Callable[[T], object], a_step: int) -> None:
        """Take out what is in a dictionary, so many in each step; all that is left at the end, where that comes first.

        The first step is done at once.
        """

        def steps() -> Iterator[None]:
            for number, name in enumerate(list(rest), 1):
                if name in rest:
                    take_out(name)
                if not number % a_step:
                    yield

        def on_end() -> None:
            for name in list(rest):
                take_out(name)

        work = steps()
        if next(work, self) is not self:
            self.add(user, work, on_end)

    def _put(self, user: int, job: _Job) -> None:
        jobs = self._jobs.get(user)
        if jobs is None:
            jobs = self._jobs[user] = deque()
            self._scheduler.postpone(user, lambda: self._take_turn(user))
        jobs.append(job)

    def _take_turn(self, user: int) -> None:
        jobs = self._jobs.pop(user, None)
        if jobs is None:
            return  # all work was ended meanwhile

        # Its jobs by turns. Whatever one of them raises, the others go on in the next turn.
        until = monotonic() + self._turn_time
        try:
            while jobs:
                job = jobs.popleft()
                goes_on = False
                try:
                    goes_on = next(job.steps, self) is not self
                finally:
                    if goes_on:
                        jobs.append(job)
                    else:
                        job.on_end()
                if monotonic() > until:
                    break
        finally:
            for job in jobs:
                self._put(user, job)

    @property
    def waits(self) -> bool:
        """Whether anything is still to be done."""
        return bool(self._jobs)

    def clear(self) -> None:
        """The hub stops: end all jobs as they are, and begin no others."""
        self.closed = True
        while self._jobs:
            _, jobs = self._jobs.popitem()
            for job in jobs:
                job.on_end()
