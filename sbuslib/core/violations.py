"""Misbehaviour, told once and counted after: what keeps a hostile client from filling the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

__all__ = ["Breaches"]


class Breaches:
    """Counts breaches by reason, and says which of them to log: the first of each reason and culprit."""

    def __init__(self, remembered: int) -> None:
        self.counts: Counter[str] = Counter()
        self._remembered = remembered
        self._told: set[tuple[str, Hashable]] = set()

    def note(self, reason: str, who: Hashable) -> bool:
        """Count one breach of ``who``, such as the id of a user; ``True`` when it is to be logged."""
        self.counts[reason] += 1
        if (reason, who) in self._told or len(self._told) >= self._remembered:
            return False
        self._told.add((reason, who))
        return True
