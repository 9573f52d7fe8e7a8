"""Messages that one link lost: counted by cause, and reported at most once in a while."""

from __future__ import annotations

from collections.abc import Callable

from ..core.context import Context
from ..core.losses import Losses
from ..wire.control import UNCERTAIN, Lost


class LinkLosses(Losses):
    """The counts of one link. New losses are reported :attr:`~sbuslib.limits.Limits.link_notices` later.

    :param announce: reports losses to others.
    """

    __slots__ = ("_announce", "_context", "_waits")

    def __init__(self, context: Context, announce: Callable[[Lost], None]) -> None:
        super().__init__()
        self._context = context
        self._announce = announce
        self._waits = False  # whether a report is due in a while

    @property
    def lost(self) -> dict[str, int]:
        """Messages that were lost for certain, by cause."""
        return {cause: count for cause, count in self.total.items() if cause != UNCERTAIN}

    @property
    def uncertain(self) -> int:
        """Messages that may or may not have been lost."""
        return self.total[UNCERTAIN]

    @property
    def certain_unreported(self) -> int:
        """Messages that were certainly lost, and not reported yet."""
        return sum(count for cause, (count, _) in self.unreported.items() if cause != UNCERTAIN)

    def note(self, cause: str, count: int, since: float) -> None:
        """Count messages that were lost, and report them in a while."""
        self.add(cause, count, since)
        if not self._waits:
            self._waits = True
            self._context.running.after(self._context.limits.link_notices, self.report)

    def report(self) -> None:
        """Report all losses that were not reported yet."""
        self._waits = False
        for each in self.take_report():
            self._announce(Lost(*each))
