"""What a publisher's turn had no time to hand on: it goes on in the next, before anything else is received."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import accumulate
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

from .messages import Messages
from .protocols import Receiver, Routes, Sender

__all__ = ["PLANNED", "Turn", "Undelivered", "affordable"]

Which = TypeVar("Which", bound=Hashable)

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

    :param plan: the receivers, in the order in which they get something, and what each gets.
    """

    def __init__(self, sender: Sender, plan: Sequence[tuple[Receiver, Which]]) -> None:
        self._sender = sender
        self._plan = plan
        self._done = 0  # how many of the plan have got it

    def messages(self, which: Which) -> Messages:
        """The messages that the plan means by ``which``: by default these themselves."""
        assert isinstance(which, Messages)
        return which

    def keep(self) -> None:
        """The turn ends: what is left may not lie in the hub's area any more."""
        copies: dict[Hashable, Messages] = {}
        kept = []
        for receiver, which in self._plan[self._done :]:
            copy = copies.get(which)
            if copy is None:
                copy = copies[which] = self.messages(which).keep()
            kept.append((receiver, copy))
        self._plan, self._done = kept, 0  # type: ignore[assignment]

    def go_on(self, turn: Turn) -> bool:
        """Hand messages on until the turn is over. Returns whether any are left."""
        sender, until, most = self._sender, turn.until, turn.most
        for receiver, which in self._plan[self._done :]:
            messages = self.messages(which)
            self._done += 1
            turn.spent += 1 if receiver.takes_batches else messages.count
            receiver.deliver(sender, messages)
            if turn.spent >= most or monotonic() > until:
                break
        left = self._done < len(self._plan)
        if left:
            turn.spent = max(turn.spent, most)  # it is over
        return left
