"""Violations of clients, counted by reason. Code that logs one asks here whether it is the first.

So a hostile client cannot fill the log. Nor can many keep others out of it: once as many are remembered as may be, one
further is logged in a minute, and those of users that the owner named always are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

OTHERS_PAUSE: Final = 60.0
"""Seconds from one violation to the next that is logged, of those that are not remembered one by one."""


class Violations:
    """Counts violations by reason, and chooses those to log: the first of each reason and user.

    :param counts: where they are counted.
    :param is_named: whether the owner named a user: its violations are always remembered.
    :param clock: the time in seconds; ``None``: none is logged that is not remembered.
    """

    def __init__(
        self,
        remembered: int,
        counts: dict[str, int] | None = None,
        is_named: Callable[[int], bool] = lambda uid: False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.counts: dict[str, int] = Counter() if counts is None else counts  # by reason
        self._remembered = remembered
        self._is_named = is_named
        self._clock = clock
        self._logged_at = -OTHERS_PAUSE  # one that is not remembered, by this clock
        self.repeats: dict[tuple[str, Hashable], int] = {}
        """How many since the first was logged, that one included, by reason and by whom; ``None``: by others."""

    def note(self, reason: str, who: Hashable, times: int = 1) -> bool:
        """Count violations of ``who``, for example a user's id; ``True`` when the first has to be logged."""
        self.counts[reason] = self.counts.get(reason, 0) + times
        which = reason, who
        if which in self.repeats:
            self.repeats[which] += times
            return False
        if len(self.repeats) < self._remembered or (isinstance(who, int) and self._is_named(who)):
            self.repeats[which] = times
            return True

        self.repeats[reason, None] = self.repeats.get((reason, None), 0) + times
        if self._clock is None or self._clock() - self._logged_at < OTHERS_PAUSE:
            return False
        self._logged_at = self._clock()
        return True

    def forget(self, reason: str, who: Hashable) -> None:
        """The repeats were summed up: the next one is to be logged again."""
        self.repeats.pop((reason, who), None)
