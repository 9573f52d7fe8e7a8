"""A receiver that stopped reading costs those who publish next to nothing: the shortcut for messages that are lost."""

from __future__ import annotations

from .losses import Cause, Losses

__all__ = ["Refusal"]


class Refusal:
    """Why the last messages for a receiver were lost, and how many more have been lost for the same reason.

    It holds for messages of the same user that are as long or longer, until something is sent, or until room is
    released in the account of the receiver's user (``releases`` counts that).
    """

    __slots__ = ("_cause", "_count", "_releases", "_shortest", "_since", "_uid")

    def __init__(self, cause: Cause, uid: int, shortest: int, releases: int, now: float) -> None:
        self._cause: Cause = cause
        self._uid = uid
        self._shortest = shortest
        self._releases = releases
        self._since = now
        self._count = 0

    def loses(self, uid: int, shortest: int, releases: int, count: int) -> bool:
        """Lose ``count`` messages for the same reason; ``False``, and nothing lost, where it may not hold for them."""
        if uid != self._uid or releases != self._releases or shortest < self._shortest:
            return False
        self._count += count
        return True

    def move_to(self, losses: Losses) -> None:
        """Count what was lost so far there. That is put off until somebody asks, to be cheap."""
        losses.add(self._cause, self._count, self._since)
        self._count = 0
