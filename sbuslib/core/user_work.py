"""Work that a user's changes cause, done in turns of that user.

Work that grows with the number of patterns cannot be done in the turn of the client that caused it: everybody else
would wait. If it were done in no turn, it would be charged to no user, and one user could take all the time of the hub.
So it is a *job*, done in short steps, in turns that the scheduler gives to the user as it does to clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import monotonic

from .scheduler import Scheduler

__all__ = ["UserWork"]


class UserWork:
    """The jobs of all users. A job is an iterator; each step of it is short.

    :param turn_time: seconds after which a turn ends, between two steps.
    """

    def __init__(self, scheduler: Scheduler, turn_time: float) -> None:
        self._scheduler = scheduler
        self._turn_time = turn_time
        self._jobs: dict[int, deque[Iterator[None]]] = {}  # by user, who waits for a turn; never empty

    def add(self, user: int, job: Iterator[None]) -> None:
        """Do a job in later turns of a user, and never at once. The jobs of a user take turns."""
        jobs = self._jobs.get(user)
        if jobs is None:
            jobs = self._jobs[user] = deque()
            self._scheduler.postpone(user, lambda: self._take_turn(user))
        jobs.append(job)

    def _take_turn(self, user: int) -> None:
        jobs = self._jobs.pop(user, None)
        if jobs is None:
            return  # all work was ended meanwhile
        until = monotonic() + self._turn_time
        try:
            while jobs:
                job = jobs.popleft()
                if next(job, self) is not self:
                    jobs.append(job)
                if monotonic() > until:
                    break
        finally:
            for job in jobs:
                self.add(user, job)

    @property
    def waits(self) -> bool:
        """Whether anything is still to be done."""
        return bool(self._jobs)

    def clear(self) -> None:
        """Do nothing of it any more."""
        self._jobs.clear()
