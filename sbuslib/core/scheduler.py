"""Turns shared out among users: a user gains little by opening a thousand connections.

This is start-time fair queueing (Goyal, Vin and Cheng 1996), with which CFS shares out a processor. Each user has a
*tag*: the seconds of the hub that it has had. Clients that are ready wait in one queue for each user, and the user with
the least tag goes next. The time of its turn is added to its tag. The tag of the user whose turn it is is the *virtual
time*. A user that becomes busy starts with the virtual time, or with its own tag if that is greater. So a user gains
nothing by being idle, and all users that always have work get the same time, to within one turn.

Two rules are added. A user's time counts 1 + log2(n) times while n of its clients wait, so a user that floods the hub
from many clients gets less. And a client that answers at once is not in a queue when the next turn is given. So, as
anticipatory disk schedulers do (Iyer and Druschel 2001; ``slice_idle`` of BFQ), the hub waits a moment for the user
that just had a turn, if it still has the least tag, and counts the wait as time of that user.

A turn handles the packets of one receive call, or sends once to a client that did not take its packets at once, or does
other work for a user. While the clients of only one user are connected and no turn waits, none of this happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf, log2
from time import monotonic, thread_time
from typing import Any, Final

__all__ = ["ACCEPTOR", "Scheduler"]

ACCEPTOR: Final = -1
"""The user id that stands for the listening socket: the user that connects there is not known yet."""

_ACCEPTOR_WEIGHT: Final = 4.0
"""How many times the time of accepting counts. So it takes a fifth of the hub beside one busy client, however many
connect, and a full listen backlog of 4,096 is accepted in a third of a second."""
_ANTICIPATION: Final = 0.002
"""Seconds to wait for the user that just went. A publisher on a busy machine may need that long to run again."""
_NAP: Final = 0.0005
"""Fewest seconds that are worth waiting. The event loop sleeps for a millisecond at least, so a shorter wait would cost
the awaited user more than it could gain."""
_SLICE: Final = 0.0002
"""Seconds of turns after which the sockets are looked at again. A client that became ready is noticed after that time
at most. Looking costs some microseconds: a few in a hundred of that time."""


class _Share:
    """What the scheduler knows of a user."""

    __slots__ = ("tag", "uid", "waiting")

    def __init__(self, uid: int, tag: float) -> None:
        self.uid = uid
        self.tag = tag  # weighted seconds of turns
        self.waiting: deque[Callable[[], None]] = deque()


class Scheduler:
    """Chooses the user that has the next turn in an event loop. ``loop`` is gevent's."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._shares: dict[int, _Share] = {}  # of users that wait, or whose tag is above the virtual time
        self._queue: list[tuple[float, int, _Share]] = []  # a heap: users with waiting clients, by tag, then by arrival
        self._arrivals = 0
        self._virtual = 0.0  # the tag of the user that went last
        self._running: _Share | None = None  # whose turn it is
        self._clients = 1  # how many clients the turn at hand serves
        self._began = 0.0  # the turn at hand, by the processor time of this thread
        self._ended = 0.0  # the last turn, by the clock
        self._resuming = False  # whether the turn at hand was postponed before
        self._round = 0.0  # the loop's time, which is the same throughout a round
        self._spent = 0.0  # seconds of turns in that round
        self._awaited: _Share | None = None  # the user that the hub waits for
        self._until = 0.0  # when the wait for it ends
        # Of the lowest priority: a timer of the usual one is called before the sockets that are ready in its round.
        self._next_round = loop.timer(0.0, priority=loop.MINPRI)
        self._alarm: Any = None  # ends a wait
        self._closed = False
        self.several = False
        """Whether clients of more than one user are connected. The hub sets this."""

    def may_go(self, uid: int) -> bool:
        """Whether a client of this user may have its turn now. If so, :meth:`went` must follow; else postpone it."""
        # While turns wait, of whatever user, all go by their tags: the next connection may be that of another user.
        if self._resuming or not (self.several or self._queue):
            return True
        if self._running is not None:
            self._end(self._running)  # its turn failed
        share = self._arrive(uid)
        now = self._loop.now()
        if now != self._round:
            self._round, self._spent = now, 0.0
        if share.waiting or self._spent >= _SLICE or not self._is_least(share):
            return False
        self._stop_waiting()
        self._begin(share)
        return True

    def went(self) -> None:
        if self._running is not None and not self._resuming:
            share = self._running
            self._end(share)
            if self._queue:
                self._anticipate(share)

    def charge(self, uid: int, seconds: float) -> None:
        """Count time that was spent on behalf of a user in a turn that was not its own."""
        share = self._shares.get(uid)
        if share is None:
            share = self._shares[uid] = _Share(uid, self._virtual)
        share.tag = max(share.tag, self._virtual) + seconds

    def serves(self, clients: int) -> None:
        """The turn at hand is a fan-out to so many clients of its user. Its time counts as if they all waited."""
        self._clients = clients

    def postpone(self, uid: int, resume: Callable[[], None]) -> None:
        """Call ``resume`` when it is this user's turn, in this round of the loop or a later one.

        ``resume`` has to do the work, and not watch a socket again: others would always be before it. The client may
        have been closed by then. After :meth:`close` nothing is called any more.
        """
        if self._closed:
            return
        share = self._arrive(uid)
        share.waiting.append(resume)
        if len(share.waiting) == 1 and share is not self._running:
            self._enqueue(share)
        if self._awaited is None or share.tag < self._awaited.tag:
            self._look_soon()

    def anybody_waits(self) -> bool:
        return any(share.waiting for share in self._shares.values())

    def close(self) -> None:
        """Give no more turns, and forget those that wait."""
        self._closed = True
        for share in self._shares.values():
            share.waiting.clear()
        self._queue.clear()
        self._awaited = None
        self._end_alarm()
        self._next_round.close()

    # -- tags ---------------------------------------------------------------------------------------

    def _arrive(self, uid: int) -> _Share:
        if not self._queue and self._running is None and monotonic() - self._ended > _ANTICIPATION:
            self._shares.clear()  # nobody was busy: all users start equal
            self._virtual, self._awaited = 0.0, None
        share = self._shares.get(uid)
        if share is None:
            share = self._shares[uid] = _Share(uid, self._virtual)
        elif share is self._awaited:
            self._stop_waiting()
        elif share.tag < self._virtual and not share.waiting:
            share.tag = self._virtual
        return share

    def _is_least(self, share: _Share) -> bool:
        if self._queue and self._queue[0][0] < share.tag:
            return False
        return len(self._shares) == 1 or self._least_absent(share) >= share.tag

    def _least_absent(self, but: _Share | None = None) -> float:
        """The least tag of users that went lately and have no waiting client: one of their clients may be ready by now.

        Users whose tag the virtual time has passed are forgotten: they would start with it anyway.
        """
        least, passed = inf, []
        for share in self._shares.values():
            if share.waiting or share is but:
                continue
            if share.tag <= self._virtual:
                passed.append(share.uid)
            elif share.tag < least:
                least = share.tag
        for uid in passed:
            del self._shares[uid]
        return least

    def _enqueue(self, share: _Share) -> None:
        self._arrivals += 1
        heappush(self._queue, (share.tag, self._arrivals, share))

    def _begin(self, share: _Share) -> None:
        self._running = share
        self._clients = 1
        self._virtual = share.tag
        self._began = thread_time()

    def _end(self, share: _Share) -> None:
        took = thread_time() - self._began
        self._running = None
        self._ended = monotonic()
        self._spent += took
        waiting = len(share.waiting)
        share.tag += took * (_ACCEPTOR_WEIGHT if share.uid == ACCEPTOR else 1 + log2(max(waiting, self._clients)))
        if waiting:
            self._enqueue(share)

    # -- anticipation -------------------------------------------------------------------------------

    def _anticipate(self, share: _Share) -> bool:
        """Wait for the user that just went, if its tag is still the least. Returns whether to look at the sockets."""
        lag = self._queue[0][0] - share.tag
        if share.waiting or lag <= 0.0:
            self._look_soon()
            return False
        self._next_round.stop()  # else it may be called in this round, before the sockets are looked at
        if lag < _NAP or share.uid == ACCEPTOR:
            self._look_soon()
        else:
            self._awaited = share
            self._until = self._ended + min(lag, _ANTICIPATION)
            if self._alarm is None:  # else it ends earlier, and _wake_up sets it again
                self._set_alarm(self._until - self._ended)
        return True

    def _stop_waiting(self) -> None:
        """Count the wait for a user as its time."""
        if self._awaited is not None:
            # A process that was stopped meanwhile did not wait all that time.
            self._awaited.tag += min(monotonic() - self._ended, _ANTICIPATION)
            self._awaited = None

    # -- giving turns -------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        """Look at the sockets, wait for none of them, and then give turns."""
        self._stop_waiting()
        if not self._closed:
            self._next_round.start(self._give_turns, update=False)

    def _set_alarm(self, seconds: float) -> None:
        self._alarm = self._loop.timer(seconds, priority=self._loop.MINPRI)
        self._alarm.start(self._wake_up, update=True)

    def _end_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def _wake_up(self) -> None:
        self._end_alarm()
        if self._awaited is None:
            if self._queue:
                self._look_soon()
        elif (left := self._until - monotonic()) > 0:
            self._set_alarm(left)
        else:
            self._give_turns()

    def _give_turns(self) -> None:
        """Give turns to clients that wait, those of the user with the least tag first, for a slice of time."""
        self._next_round.stop()
        self._stop_waiting()
        if self._running is not None:
            self._end(self._running)  # its turn failed
        now = self._loop.now()
        if now != self._round:
            self._round, self._spent = now, 0.0
        try:
            while self._queue:
                tag, _, share = heappop(self._queue)
                if tag < share.tag:  # it was charged while it waited
                    self._enqueue(share)
                    continue
                self._begin(share)
                self._resuming = True
                try:
                    share.waiting.popleft()()
                finally:
                    self._resuming = False
                    self._end(share)
                if not self._queue or self._anticipate(share):
                    break
                if self._spent >= _SLICE or self._queue[0][0] > self._least_absent():
                    break
        finally:
            if self._queue and self._awaited is None:
                self._look_soon()
