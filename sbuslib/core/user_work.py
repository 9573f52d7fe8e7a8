"""Work that a user's changes cause, done in turns of that user.

Work that grows with the number of patterns cannot be done in the turn of the client that caused it: everybody else
would wait. If it were done in no turn, it would be charged to no user, and one user could take all the time of the hub.
So it is done in turns of its own, a bounded piece in each. The scheduler gives these to the user as it does to clients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .quotas import Account
from .scheduler import Scheduler

__all__ = ["UserWork"]


class UserWork:
    """One kind of work, for all users.

    :param step: does a piece of a user's work, and returns whether more can be done now.
    """

    def __init__(self, scheduler: Scheduler, step: Callable[[Account], bool]) -> None:
        self._scheduler = scheduler
        self._step = step
        self._waiting: set[int] = set()  # users for whom a turn was asked for

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def begin(self, account: Account) -> None:
        """A user has work to do: do it in later turns, never at once."""
        if account.uid not in self._waiting:
            self._waiting.add(account.uid)
            self._scheduler.postpone(account.uid, partial(self._resume, account))

    def _resume(self, account: Account) -> None:
        if account.uid not in self._waiting:
            return  # the work was ended meanwhile
        self._waiting.discard(account.uid)
        if self._step(account):
            self.begin(account)

    def end(self) -> None:
        self._waiting.clear()
