"""Turns shared out among users, so that a thousand connections are worth no more than one.

The event loop goes in rounds: it waits, then calls back for each socket that is ready. Where clients of
one user only are connected, that is fair enough. Where there are several users, each may have only so many
turns a round, fewer still while another is busy too; what is over is postponed to the following rounds. So a
user that keeps ten thousand connections busy takes its turns from itself. A turn is a batch that a client sent, or
one sent on to a client that had let it wait.

Turns are not alike: one may be a hundred bytes for one receiver, another megabytes for a thousand. So each
is timed, and while several users are busy, those go who have had the least. How much a turn's time counts is the
*heft* of its user, measured against that of the lightest: it grows with how many of its clients wait, so that one
that floods the hub from everywhere at once is served on the side, and with its breaches of the protocol. Those who
wait to be accepted count as one more user.

Who was busy and is not may only wait for the processor, so others are not let past it at once, and the hub is idle
meanwhile. But it is *awaited* no longer than it had the hub's time before (``crowd_patience``): one who says a word now
and then is not waited for. Whoever comes back counts as if it had had what others got meanwhile.

All of that happens for each batch that a client sends, so it costs few calls: accounts are settled once a round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf, log2
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ..limits import Limits
    from .quotas import Account

__all__ = ["DOOR", "Scheduler"]

DOOR: Final = -1
"""The user id that stands for those who were not accepted yet."""


class _User:
    """What is known of a user that was busy of late."""

    __slots__ = ("busy", "credit", "had", "round", "spent", "turns", "uid", "waiting")

    def __init__(self, uid: int, had: float) -> None:
        self.uid = uid
        self.busy = 0.0  # when it was last
        self.credit = 0.0  # seconds for which it is awaited while it has nothing to do
        self.had = had  # seconds of turns while it was crowded, weighted
        self.round = -1  # the last one in which it had a turn, or might have had one
        self.turns = 0  # of that round
        self.spent = 0.0  # seconds of that round
        self.waiting: deque[Callable[[], None]] = deque()


class Scheduler:
    """Who may have a turn in this round of an event loop. ``loop`` is gevent's, whose ``now()`` names the round."""

    def __init__(self, loop: Any, limits: Limits) -> None:
        self._loop = loop
        self._limits = limits
        self._round = 0  # its number
        self._round_time = self._now = 0.0  # the loop's time of it, and ours
        self._users: dict[int, _User] = {}  # those that were busy of late
        self._least = 0.0  # that any of them has had
        self._lightest = 1.0  # heft of any of them
        self._goes: _User | None = None  # whose turn it is
        self._began = 0.0  # by the time that this thread has computed
        self._ended = 0.0  # when the last turn did
        self._most: dict[int, int] = {}  # packets a turn, of users whose turns are dear
        self._offences: dict[int, tuple[int, float]] = {}  # how many of a user are not forgotten, and since when
        self._only: _User | None = None  # the one that was busy of late, if none of its clients waits
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
        if self._only is not None:
            if uid == self._only.uid and self._only_goes_on(self._only):
                return True
            self._look_at_the_clock()
        elif self._loop.now() != self._round_time:
            self._begin_round(self._loop.now())
        user = self._users.get(uid) or self._meet(uid)
        user.busy = self._now
        if user.had < self._least:
            user.had = self._least
        limits = self._limits
        had_turns = user.round == self._round
        if self.crowded:
            if (had_turns and user.turns >= limits.crowded_turns) or not self._is_due(user):
                return False
        elif had_turns and (user.turns >= limits.turns_per_round or user.spent > limits.crowd_round):
            return False
        if had_turns:
            user.turns += 1
        else:
            self._begin_turns(user, 1)
        self._goes = user
        self._began = thread_time()
        return True

    def _meet(self, uid: int) -> _User:
        user = self._users[uid] = _User(uid, self._least)
        return user

    def _begin_turns(self, user: _User, turns: int) -> None:
        user.round, user.turns, user.spent = self._round, turns, 0.0

    def _only_goes_on(self, user: _User) -> bool:
        """Whether the only user that was busy of late may have another turn, of which no account is kept."""
        current = self._loop.now()
        self._only_began = monotonic()
        if current != self._only_round:
            self._only_round = current
            self._only_turns = user.turns if current == self._round_time and user.round == self._round else 0
            self._only_since = self._only_began
        elif (
            self._only_turns >= self._limits.turns_per_round
            or self._only_began - self._only_since > self._limits.crowd_round
        ):
            return False
        self._only_turns += 1
        return True

    def went(self, clients: int = 0) -> None:
        """The turn that :meth:`may_go` allowed has ended: that of a client, or one spent on so many."""
        if self._only is not None:
            if monotonic() - self._only_began > self._limits.crowd_turn:
                self._only = None  # its turns have to be looked at more closely
            return
        user, self._goes = self._goes, None
        if user is None:
            return
        took = thread_time() - self._began
        user.spent += took
        self._ended = monotonic()
        limits = self._limits
        credit = user.credit + took * limits.crowd_patience
        user.credit = credit if credit < limits.crowd_remembered else limits.crowd_remembered
        if self.crowded:
            weight = self._heft(user) / self._lightest
            if weight < 1.0:
                weight = 1.0
            if clients > 1 and self._is_beside_others(user):
                weight *= 1 + log2(clients)
            had = user.had + took * weight
            longest = self._least + limits.crowd_longest
            user.had = had if had < longest else longest
        dear = took > limits.crowd_turn or (self._most and user.uid in self._most)
        if dear and not clients and user.uid != DOOR:  # for the others it would change nothing
            self._adapt(user.uid, took)
        if not self.crowded and len(self._users) == 1 and not user.waiting and not self._most:
            self._only = user

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
            only.busy = max(only.busy, self._only_began)
        if current != self._round_time:
            self._begin_round(current)
        if only is not None and self._only_round == current:  # what it had of this round already
            if only.round != self._round:
                self._begin_turns(only, 0)
            only.turns = self._only_turns
            only.spent += monotonic() - self._only_since

    def _begin_round(self, current: float) -> None:
        # The loop's time tells rounds apart, and no more: it is that of the wall, which somebody may set.
        self._round_time = current
        now = monotonic()
        idle = now - max(self._ended, self._now)
        if idle < self._limits.crowd_slack:
            idle = 0.0  # the loop's own work, between two rounds in which there are turns
        self._now = now
        last = self._round
        self._round = last + 1
        least = lightest = inf
        forgotten = []
        for user in self._users.values():
            if not user.waiting:
                if user.round < last and user.busy < now - self._limits.crowd_remembered:
                    forgotten.append(user.uid)
                    continue
                user.credit = max(0.0, user.credit - idle)
                if not self._is_awaited(user):
                    continue
            if (heft := self._heft(user)) < lightest:
                lightest = heft
            if user.had < least:
                least = user.had
        for uid in forgotten:
            del self._users[uid]
            self._most.pop(uid, None)
        self.crowded = len(self._users) > 1
        if self.crowded and least < inf:
            self._least, self._lightest = max(self._least, least), lightest
        elif not self.crowded:
            self._least = 0.0
            for user in self._users.values():
                user.had = 0.0

    def _is_awaited(self, user: _User) -> bool:
        """Whether others are held back for a user of whom nothing waits. It is no use to sleep for less than a nap."""
        return user.credit >= self._limits.crowd_nap

    def _heft(self, user: _User) -> float:
        if user.uid == DOOR:
            return self._limits.crowd_door
        heft = 1 + log2(len(user.waiting) or 1)
        if user.uid in self._offences:
            heft *= 1 + log2(1 + self._unforgotten(user.uid, self._now))
        return heft

    def offended(self, uid: int) -> None:
        """A client of this user broke the protocol: its turns count more, for a while."""
        now = monotonic()
        if uid in self._offences and self._unforgotten(uid, now):
            count, since = self._offences[uid]
            self._offences[uid] = count + 1, since
            return
        for other in list(self._offences):
            self._unforgotten(other, now)
        self._offences[uid] = 1, now

    def _unforgotten(self, uid: int, now: float) -> int:
        """How many offences of a user still count: half of them are forgotten every so often."""
        count, since = self._offences[uid]
        pardon = self._limits.crowd_pardon
        if halves := int(min((now - since) / pardon, count.bit_length())):
            count >>= halves
            if count:
                self._offences[uid] = count, since + halves * pardon
            else:
                del self._offences[uid]
        return count

    def _is_beside_others(self, user: _User) -> bool:
        """Whether others have turns in the same rounds, or wait for one: only they wait for this user's."""
        recent = self._round - 1
        return any(other is not user and (other.waiting or other.round >= recent) for other in self._users.values())

    def _is_due(self, user: _User) -> bool:
        """Whether no other busy user has had less than this one."""
        return user.had <= self._least + self._limits.crowd_slack

    def postpone(self, account: Account, resume: Callable[[], None]) -> None:
        """Call ``resume`` in one of the next rounds: a client's socket is no longer watched until then.

        It is to have its turn at once: if it only watched again, whoever goes on working would always be before it.
        By then that client may have been closed.
        """
        if self._only is not None:
            self._look_at_the_clock()
        user = self._users.get(account.uid) or self._meet(account.uid)
        user.waiting.append(resume)
        if self._resuming is None:
            self._look_again(0.0)
        elif self._napping and any(self._is_due(user) for user in self._users.values() if user.waiting):
            self._end_timer()  # somebody's time has come sooner than it seemed
            self._look_again(0.0)

    def _look_again(self, seconds: float) -> None:
        # A timer and no callback of the loop: callbacks that ask for more of themselves run in the same round.
        self._napping = seconds > 0
        self._resuming = self._loop.timer(seconds)
        self._resuming.start(self._resume, update=False)

    def _resume(self) -> None:
        self._look_at_the_clock()
        self._end_timer()
        limits = self._limits
        most = limits.crowded_turns if self.crowded else limits.turns_per_round
        nap = inf
        try:
            for user in [user for user in self._users.values() if user.waiting]:
                if self.crowded and not self._is_due(user):
                    nap = min(nap, user.had - self._least)
                    continue
                nap = 0.0
                turns = user.turns if user.round == self._round else 0
                for _ in range(min(most - turns, len(user.waiting))):
                    # Who came too late for this round would else go to the end of the queue, again and again.
                    if not user.waiting or (user.round == self._round and user.spent > limits.crowd_round):
                        break
                    user.waiting.popleft()()
        finally:
            if self._resuming is None and self.anybody_waits():
                self._look_again(self._nap(nap) if 0.0 < nap < inf else 0.0)

    def _nap(self, until_due: float) -> float:
        """How long to sleep while none who waits is due: until one is, or is not held back for anybody any more."""
        awaited = [user.credit for user in self._users.values() if not user.waiting and self._is_awaited(user)]
        return max(self._limits.crowd_nap, min(until_due, *awaited, self._limits.crowd_remembered))

    def _end_timer(self) -> None:
        if self._resuming is not None:
            self._resuming.close()
            self._resuming = None

    def anybody_waits(self) -> bool:
        """Whether a turn was postponed and has not come yet."""
        return any(user.waiting for user in self._users.values())

    def close(self) -> None:
        """Resume nobody any more."""
        for user in self._users.values():
            user.waiting.clear()
        self._end_timer()
