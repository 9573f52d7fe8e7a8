"""Turns shared out among users, so that a thousand connections are worth no more than one.

The event loop goes in rounds: it waits, then calls back for each socket that is ready. Where clients of
one user only are connected, that is fair enough. Where there are several users, each may have only so many
turns a round, fewer still while another is busy too; what is over is postponed to the following rounds. So a
user that keeps ten thousand connections busy takes its turns from itself. A turn is a batch that a client sent, or
one sent on to a client that had let it wait.

Turns are not alike: one may be a hundred bytes for one receiver, another megabytes for a thousand. So each
is timed, and while several users are busy, those go who have had the least. The more of a user's clients wait, the
more each turn counts, measured against the user of whose clients the fewest do: one that floods the hub from
everywhere at once is served on the side. Who was busy and is not counts as if it had had the time, for the
moment until it is forgotten. Those who wait to be accepted count as one more user.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf, log2
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .limits import Limits
    from .quota import Account

__all__ = ["DOOR", "Crowd"]

DOOR: Final = -1
"""The user id that stands for those who were not accepted yet."""


class Crowd:
    """Who may have a turn in this round of an event loop. ``loop`` is gevent's, whose ``now()`` names the round."""

    def __init__(self, loop: Any, limits: Limits) -> None:
        self._loop = loop
        self._limits = limits
        self._round = self._now = 0.0
        self._began = 0.0
        self._turns: dict[int, int] = {}  # of this round, by user
        self._last: dict[int, int] = {}  # and of the one before
        self._spent: dict[int, float] = {}  # seconds of this round, by user
        self._had: dict[int, float] = {}  # seconds of turns while it was crowded, weighted, by user that is busy
        self._least = 0.0  # of those
        self._lightest = 1.0
        self._busy: dict[int, float] = {}  # when each user was busy last
        self._most: dict[int, int] = {}  # packets a turn, of users whose turns are dear
        self._waiting: dict[int, deque[Callable[[], None]]] = {}
        self._only: int | None = None  # the one user that was busy of late, if none of its clients waits
        self._only_turns = 0  # of this round
        self._only_round = self._only_since = self._only_began = 0.0
        self._resuming: Any = None
        self._napping = False
        self.several = False
        """Whether clients of more than one user are connected: the hub says."""
        self.crowded = False
        """Whether more than one user was busy of late."""

    def may_go(self, account: Account) -> bool:
        """Whether a client of this user may have a turn now. If so, :meth:`went` must follow it."""
        if not self.several:
            return True
        uid = account.uid
        if uid == self._only and self._only_goes_on(uid):
            return True
        self._look_at_the_clock()
        self._busy[uid] = self._now
        had = self._turns.get(uid, 0)
        if self.crowded:
            if had >= self._limits.crowded_turns or not self._is_due(uid):
                return False
        elif had >= self._limits.turns_per_round or self._spent.get(uid, 0.0) > self._limits.crowd_round:
            return False
        self._turns[uid] = had + 1
        self._began = thread_time()
        return True

    def _only_goes_on(self, uid: int) -> bool:
        """Whether the only user that was busy of late may have another turn, of which no account is kept."""
        current = self._loop.now()
        self._only_began = monotonic()
        if current != self._only_round:
            self._only_round = current
            self._only_turns = self._turns.get(uid, 0) if current == self._round else 0
            self._only_since = self._only_began
        elif (
            self._only_turns >= self._limits.turns_per_round
            or self._only_began - self._only_since > self._limits.crowd_round
        ):
            return False
        self._only_turns += 1
        return True

    def went(self, account: Account, clients: int = 0) -> None:
        """The turn that :meth:`may_go` allowed has ended: that of a client, or one spent on so many."""
        if self._only is not None:
            if monotonic() - self._only_began > self._limits.crowd_turn:
                self._only = None  # its turns have to be looked at more closely
        elif self.several and self._began:
            took = thread_time() - self._began
            self._began = 0.0
            self._spent[account.uid] = self._spent.get(account.uid, 0.0) + took
            if self.crowded:
                weight = self._weight(account.uid)
                if clients > 1 and self._is_beside_others(account.uid):
                    weight *= 1 + log2(clients)
                had = self._had.get(account.uid, self._least) + took * weight
                self._had[account.uid] = min(had, self._least + self._limits.crowd_longest)
            if not clients and (took > self._limits.crowd_turn or account.uid in self._most):
                self._adapt(account.uid, took)
            if len(self._busy) == 1 and not self._waiting and not self._most:
                self._only = account.uid

    def most(self, account: Account, wanted: int | None) -> int | None:
        """How many packets a turn may take of a client that may have ``wanted``; ``None``: as many as there are."""
        if not (self.several and self._most):
            return wanted
        most = self._most.get(account.uid)
        return most if wanted is None or (most is not None and most < wanted) else wanted

    def _adapt(self, uid: int, took: float) -> None:
        """One message to thousands of receivers is long enough; 64 would keep everybody waiting."""
        batch = self._limits.batch
        most = self._most.get(uid, batch)
        longest = self._limits.crowd_turn
        if took > longest:
            most = max(self._limits.crowd_batch, most // 2)
        elif took < longest / 4:
            most *= 2
        if most < batch:
            self._most[uid] = most
        else:
            self._most.pop(uid, None)

    def _look_at_the_clock(self) -> None:
        current = self._loop.now()
        only, self._only = self._only, None
        if only is not None:
            self._busy[only] = max(self._busy[only], self._only_began)
        if current != self._round:
            self._begin_round(current)
        if only is not None and self._only_round == current:  # what it had of this round already
            self._turns[only] = self._only_turns
            self._spent[only] = self._spent.get(only, 0.0) + monotonic() - self._only_since

    def _begin_round(self, current: float) -> None:
        # The loop's time tells rounds apart, and no more: it is that of the wall, which somebody may set.
        self._round = current
        now = monotonic()
        passed, self._now = min(now - self._now, self._limits.crowd_remembered), now
        turns = self._last = self._turns
        self._turns = {}
        self._spent.clear()
        since = now - self._limits.crowd_remembered
        for uid in [uid for uid, at in self._busy.items() if at < since and uid not in self._waiting]:
            del self._busy[uid]
            self._had.pop(uid, None)
        self.crowded = len(self._busy) > 1
        if not self.crowded:
            self._had.clear()
            self._least = 0.0
            return
        for uid in self._busy:
            had = self._had.setdefault(uid, self._least)
            if uid not in turns and uid not in self._waiting:
                self._had[uid] = had + passed
        self._least = min(self._had.values())
        self._lightest = min(map(self._heft, self._busy))

    def _heft(self, uid: int) -> float:
        return self._limits.crowd_door if uid == DOOR else 1 + log2(max(1, len(self._waiting.get(uid, ()))))

    def _weight(self, uid: int) -> float:
        """How many times what it took a turn of this user counts."""
        return max(1.0, self._heft(uid) / self._lightest)

    def _is_beside_others(self, uid: int) -> bool:
        """Whether others have turns in the same rounds, or wait for one: only they wait for this user's."""
        return any(other != uid for users in (self._turns, self._last, self._waiting) for other in users)

    def _is_due(self, uid: int) -> bool:
        """Whether no other busy user has had less than this one."""
        return self._had.get(uid, self._least) <= self._least + self._limits.crowd_slack

    def postpone(self, account: Account, resume: Callable[[], None]) -> None:
        """Call ``resume`` in one of the next rounds: a client's socket is no longer watched until then.

        By then that client may have been closed.
        """
        if self._only is not None:
            self._look_at_the_clock()
        self._waiting.setdefault(account.uid, deque()).append(resume)
        if self._resuming is None:
            self._look_again(0.0)
        elif self._napping and any(map(self._is_due, self._waiting)):
            self._end_timer()  # somebody's time has come sooner than it seemed
            self._look_again(0.0)

    def _look_again(self, seconds: float) -> None:
        # A timer and no callback of the loop: callbacks that ask for more of themselves run in the same round.
        self._napping = seconds > 0
        self._resuming = self._loop.timer(seconds)
        self._resuming.start(self._resume, update=False)

    def _resume(self) -> None:
        self._look_at_the_clock()
        limits = self._limits
        most = limits.crowded_turns if self.crowded else limits.turns_per_round
        nap = inf
        for uid, waiting in list(self._waiting.items()):
            if self.crowded and not self._is_due(uid):
                nap = min(nap, max(limits.crowd_nap, self._had[uid] - self._least), limits.crowd_remembered)
                continue
            nap = 0.0
            self._turns.setdefault(uid, 0)  # those that may read again do so in the next round: it was busy in this one
            for _ in range(min(most, len(waiting))):
                waiting.popleft()()
            if not waiting:
                del self._waiting[uid]
        self._end_timer()
        if self._waiting:
            self._look_again(nap)

    def _end_timer(self) -> None:
        if self._resuming is not None:
            self._resuming.close()
            self._resuming = None

    def close(self) -> None:
        """Resume nobody any more."""
        self._waiting.clear()
        self._end_timer()
