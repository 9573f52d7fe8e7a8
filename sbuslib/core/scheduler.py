"""Turns shared out among users: a user gains little by opening a thousand connections.

This is start-time fair queueing (Goyal, Vin and Cheng 1996), with which CFS shares out a processor. Each user has a
*tag*: the seconds of the hub that it has had. While clients of several users are connected, every turn waits in a queue
of its user until all sockets that are ready were seen. Then the user with the least tag goes, and so on for a slice of
time. The time of a turn is added to the tag of its user. The tag of the user whose turn it is is the *virtual time*. A
user that becomes busy starts with the virtual time, or with its own tag if that is greater. So a user gains nothing by
being idle, and all users that always have work get the same time, to within one turn.

A user's time counts 1 + log2(n) times while n of its clients wait, so a user that floods the hub from many clients gets
less. A client that answers at once is not in a queue when the next turn is given. So the sockets are looked at again
before a user goes that has had more time. If its client is not ready by then, it waits for one turn of another.

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

ACCEPTOR: Final = -1
"""The user id that stands for the listening socket: the user that connects there is not known yet."""

_ACCEPTOR_WEIGHT: Final = 4.0
"""How many times the time of accepting counts. So it takes a fifth of the hub beside one busy client, however many
connect, and a full listen backlog of 4,096 is accepted in a third of a second."""
_IDLE: Final = 0.002
"""Seconds without a turn after which all users start equal. A publisher on a busy machine may need that long to run
again."""
_SLICE: Final = 0.0002
"""Seconds of turns after which the sockets are looked at again. A client that became ready is noticed after that time
at most. Looking costs some microseconds: a few in a hundred of that time."""


class _Share:
    """The scheduler's state of a user."""

    __slots__ = ("tag", "uid", "waiting")

    def __init__(self, uid: int, tag: float) -> None:
        self.uid = uid
        self.tag = tag  # weighted seconds of turns
        self.waiting: deque[Callable[[], None]] = deque()


class Scheduler:
    """Chooses the user that has the next turn in an event loop. ``loop`` is gevent's."""

    def __init__(self, loop: Any) -> None:
        self._shares: dict[int, _Share] = {}  # of users that wait, or whose tag is above the virtual time
        self._queue: list[tuple[float, int, _Share]] = []  # a heap: users with waiting clients, by tag, then by arrival
        self._arrivals = 0
        self._virtual = 0.0  # the tag of the user that went last
        self._running: _Share | None = None  # whose turn it is
        self._clients = 1  # how many clients the turn at hand serves
        self._ended = 0.0  # the last turn, by the clock
        # Of the lowest priority: a timer of the usual one is called before the sockets that are ready in its round.
        self._next_round = loop.timer(0.0, priority=loop.MINPRI)
        self._closed = False  # no turns are given any more
        self.several = False
        """Whether clients of more than one user are connected. The hub sets this."""

    def may_go(self) -> bool:
        """Whether a client may have its turn now; else postpone it."""
        # While turns wait, of any user, all go by their tags: the next connection may be that of another user.
        return self._running is not None or not (self.several or self._queue)

    def charge(self, uid: int, seconds: float) -> None:
        """Count time that was spent on behalf of a user in a turn that was not its own."""
        share = self._share(uid)
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
        if not self._queue and self._running is None and monotonic() - self._ended > _IDLE:
            self._shares.clear()
            self._virtual = 0.0
        share = self._share(uid)
        share.waiting.append(resume)
        if len(share.waiting) == 1 and share is not self._running:
            share.tag = max(share.tag, self._virtual)
            self._enqueue(share)
        if self._running is None:
            self._next_round.start(self._give_turns, update=False)

    def anybody_waits(self) -> bool:
        return any(share.waiting for share in self._shares.values())

    def close(self) -> None:
        """Give no more turns, and forget those that wait."""
        self._closed = True
        for share in self._shares.values():
            share.waiting.clear()
        self._queue.clear()
        self._next_round.close()

    def _share(self, uid: int) -> _Share:
        share = self._shares.get(uid)
        if share is None:
            share = self._shares[uid] = _Share(uid, self._virtual)
        return share

    def _enqueue(self, share: _Share) -> None:
        self._arrivals += 1
        heappush(self._queue, (share.tag, self._arrivals, share))

    def _give_turns(self) -> None:
        """Give turns to clients that wait, those of the user with the least tag first, for a slice of time."""
        self._next_round.stop()
        began = now = thread_time()
        absent = inf  # the least tag of users that went and have no waiting client
        try:
            while self._queue:
                tag, _, share = heappop(self._queue)
                if tag < share.tag:  # it was charged while it waited
                    self._enqueue(share)
                    continue

                # 1. A turn. What it raises, the event loop prints, and goes on.
                self._running, self._virtual, self._clients = share, tag, 1
                started = now
                try:
                    share.waiting.popleft()()
                finally:
                    now, self._ended, self._running = thread_time(), monotonic(), None
                    many = 1 + log2(max(len(share.waiting), self._clients))
                    share.tag += (now - started) * (_ACCEPTOR_WEIGHT if share.uid == ACCEPTOR else many)
                    if share.waiting:
                        self._enqueue(share)

                # 2. Its client may answer at once: look at the sockets before a user goes that has had more.
                if not share.waiting:
                    absent = min(absent, share.tag)
                if now - began >= _SLICE or (self._queue and self._queue[0][0] > absent):
                    break
        finally:
            if not self._queue:
                # Those that the virtual time has passed would start with it anyway.
                self._shares = {uid: share for uid, share in self._shares.items() if share.tag > self._virtual}
            elif not self._closed:
                self._next_round.start(self._give_turns, update=False)
