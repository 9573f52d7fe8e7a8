"""Fair shares among users: of room, and of turns.

The hub and the services on top of it use the same rule: otherwise one user of a service could fill it, and leave no
room for the others.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Final, Generic, TypeVar

__all__ = ["Served", "Shares", "Turns"]

T = TypeVar("T")

SERVED_NUMBERS: Final = 4_096
"""Requests of a user that a server remembers to have had: as many as may wait."""
SERVED_USERS: Final = 64
"""Users, beside trusted ones, of whose requests it remembers that."""


class Shares:
    """One resource of ``maximum`` units, shared out among users by id.

    A user that holds ``share`` of it while ``remaining`` is free may hold at most ``(remaining + share) / (n + 1)``,
    where ``n`` is the number of users that hold some, this one included. So some is always left for the next: of 1,024
    the first may take 512, a second then 170.

    :param exempt: users who may have all that is left.
    """

    __slots__ = ("_exempt", "_held", "maximum", "remaining")

    def __init__(self, maximum: int, exempt: frozenset[int | None] = frozenset()) -> None:
        self.maximum = self.remaining = maximum
        self._exempt = exempt
        self._held: dict[int | None, int] = {}  # units by user

    def take(self, user: int | None, units: int) -> bool:
        """Charge ``units`` to ``user``; ``False``, and nothing charged, when that is more than its share."""
        if not self.could_take(user, units):
            return False
        self.force(user, units)
        return True

    def could_take(self, user: int | None, units: int) -> bool:
        if user in self._exempt:
            return units <= self.remaining
        share = self._held.get(user, 0)
        users = len(self._held) + (0 if share else 1)
        return share + units <= (self.remaining + share) // (users + 1)

    def force(self, user: int | None, units: int) -> None:
        if units:
            self._held[user] = self._held.get(user, 0) + units
            self.remaining -= units

    def give(self, user: int | None, units: int) -> None:
        """Release ``units`` that were charged to ``user``."""
        if units:
            left = self._held[user] - units
            assert left >= 0, "more is released than was charged"
            if left:
                self._held[user] = left
            else:
                del self._held[user]
            self.remaining += units

    def held(self, user: int | None) -> int:
        return self._held.get(user, 0)

    @property
    def users(self) -> int:
        return len(self._held)

    @property
    def used(self) -> int:
        return self.maximum - self.remaining


class Turns(Generic[T]):
    """Queue of a service: first in, first out for each user, while users take turns.

    A user that is alone may have ``most`` waiting, of ``most_bytes`` together. Several threads may use it at once.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        # Twice as much: one user alone has half.
        self._count, self._bytes = Shares(2 * most), Shares(2 * most_bytes)
        self._waiting: dict[int | None, deque[tuple[T, int]]] = {}  # by user; the first has the next turn
        self._lock = Lock()

    def __len__(self) -> int:
        return self._count.used

    def put(self, user: int | None, item: T, size: int) -> bool:
        """Add an item of ``size`` bytes; ``False`` when the user has its share waiting already."""
        with self._lock:
            if not (self._count.could_take(user, 1) and self._bytes.could_take(user, size)):
                return False
            self._count.force(user, 1)
            self._bytes.force(user, size)
            self._waiting.setdefault(user, deque()).append((item, size))
            return True

    def take(self) -> T | None:
        """Take the next item of the user whose turn it is; ``None`` if none waits."""
        with self._lock:
            if not self._waiting:
                return None
            user = next(iter(self._waiting))
            queue = self._waiting.pop(user)
            item, size = queue.popleft()
            if queue:
                self._waiting[user] = queue  # behind the others
            self._count.give(user, 1)
            self._bytes.give(user, size)
            return item


class Served:
    """Numbers of the newest requests that a server has had, by user, so that one that is sent again is served once."""

    def __init__(self) -> None:
        self._numbers: dict[int | None, dict[tuple[bytes | None, int], None]] = {None: {}}  # the oldest first
        self._lock = Lock()  # of threads that serve together

    def is_new(self, user: int | None, sender: bytes | None, number: int) -> bool:
        """Note a request; ``False`` if it was noted before. ``user`` is charged; ``None``: one who is trusted."""
        with self._lock:
            numbers = self._numbers.pop(user, {})
            self._numbers[user] = numbers
            if len(self._numbers) > SERVED_USERS + 1:
                del self._numbers[next(other for other in self._numbers if other is not None)]
            if (sender, number) in numbers:
                return False
            numbers[sender, number] = None
            if len(numbers) > SERVED_NUMBERS:
                del numbers[next(iter(numbers))]
            return True
