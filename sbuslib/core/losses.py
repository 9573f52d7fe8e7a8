"""The messages that one receiver lost: counted by cause, and told to the receiver in reports.

A receiver that stopped reading costs those who publish next to nothing: see :class:`Refusal`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["CAUSES", "Cause", "Losses", "Refusal", "Report"]

Cause: TypeAlias = Literal["discard", "overflow", "quota", "oversize", "outage"]

CAUSES: tuple[Cause, ...] = ("discard", "overflow", "quota", "oversize", "outage")
"""Why a message did not reach one of its receivers. ``oversize``: longer than the receiver's connection takes;
``outage``: the receiver went away before it was sent."""

Report: TypeAlias = tuple[str, int, float]
"""A cause, how many messages were lost for it, and since when, in seconds since the epoch."""


class Losses:
    """The counts of one receiver. ``total`` counts from the beginning, the reports what was not told yet."""

    __slots__ = ("total", "unreported")

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()  # messages by cause, ever
        self.unreported: dict[str, tuple[int, float]] = {}  # by cause: how many, and since when

    def add(self, cause: str, count: int, now: float) -> None:
        if count:
            self.total[cause] += count
            self._add_untold(cause, count, now)

    def _add_untold(self, cause: str, count: int, since: float) -> None:
        before, since = self.unreported.get(cause, (0, since))
        self.unreported[cause] = before + count, since

    @property
    def has_report(self) -> bool:
        """Whether messages were lost that :meth:`take_report` has not told."""
        return bool(self.unreported)

    def take_report(self) -> list[Report]:
        """What was lost since the last report, by cause."""
        report = [(cause, count, since) for cause, (count, since) in self.unreported.items()]
        self.unreported.clear()
        return report

    def put_report_back(self, report: Sequence[Report]) -> None:
        """Put back a part of what :meth:`take_report` gave: it could not be sent yet."""
        for each in report:
            self._add_untold(*each)


@dataclass(slots=True, eq=False)
class Refusal:
    """Why the last messages for a receiver were lost, and how many more have been lost for the same reason.

    It holds for messages of the same user that are as long or longer, until something is sent, or until room is
    released in the account of the receiver's user (``releases`` counts that).
    """

    _cause: Cause
    _uid: int
    _shortest: int
    _releases: int
    _since: float
    _count: int = 0

    def loses(self, uid: int, shortest: int, releases: int, count: int) -> bool:
        """Lose ``count`` messages for the same reason; ``False``, and nothing lost, where it may not hold for them."""
        if uid != self._uid or releases != self._releases or shortest < self._shortest:
            return False
        self._count += count
        return True

    def move_to(self, losses: Losses) -> None:
        """Add what was lost so far to these counts. It is put off until somebody asks, to be cheap."""
        losses.add(self._cause, self._count, self._since)
        self._count = 0
