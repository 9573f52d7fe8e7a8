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

__all__ = ["Lead", "WaitableCondition", "time_left"]


def time_left(deadline: float | None) -> float | None:
    """The seconds until a time of ``time.monotonic``, at least 0; ``None`` for ever."""
    return None if deadline is None else max(0.0, deadline - monotonic())


class WaitableCondition(AbstractContextManager[object], Protocol):
    """What :class:`threading.Condition` can do, and the same for greenlets."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Lead:
    """The lead among threads or greenlets."""

    def __init__(self, condition: WaitableCondition) -> None:
        self.condition = condition
        """Held while the lead changes hands, and by the client for changes that go with that."""
        self.taken = False
        self._followers = 0  # callers that wait for the lead

    def take(self, ready: Callable[[], bool], check: Callable[[], None], deadline: float | None) -> bool:
        """Wait until ``ready()`` holds or the lead is free. ``True``: the caller has the lead, and must give it back.

        ``check()`` raises where there is nothing to wait for. Raises :exc:`TimeoutError` at the deadline.
        """
        with self.condition:
            while not ready():
                check()
                if not self.taken:
                    self.taken = True
                    return True
                self._followers += 1
                try:
                    in_time = self.condition.wait(time_left(deadline))
                finally:
                    self._followers -= 1
                if not in_time:
                    raise TimeoutError
            return False

    def give_back(self) -> None:
        """Let another caller read, and all others look whether they have what they wait for."""
        with self.condition:
            self.taken = False
            if self._followers:
                self.condition.notify_all()
