"""Choice of the strangers whose descriptor stores a client asks, and how long it waits. Pure: the caller has the clock.

A slow descriptor store delays all callers that wait for their frames behind it. So time beyond the needs of an answer
is lost, and counts twice. First for its user, which is not asked again until its losses are no more than a twentieth of
the time. Then for all strangers together: while they took more than that, strangers who never answered are not asked. A
user that answered last time is asked even then, and has to answer at once.
"""

from __future__ import annotations

from typing import Final

from ...errors import DescriptorError

PATIENCE: Final = 0.5
"""Seconds that the descriptor store of a stranger may take."""
PROMPT: Final = 0.02
"""Seconds that do not count as lost. A descriptor store that computes in Python answers after some 5 ms."""
SHARE: Final = 20
"""Seconds in which one may be lost to silence, to one user and to all: 5 % of the time."""
SLOW_SHARE: Final = 4
"""Seconds in which one may be lost to answers that come late, as where the machine is busy."""
USER_AHEAD: Final = 5.0
"""Seconds by which a user's losses may exceed its share: a quarter of a second lost to silence."""
ALL_AHEAD: Final = 40.0
"""The same for all users: two seconds lost."""
OTHERWISE: Final = 10.0
"""Seconds without asking a user that handed out a descriptor it did not offer."""
MOST_KNOWN: Final = 64
"""Users whose losses are remembered: those with the largest."""
MOST_GOOD: Final = 32
"""Users remembered to have answered, the last ones. All of them silent at once take another 6 %, once."""


class Strangers:
    """Time lost at the descriptor stores of each stranger. Times are in seconds, of any clock."""

    def __init__(self) -> None:
        self._paid: dict[int, float] = {}  # by user, the time at which its losses are no more than its share
        self._all_paid = 0.0  # the same for all together
        self._good: dict[int, None] = {}  # users that answered at once when they were asked last, the latest last

    def patience(self, user: int, now: float) -> float:
        """Return the seconds to wait at the descriptor store of a user. Raises :exc:`~sbuslib.errors.DescriptorError`
        if it is not to be asked.
        """
        if self._paid.get(user, now) - now > USER_AHEAD:
            raise DescriptorError("user that is not asked for a while")
        if self._all_paid - now <= ALL_AHEAD:
            return PATIENCE
        if user not in self._good:
            raise DescriptorError("strangers are not asked for a while")
        return PROMPT

    def took(self, user: int, seconds: float, now: float, *, answered: bool) -> None:
        """Note that a user was asked, and how much time that took."""
        if seconds > PROMPT:
            lost = seconds * (SLOW_SHARE if answered else SHARE)
            self._all_paid = max(self._all_paid, now) + lost
            self._put_off(user, max(self._paid.get(user, now), now) + lost)
        elif answered:
            self._good.pop(user, None)
            self._good[user] = None
            if len(self._good) > MOST_GOOD:
                del self._good[next(iter(self._good))]

    def refuse(self, user: int, now: float) -> None:
        """Note that a user handed out a descriptor it did not offer: it is not asked for :data:`OTHERWISE` seconds."""
        self._put_off(user, max(self._paid.get(user, now), now + USER_AHEAD + OTHERWISE))

    def _put_off(self, user: int, paid: float) -> None:
        self._good.pop(user, None)
        self._paid[user] = paid
        if len(self._paid) > MOST_KNOWN:
            del self._paid[min(self._paid, key=self._paid.__getitem__)]
