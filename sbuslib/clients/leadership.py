"""Leader and followers: of the callers that wait for one client, the leader reads its connection.

Several threads, greenlets or tasks may wait for the same client. One of them takes the leadership. It reads for all,
until its own wait is over, and then gives the lead back to the next. Nobody reads while nobody waits. So the packets of
a client that does not receive stay in the kernel, where the hub notices that they pile up.

An exception of a signal handler may come between any two steps. So nothing here counts on a step that gives something
back: each caller waits inside of ``with alive:``, a lock of its own that nobody waits for, and that Python releases
however the caller goes on. A leader, or a caller that was chosen to lead, leads while its lock is locked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock
from time import monotonic
from typing import Protocol

from ..errors import StateError


def time_left(deadline: float | None) -> float | None:
    """The seconds until a time of ``time.monotonic``, at least 0; ``None`` for ever."""
    return None if deadline is None else max(0.0, deadline - monotonic())


def earliest(*deadlines: float | None) -> float | None:
    """The first of some times of ``time.monotonic``, of which ``None`` never comes."""
    return min((each for each in deadlines if each is not None), default=None)


class Waiter(Protocol):
    """Wait of one caller, used once: another caller wakes it."""

    def wake(self) -> None: ...

    async def wait(self, timeout: float | None) -> bool:
        """Wait; ``False`` after ``timeout`` seconds."""


class LeaderFollowers:
    """The lead among callers: chooses the one that reads, wakes others, and goes on when one gives up.

    :param lock: to be held while the lead changes hands, and by the client for changes that go with that. A thread that
        holds it may take it again.
    :param find_caller: identifies a caller that can wait for one thing at a time, for example a thread.
    """

    def __init__(
        self,
        lock: AbstractContextManager[object],
        make_waiter: Callable[[], Waiter],
        find_caller: Callable[[], object] = lambda: None,
    ) -> None:
        self.lock = lock  # see above
        self._make_waiter = make_waiter
        self._find_caller = find_caller
        self._leader: Lock | None = None  # of the caller that has the lead, while it is locked
        self._leading: object = None  # that caller, if it can be identified
        self._chosen: Lock | None = None  # of who was woken to read and has not come yet, while it is locked
        self._followers: dict[Waiter, tuple[Callable[[], bool], Lock]] = {}  # who waits, and until what holds

    @property
    def taken(self) -> bool:
        """Whether a caller has the leadership."""
        return self._leader is not None and self._leader.locked()

    def start(self, alive: Lock) -> None:
        """The caller has the lead, as the first one."""
        self._leader, self._leading = alive, self._find_caller()

    async def lead(
        self, alive: Lock, ready: Callable[[], bool], check: Callable[[], None], deadline: float | None
    ) -> bool:
        """Wait until ``ready()`` holds or the lead is free. ``True``: the caller leads, while ``alive`` is locked.

        After that, and after an exception, it has to call :meth:`pass_on`. Other callers call ``ready``, too.
        ``check()`` raises where there is nothing to wait for. Raises :exc:`TimeoutError` at the deadline, and
        :exc:`~sbuslib.errors.StateError` in a signal handler that interrupted the caller that has the leadership.
        """
        with self.lock:
            found = self._look(alive, ready, check)

        while not isinstance(found, bool):
            try:
                if not await found.wait(time_left(deadline)):
                    raise TimeoutError
            finally:
                with self.lock:
                    self._followers.pop(found, None)
            with self.lock:
                found = self._look(alive, ready, check)
        return found

    def _look(self, alive: Lock, ready: Callable[[], bool], check: Callable[[], None]) -> Waiter | bool:
        """``False`` if ``ready()`` holds, ``True`` if the caller has the lead now; else its waiter."""
        if self._chosen is alive:
            self._chosen = None
        while True:
            is_free = not self.taken  # before the check of the packets: after that nobody reads any more
            if ready():
                return False
            check()
            if is_free:
                self.start(alive)
                return True

            if self._leading is not None and self._leading == self._find_caller():
                raise StateError("a signal handler cannot wait for the client for which its own thread waits")
            waiter = self._make_waiter()
            self._followers[waiter] = ready, alive
            if self.taken:  # else it was given back meanwhile, and followers may not have been looked for since
                return waiter
            self._followers.pop(waiter, None)

    async def rest(self, seconds: float) -> bool:
        """With the lead: wait. Whether :meth:`wake_all` ended that before its time."""
        waiter, leader = self._make_waiter(), self._leader
        assert leader is not None
        with self.lock:
            self._followers[waiter] = lambda: False, leader  # nobody is chosen while the lead is taken
        try:
            return await waiter.wait(seconds)
        finally:
            with self.lock:
                self._followers.pop(waiter, None)

    def pass_on(self, *, has_read: bool = True) -> None:
        """A caller waits no more. Let another one read; if this ``has_read``, let those go on that have what they want.

        Each is woken first and forgotten then: after an exception in between it is only woken again.
        """
        if not self._followers:
            return
        with self.lock:
            if has_read:
                for waiter in [waiter for waiter, (ready, _) in list(self._followers.items()) if ready()]:
                    waiter.wake()
                    self._followers.pop(waiter, None)

            # One of the others reads, unless somebody does, or was woken for it already.
            if self.taken or (self._chosen is not None and self._chosen.locked()):
                return
            for waiter, (_, alive) in list(self._followers.items()):
                if is_waiting := alive.locked():
                    waiter.wake()
                    self._chosen = alive
                self._followers.pop(waiter, None)
                if is_waiting:
                    return

    def abandon(self) -> None:
        """Those who read and wait are gone, with their event loop."""
        self._leader = None  # whether or not its caller was ended
        self._followers.clear()

    def wake_all(self) -> None:
        """Let all who wait look whether there is still something to wait for."""
        for waiter in list(self._followers):
            waiter.wake()
            self._followers.pop(waiter, None)
