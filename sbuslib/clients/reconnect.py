"""Pauses between attempts to connect.

Pauses between attempts have decorrelated jitter, so that many clients that lost the same hub do not come back in step:
each pause is drawn at random between the shortest pause and three times the last one, up to the longest. Source: Marc
Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import random
from typing import Final

from ..errors import NoHubError

CONNECT_PAUSE: Final = 0.001
"""Seconds before the second attempt to connect to a hub whose listen backlog is full; the pauses grow from there. A hub
accepts some ten connections in that time."""

CONNECT_PAUSE_MOST: Final = 0.05
"""Longest pause between two of these attempts, in seconds."""

MEMORY_PAUSE: Final = 0.05
"""Seconds before a client sends again for which the kernel had no memory. The kernel calls the socket writable all the
while, so there is nothing to wait for but time."""


NOBODY_PAUSE_MOST: Final = 0.2
"""Longest pause between two attempts while no hub listens, in seconds. A hub that was just started waits about half a
second for subscribers (:attr:`~sbuslib.limits.Limits.settle`). To find that nobody listens costs little."""


class Backoff:
    """The pauses of one series of attempts, in seconds, between ``shortest`` and ``longest``."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = self._last = shortest
        self._longest = longest

    def next(self) -> float:
        """Return the pause before the next attempt."""
        pause = self._last
        self._last = min(self._longest, random.uniform(self._shortest, self._last * 3))
        return pause

    def reset(self) -> None:
        """Note a success: the next series starts with the shortest pause."""
        self._last = self._shortest


class Reconnecting:
    """Pauses of one client before it connects again.

    There is none if the last connection brought any message. Otherwise there is one: a hub may greet a client and kick
    it for the subscriptions that it restores, again and again. While no hub listens, pauses stay short.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self._backoff = Backoff(shortest, longest)  # the pauses
        self.was_useful = False
        """Whether anything came over the connection since it was brought to the client's state."""
        self._nobody = False  # whether no hub listened at the last attempt

    def failed(self, error: Exception) -> None:
        """Note a failed attempt."""
        self._nobody = isinstance(error, NoHubError)

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        if self._nobody:
            return min(NOBODY_PAUSE_MOST, self._backoff.next())
        if not self.was_useful:
            return self._backoff.next()
        self.was_useful = False
        self._backoff.reset()
        return 0.0
