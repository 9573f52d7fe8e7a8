"""Turns shared out among users, so that a thousand connections are worth no more than one.

The event loop goes in rounds: it waits, then calls back for each socket that is ready. Where clients of
one user only are connected, that is fair enough. Where there are several users, each may have only so many
turns a round, fewer still while another is busy too; what is over is postponed to the following rounds. So a
user that keeps ten thousand connections busy takes its turns from itself.

Turns are not alike: one may be a hundred bytes for one receiver, another megabytes for a thousand. So each
is timed, and while others are busy, a user sits out what its turns took. The more of a user's clients wait, the
longer that lasts, measured against the user of whose clients the fewest do: one that floods the hub from
everywhere at once is served on the side. Those who wait to be accepted count as one more user.
"""

from __future__ import annotations

from collections import deque
from math import log2
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from .limits import Limits
    from .quota import Account

__all__ = ["Crowd", "Postponable"]


class _Pace(msgspec.Struct, frozen=True):
    """The times by which users are held apart, in seconds."""

    round: float = 0.005
    """What one user may take of a round where clients of others are connected: how long those may have to wait."""
    remembered: float = 0.05
    """How long a user counts as busy after it was: a publisher that waits for the processor has not gone away."""
    nap: float = 0.0005
    """When to look again while all who wait have turns to sit out. Without it the loop would spin."""


_PACE: Final = _Pace()


class Postponable(Protocol):
    """A client whose turn can be put off."""

    account: Account
    closed: bool

    def resume(self) -> None:
        """Watch the socket again."""
        ...


class Crowd:
    """Who may have a turn in this round of an event loop. ``loop`` is gevent's, whose ``now()`` names the round."""

    def __init__(self, loop: Any, limits: Limits) -> None:
        self._loop = loop
        self._limits = limits
        self._round = 0.0
        self._began = 0.0
        self._turns: dict[int, int] = {}  # of this round, by user
        self._spent: dict[int, float] = {}  # seconds of this round, by user
        self._debts: dict[int, float] = {}  # seconds still to be sat out, by user
        self._busy: dict[int, float] = {}  # when each user was busy last
        self._waiting: dict[int, deque[Postponable]] = {}
        self._resuming: Any = None
        self.several = False
        """Whether clients of more than one user are connected: the hub says."""
        self.crowded = False
        """Whether more than one user was busy of late."""

    def may_go(self, account: Account) -> bool:
        """Whether a client of this user may have a turn now. If so, :meth:`went` must follow it."""
        if not self.several:
            return True
        self._look_at_the_clock()
        uid = account.uid
        self._busy[uid] = self._round
        had = self._turns.get(uid, 0)
        if self.crowded:
            if had >= self._limits.crowded_turns or self._debts.get(uid, 0.0) > 0:
                return False
        elif had >= self._limits.turns_per_round or self._spent.get(uid, 0.0) > _PACE.round:
            return False
        self._turns[uid] = had + 1
        self._began = perf_counter()
        return True

    def went(self, account: Account) -> None:
        """The turn that :meth:`may_go` allowed has ended."""
        if self.several and self._began:
            took = perf_counter() - self._began
            self._began = 0.0
            self._spent[account.uid] = self._spent.get(account.uid, 0.0) + took
            if self.crowded:
                self._debts[account.uid] = self._debts.get(account.uid, 0.0) + took

    def _look_at_the_clock(self) -> None:
        now = self._loop.now()
        if now == self._round:
            return
        passed, self._round = now - self._round, now
        self._turns.clear()
        self._spent.clear()
        for uid in [uid for uid, at in self._busy.items() if at + _PACE.remembered < now and uid not in self._waiting]:
            del self._busy[uid]
        self.crowded = len(self._busy) > 1
        if not self.crowded:
            self._debts.clear()
        elif self._debts:
            weights = {uid: 1 + log2(1 + len(self._waiting.get(uid, ()))) for uid in self._busy}
            lightest = min(weights.values())
            for uid, debt in list(self._debts.items()):
                debt -= passed * lightest / weights.get(uid, lightest)
                if debt > 0:
                    self._debts[uid] = debt
                else:
                    del self._debts[uid]

    def postpone(self, client: Postponable) -> None:
        """Resume this client, whose socket is no longer watched, in one of the next rounds."""
        self._waiting.setdefault(client.account.uid, deque()).append(client)
        if self._resuming is None:
            self._look_again(0.0)

    def _look_again(self, seconds: float) -> None:
        # A timer and no callback of the loop: callbacks that ask for more of themselves run in the same round.
        self._resuming = self._loop.timer(seconds)
        self._resuming.start(self._resume, update=False)

    def _resume(self) -> None:
        self._look_at_the_clock()
        limits = self._limits
        most = limits.crowded_turns if self.crowded else limits.turns_per_round
        nap = _PACE.nap
        for uid, clients in list(self._waiting.items()):
            if self.crowded and self._debts.get(uid, 0.0) > 0:
                continue
            nap = 0.0
            for _ in range(min(most, len(clients))):
                client = clients.popleft()
                if not client.closed:
                    client.resume()
            if not clients:
                del self._waiting[uid]
        self._resuming.close()
        self._resuming = None
        if self._waiting:
            self._look_again(nap)
