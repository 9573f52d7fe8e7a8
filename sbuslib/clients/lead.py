"""The lead: which of the callers that wait for one client reads its connection.

Several threads, greenlets or tasks may wait for the same client. One of them takes the lead. It reads for all, until it
has what it waits for, and then gives the lead back to the next. Nobody reads while nobody waits. So the packets of a
client that does not receive stay in the kernel, where the hub sees that they pile up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic
from typing import Protocol

__all__ = ["Lead", "Waiter", "time_left"]


def time_left(deadline: float | None) -> float | None:
    """The seconds until a time of ``time.monotonic``, at least 0; ``None`` for ever."""
    return None if deadline is None else max(0.0, deadline - monotonic())


class Waiter(Protocol):
    """What one caller waits with, once: for a wake-up by another one."""

    def wake(self) -> None: ...

    async def wait(self, timeout: float | None) -> bool:
        """Wait; ``False`` after ``timeout`` seconds."""


class Lead:
    """The lead among callers: who is chosen to read, who is woken, and what if one gives up.

    :param lock: to be held while the lead changes hands, and by the client for changes that go with that. A thread that
        holds it may take it again.
    """

    def __init__(self, lock: AbstractContextManager[object], make_waiter: Callable[[], Waiter]) -> None:
        self.lock = lock  # see above
        self.taken = False  # whether a caller has the lead
        self._make_waiter = make_waiter
        self._followers: dict[Waiter, Callable[[], bool]] = {}  # who waits for the lead, and until what holds
        self._chosen: Waiter | None = None  # of who was woken to read, and has not come yet

    async def take(self, ready: Callable[[], bool], check: Callable[[], None], deadline: float | None) -> bool:
        """Wait until ``ready()`` holds or the lead is free. ``True``: the caller has the lead, and must give it back.

        Other callers call ``ready``, too. ``check()`` raises where there is nothing to wait for. Raises
        :exc:`TimeoutError` at the deadline.
        """
        with self.lock:
            found = self._look(None, ready, check)

        while not isinstance(found, bool):
            in_time = False
            try:
                in_time = await found.wait(time_left(deadline))
            finally:
                if not in_time:
                    with self.lock:
                        self._leave(found)

            if not in_time:
                raise TimeoutError
            with self.lock:
                found = self._look(found, ready, check)
        return found

    async def rest(self, seconds: float) -> bool:
        """With the lead: wait. Whether :meth:`wake_all` ended that before its time."""
        waiter = self._make_waiter()
        with self.lock:
            self._followers[waiter] = lambda: False  # nobody is chosen while the lead is taken
        try:
            return await waiter.wait(seconds)
        finally:
            with self.lock:
                self._followers.pop(waiter, None)

    def _look(self, waiter: Waiter | None, ready: Callable[[], bool], check: Callable[[], None]) -> Waiter | bool:
        """``False`` if ``ready()`` holds, ``True`` if the caller has the lead now; else what it waits with."""
        was_chosen = waiter is not None and self._chosen is waiter
        if was_chosen:
            self._chosen = None
        try:
            if ready():
                return False
            check()
            if not self.taken:
                self.taken = True
                return True
        finally:
            if was_chosen:
                self._choose()  # unless this one reads now
        waiter = self._make_waiter()
        self._followers[waiter] = ready
        return waiter

    def _leave(self, waiter: Waiter) -> None:
        """A caller waits no more. If it was just chosen to read, another one has to."""
        self._followers.pop(waiter, None)
        if self._chosen is waiter:
            self._chosen = None
            self._choose()

    def give_back(self) -> None:
        """Let another caller read, and those go on that have what they wait for."""
        self.taken = False  # whether a caller has the lead
        if self._followers:
            for waiter in [waiter for waiter, ready in self._followers.items() if ready()]:
                del self._followers[waiter]
                waiter.wake()
            self._choose()

    def _choose(self) -> None:
        """Wake one that waits, so that it reads; unless somebody does, or one was woken for it already."""
        if not self.taken and self._chosen is None and self._followers:
            self._chosen = waiter = next(iter(self._followers))
            del self._followers[waiter]
            waiter.wake()

    def abandon(self) -> None:
        """Those who read and wait are gone, with their event loop."""
        self.taken = False  # whether a caller has the lead
        self._followers.clear()

    def wake_all(self) -> None:
        """Let all who wait look whether there is still something to wait for."""
        followers, self._followers = self._followers, {}
        for waiter in followers:
            waiter.wake()
