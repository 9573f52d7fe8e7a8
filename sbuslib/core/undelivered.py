"""What a publisher's turn had no time to hand on: it goes on in the next, before anything else is received."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

from .messages import Messages
from .protocols import Receiver, Routes, Sender

__all__ = ["PLANNED", "Turn", "Undelivered", "affordable"]

Which = TypeVar("Which")

PLANNED: Final = 2
"""How many times the deliveries of a turn are planned at once. The clock is not looked at meanwhile, which is a fifth
of a microsecond for each; to plan fewer sends what goes to one receiver in more pieces."""


def affordable(routes: Sequence[Routes], most: int) -> int:
    """To how many of these routes, one after another, messages are planned at once: at least to one."""
    return max(1, bisect_right([*accumulate(map(len, routes))], most))


class Turn(Protocol):
    """The turn at hand of a publisher."""

    spent: int
    """Deliveries of this turn."""

    @property
    def most(self) -> int:
        """Deliveries after which it ends."""

    @property
    def until(self) -> float:
        """When it ends, by the monotonic clock."""


class Undelivered(Generic[Which]):
    """Messages of one sender, and who has still to get which of them.

    :param plan: what is handed on, one after another, and to whom. No receivers are copied for it.
    """

    def __init__(self, sender: Sender, plan: Iterable[tuple[Which, Sequence[Receiver]]]) -> None:
        self._sender = sender
        self._plan = deque(plan)  # what is left of it
        self._done = 0  # receivers of the first that have got it

    def messages(self, which: Which) -> Messages:
        """The messages that the plan means by ``which``: by default these themselves."""
        assert isinstance(which, Messages)
        return which

    def keep(self) -> None:
        """The turn ends: what is left may not lie in the hub's area any more."""
        kept = deque((self.messages(which).keep(), receivers) for which, receivers in self._plan)
        self._plan = kept  # type: ignore[assignment]

    def go_on(self, turn: Turn) -> bool:
        """Hand messages on until the turn is over. Returns whether any are left."""
        sender, until, most = self._sender, turn.until, turn.most
        is_over = False
        while self._plan and not is_over:
            which, receivers = self._plan[0]
            messages = self.messages(which)
            for receiver in receivers[self._done :]:
                self._done += 1
                turn.spent += 1 if receiver.takes_batches else messages.count
                receiver.deliver(sender, messages)
                if turn.spent >= most or monotonic() > until:
                    is_over = True
                    break
            if self._done == len(receivers):
                self._plan.popleft()
                self._done = 0

        if self._plan:
            turn.spent = max(turn.spent, most)
        return bool(self._plan)
