"""Messages that one receiver lost: counted by cause, and reported to the receiver.

A receiver that stopped reading costs publishers next to nothing: see :class:`DropCache`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Cause: TypeAlias = Literal["discard", "overflow", "quota", "oversize", "outage"]

CAUSES: tuple[Cause, ...] = ("discard", "overflow", "quota", "oversize", "outage")
"""Why a message did not reach one of its receivers. ``oversize``: longer than the receiver's connection takes;
``outage``: the receiver went away before it was sent."""

Report: TypeAlias = tuple[str, int, float]
"""A cause, how many messages were lost for it, and since when, in seconds since the epoch."""


@dataclass(slots=True, eq=False)
class DropCache:
    """Why the last messages for a receiver were lost, and how many more have been lost for the same reason.

    It holds for messages of the same user that are as long or longer, until something is sent, or until room is
    released in the account of the receiver's user (``releases`` counts that).
    """

    cause: Cause
    _uid: int
    _shortest: int
    _releases: int
    since: float
    count: int = 0

    def loses(self, uid: int, shortest: int, releases: int, count: int) -> bool:
        """Lose ``count`` messages for the same reason; ``False``, and nothing lost, where it may not hold for them."""
        if uid != self._uid or releases != self._releases or shortest < self._shortest:
            return False
        self.count += count
        return True


class Losses:
    """The counts of one receiver. ``total`` counts from the beginning, ``unreported`` those not reported yet."""

    __slots__ = ("_drop_cache", "_total", "_unreported")

    def __init__(self) -> None:
        self._total: Counter[str] = Counter()  # messages by cause, ever
        self._unreported: dict[str, tuple[int, float]] = {}  # by cause: how many, and since when
        # the last; its losses are counted here when somebody asks, to be cheap
        self._drop_cache: DropCache | None = None

    def refuse(self, drop_cache: DropCache) -> DropCache:
        """Count what this refusal loses from now on."""
        self._count_refused()
        self._drop_cache = drop_cache
        return drop_cache

    def _count_refused(self) -> None:
        refused = self._drop_cache
        if refused is not None and refused.count:
            count, refused.count = refused.count, 0
            self.add(refused.cause, count, refused.since)

    def add(self, cause: str, count: int, now: float) -> None:
        self._count_refused()
        if count:
            self._total[cause] += count
            self.put_report_back([(cause, count, now)])

    @property
    def total(self) -> Counter[str]:
        self._count_refused()
        return self._total

    @property
    def unreported(self) -> dict[str, tuple[int, float]]:
        """By cause: how many, and since when."""
        self._count_refused()
        return self._unreported

    @property
    def since(self) -> float:
        """When the first of these was lost, in seconds since the epoch; 0: there is none."""
        return min((since for _, since in self.unreported.values()), default=0.0)

    def take_report(self) -> list[Report]:
        """Take the losses since the last report, by cause."""
        report = [(cause, count, since) for cause, (count, since) in self.unreported.items()]
        self._unreported.clear()
        return report

    def put_report_back(self, report: Sequence[Report]) -> None:
        """Put back a part of what :meth:`take_report` gave: it could not be sent yet."""
        for cause, count, since in report:
            before, since = self._unreported.get(cause, (0, since))
            self._unreported[cause] = before + count, since
