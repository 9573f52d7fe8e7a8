"""Rate limit of strangers at the descriptor stores of this process.

Fetches of a published frame are the publisher's wish. Any other work that strangers cause, for example to look for a
token that does not exist, is charged to them: each of them rests so long afterwards that all of them together take a
small share of a core.
"""

from __future__ import annotations

from typing import Final

from ...kernel.threads import unpatched


class Pace:
    """Rests of users that took time. Times are in seconds, of any clock. For any threads.

    :param rest: seconds of rest for one second of work, if no other user rests.
    """

    def __init__(self, rest: float) -> None:
        self._rest = rest
        self._until: dict[int, float] = {}  # by number; some are over
        self._lock = unpatched("_thread", "allocate_lock")()  # over these, where they change

    def until(self, who: int) -> float:
        """Return the end of a user's rest; 0.0 if there is none."""
        return self._until.get(who, 0.0)

    def charge(self, who: int, seconds: float, now: float) -> None:
        """Charge a user for time: it rests, and longer if more others rest, too."""
        with self._lock:
            self._until = {one: until for one, until in self._until.items() if until > now}
            begin = self._until.setdefault(who, now)
            self._until[who] = begin + seconds * self._rest * len(self._until)


hearing: Final = Pace(20)
"""By user, for requests: 5 % of a core."""
accepting: Final = Pace(10)
"""By descriptor store, for accepting strangers: 10 % of a core."""
