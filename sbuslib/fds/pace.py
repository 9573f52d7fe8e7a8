"""How often strangers are heard at the descriptor stores of this process.

What comes of a frame that was published is the publisher's wish. All else that strangers have a descriptor store do,
such as look for a token that does not exist, is at their expense: each of them rests so long afterwards that all of
them together take a small share of a core.
"""

from __future__ import annotations

from typing import Final

from ..kernel.threads import unpatched


class Pace:
    """Until when each of those rest who take time. Times are in seconds, of any clock. For any threads.

    :param rest: seconds of rest for one of work, if nobody else rests.
    """

    def __init__(self, rest: float) -> None:
        self._rest = rest
        self._until: dict[int, float] = {}  # by number; some are over
        self._lock = unpatched("_thread", "allocate_lock")()  # over these, where they change

    def until(self, who: int) -> float:
        """The end of somebody's rest; 0.0 if there is none."""
        return self._until.get(who, 0.0)

    def charge(self, who: int, seconds: float, now: float) -> None:
        """Somebody took so much time: it rests, the longer the more others rest, too."""
        with self._lock:
            self._until = {one: until for one, until in self._until.items() if until > now}
            begin = self._until.setdefault(who, now)
            self._until[who] = begin + seconds * self._rest * len(self._until)


hearing: Final = Pace(20)
"""By user, for what it asks: 5 % of a core."""
accepting: Final = Pace(10)
"""By descriptor store, for accepting strangers: 10 % of a core."""
