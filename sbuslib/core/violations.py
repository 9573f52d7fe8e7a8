"""Violations of clients, counted by reason. Code that logs one asks here whether it is the first.

So a hostile client cannot fill the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class Violations:
    """Counts violations by reason, and chooses those to log: the first of each reason and user.

    :param counts: where they are counted.
    """

    def __init__(self, remembered: int, counts: dict[str, int] | None = None) -> None:
        self.counts: dict[str, int] = Counter() if counts is None else counts  # by reason
        self._remembered = remembered
        self.repeats: dict[tuple[str, Hashable], int] = {}
        """How many since the first was logged, that one included, by reason and by whom; ``None``: by others."""

    def note(self, reason: str, who: Hashable, times: int = 1) -> bool:
        """Count violations of ``who``, for example a user's id; ``True`` when the first has to be logged."""
        self.counts[reason] = self.counts.get(reason, 0) + times
        which = reason, who
        if is_first := which not in self.repeats and len(self.repeats) < self._remembered:
            self.repeats[which] = times
        elif which in self.repeats:
            self.repeats[which] += times
        else:
            self.repeats[reason, None] = self.repeats.get((reason, None), 0) + times
        return is_first

    def forget(self, reason: str, who: Hashable) -> None:
        """The repeats were summed up: the next one is to be logged again."""
        self.repeats.pop((reason, who), None)
