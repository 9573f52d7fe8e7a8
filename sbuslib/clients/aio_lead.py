"""The lead among the tasks of one event loop, see :mod:`~sbuslib.clients.lead`; and how long a task waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

from .lead import Lead

__all__ = ["TaskLead"]

LONGEST: Final = 60.0
"""Seconds after which the timer looks at the latest: it may outlive a client that waited with a long timeout."""


class _Waiter:
    """What one task waits with, once."""

    __slots__ = ("woken",)

    def __init__(self) -> None:
        self.woken: asyncio.Future[bool | None] = asyncio.Future()  # of the running loop; to ask for it takes longer

    def wake(self) -> None:
        if not self.woken.done():  # the task may be cancelled, and not know yet
            self.woken.set_result(True)


class TaskLead(Lead[_Waiter]):
    """The lead among tasks. One timer looks after the deadlines of all that wait, as hardly any of them comes."""

    def __init__(self) -> None:
        super().__init__(_Waiter)
        self._deadlines: dict[asyncio.Future[bool | None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = inf

    async def take(self, ready: Callable[[], bool], check: Callable[[], None], deadline: float | None) -> bool:
        """As :meth:`.lead.BlockingLead.take`."""
        found = self.look(None, ready, check)
        while not isinstance(found, bool):
            try:
                await self.wait(found.woken, deadline)
            except BaseException:
                self.leave(found)
                raise
            found = self.look(found, ready, check)
        return found

    async def wait(self, future: asyncio.Future[bool | None], deadline: float | None) -> bool:
        """Wait for what a future brings. Raises :exc:`TimeoutError` at the deadline."""
        if deadline is not None:
            if deadline <= monotonic():
                await asyncio.sleep(0)  # a task that asks again and again does not keep others from running
                raise TimeoutError
            self._deadlines[future] = deadline
            if deadline < self._rings_at:
                self._ring_at(deadline)
        try:
            result = await future
        finally:
            self._deadlines.pop(future, None)
        if result is None:
            raise TimeoutError
        return result

    def _ring_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = when
        self._timer = asyncio.get_running_loop().call_later(min(when - monotonic(), LONGEST), self._ring)

    def _ring(self) -> None:
        """Let those go on whose time is over."""
        self._timer, self._rings_at = None, inf
        now = monotonic()
        for future, deadline in list(self._deadlines.items()):
            if deadline <= now:
                del self._deadlines[future]
                if not future.done():
                    future.set_result(None)
        if self._deadlines:
            self._ring_at(min(self._deadlines.values()))
