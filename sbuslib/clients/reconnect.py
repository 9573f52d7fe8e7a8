"""Pauses between attempts: decorrelated jitter, so that many who lost the same hub do not come back in step.

Each pause is drawn between the shortest and three times the one before, up to the longest. Source: the
"decorrelated jitter" of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """The pauses of one series of attempts, in seconds, between ``shortest`` and ``longest``."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = self._last = shortest
        self._longest = longest

    def next(self) -> float:
        """How long to wait before the next attempt."""
        pause = self._last
        self._last = min(self._longest, random.uniform(self._shortest, self._last * 3))
        return pause

    def reset(self) -> None:
        """An attempt succeeded: the next series starts afresh."""
        self._last = self._shortest
