"""The messages that one receiver lost: counted by cause, and told to the receiver in reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeAlias

__all__ = ["CAUSES", "Cause", "Losses", "Report"]

Cause: TypeAlias = Literal["discard", "overflow", "quota", "oversize", "outage"]

CAUSES: tuple[Cause, ...] = ("discard", "overflow", "quota", "oversize", "outage")
"""Why a message did not reach one of its receivers. ``oversize``: longer than the receiver's connection takes;
``outage``: the receiver went away before it was sent."""

Report: TypeAlias = tuple[Cause, int, float]
"""A cause, how many messages were lost for it, and since when, in seconds since the epoch."""


class Losses:
    """The counts of one receiver. ``total`` counts from the beginning, the reports what was not told yet."""

    __slots__ = ("_untold", "total")

    def __init__(self) -> None:
        self.total: Counter[Cause] = Counter()
        self._untold: dict[Cause, tuple[int, float]] = {}

    def add(self, cause: Cause, count: int, now: float) -> None:
        if count:
            self.total[cause] += count
            self._add_untold(cause, count, now)

    def _add_untold(self, cause: Cause, count: int, since: float) -> None:
        before, since = self._untold.get(cause, (0, since))
        self._untold[cause] = before + count, since

    @property
    def has_report(self) -> bool:
        """Whether messages were lost that :meth:`take_report` has not told."""
        return bool(self._untold)

    def take_report(self) -> list[Report]:
        """What was lost since the last report, by cause."""
        report = [(cause, count, since) for cause, (count, since) in self._untold.items()]
        self._untold.clear()
        return report

    def put_report_back(self, report: Sequence[Report]) -> None:
        """This part of what :meth:`take_report` gave could not be told yet."""
        for each in report:
            self._add_untold(*each)
