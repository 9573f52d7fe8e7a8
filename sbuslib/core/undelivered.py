"""What a publisher's turn had no time to hand on: it goes on in the next, before anything else is received."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, Generic, TypeVar

from .messages import Messages
from .protocols import Receiver, Routes, Sender

__all__ = ["PLANNED", "Undelivered", "affordable"]

Which = TypeVar("Which")

PLANNED: Final = 2
"""How many times the deliveries of a turn are planned at once. The clock is not looked at meanwhile, which is a fifth
of a microsecond for each; to plan fewer sends what goes to one receiver in more pieces."""


def affordable(routes: Sequence[Routes], most: int) -> int:
    """How many of these routes, from the first on, are planned at once: at least one."""
    return max(1, bisect_right([*accumulate(map(len, routes))], most))


class Undelivered(Generic[Which]):
    """Messages of one sender, and who has still to get which of them.

    :param plan: what is handed on, one after another, and to whom. No receivers are copied for it.
    """

    def __init__(self, sender: Sender, plan: Iterable[tuple[Which, Sequence[Receiver]]]) -> None:
        self.sender = sender
        self.plan = deque(plan)  # what is left of it
        self.done = 0  # receivers of the first that have got it

    def messages(self, which: Which) -> Messages:
        """The messages that the plan means by ``which``: by default these themselves."""
        assert isinstance(which, Messages)
        return which

    def keep(self) -> None:
        """The turn ends: what is left may not lie in the hub's area any more."""
        kept = deque((self.messages(which).keep(), receivers) for which, receivers in self.plan)
        self.plan = kept  # type: ignore[assignment]
