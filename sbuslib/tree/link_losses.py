"""The messages that one link lost: counted by cause, and told at most once in a while."""

from __future__ import annotations

from collections.abc import Callable

from ..core.context import Context
from ..core.losses import Losses
from ..wire.control import UNCERTAIN, Lost


class LinkLosses(Losses):
    """The counts of one link. What was not told yet is told :attr:`~sbuslib.limits.Limits.link_notices` later.

    :param tell: tells others of losses.
    """

    __slots__ = ("_context", "_tell", "_waits")

    def __init__(self, context: Context, tell: Callable[[Lost], None]) -> None:
        super().__init__()
        self._context = context
        self._tell = tell
        self._waits = False  # whether what was lost will be told in a while

    @property
    def lost(self) -> dict[str, int]:
        """Messages that were lost for certain, by cause."""
        return {cause: count for cause, count in self.total.items() if cause != UNCERTAIN}

    @property
    def uncertain(self) -> int:
        """Messages of which it is not known whether they were lost."""
        return self.total[UNCERTAIN]

    @property
    def untold(self) -> int:
        """Messages that were lost for certain, and not told yet."""
        return sum(count for cause, (count, _) in self.unreported.items() if cause != UNCERTAIN)

    def note(self, cause: str, count: int, since: float) -> None:
        """Count messages that were lost, and tell others in a while."""
        self.add(cause, count, since)
        if not self._waits:
            self._waits = True
            self._context.running.after(self._context.limits.link_notices, self.report)

    def report(self) -> None:
        """Tell others now of what was not told yet."""
        self._waits = False
        for each in self.take_report():
            self._tell(Lost(*each))
