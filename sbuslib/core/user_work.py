"""Work that a user's changes cause, done in that user's turns.

What takes as long as there are patterns cannot be done in the turn of the client that caused it: everybody else would
wait. Done in nobody's turn, it would be charged to nobody, and one user could have all the time of the hub. So it is
done in turns of its own, a bounded piece in each, which the scheduler gives to the user as it does to its clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

__all__ = ["Turns", "UserWork"]


class User(Protocol):
    """Whoever has turns: the account of a user."""

    uid: int


U = TypeVar("U", bound=User)
U_contra = TypeVar("U_contra", bound=User, contravariant=True)


class Turns(Protocol[U_contra]):
    """The scheduler."""

    def may_go(self, account: U_contra) -> bool:
        """Whether this user may have a turn now. If so, :meth:`went` must follow it."""
        ...

    def went(self) -> None:
        """The turn has ended."""
        ...

    def postpone(self, account: U_contra, resume: Callable[[], None]) -> None:
        """Call ``resume`` when this user has a turn."""
        ...


class UserWork(Generic[U]):
    """One kind of work, for all users who have some.

    :param step: does a piece of a user's work; whether there is more that can be done now.
    """

    def __init__(self, turns: Turns[U], step: Callable[[U], bool]) -> None:
        self._turns = turns
        self._step = step
        self._waiting: set[int] = set()  # users for whom a turn was asked

    @property
    def waits(self) -> bool:
        """Whether any user has work left."""
        return bool(self._waiting)

    def begin(self, account: U) -> None:
        """A user has work to do: in a turn to come, never at once."""
        if account.uid not in self._waiting:
            self._waiting.add(account.uid)
            self._turns.postpone(account, lambda: self._resume(account))

    def _resume(self, account: U) -> None:
        if account.uid not in self._waiting:
            return  # the work was ended meanwhile
        self._waiting.discard(account.uid)
        if not self._turns.may_go(account):
            self.begin(account)
            return
        try:
            more = self._step(account)
        finally:
            self._turns.went()
        if more:
            self.begin(account)

    def end(self) -> None:
        """Do no more."""
        self._waiting.clear()
