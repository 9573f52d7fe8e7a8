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
        self._logged: set[tuple[str, Hashable]] = set()  # by reason, and by whom

    def note(self, reason: str, who: Hashable, times: int = 1) -> bool:
        """Count violations of ``who``, for example a user's id; ``True`` when the first has to be logged."""
        self.counts[reason] = self.counts.get(reason, 0) + times
        if (reason, who) in self._logged or len(self._logged) >= self._remembered:
            return False
        self._logged.add((reason, who))
        return True
