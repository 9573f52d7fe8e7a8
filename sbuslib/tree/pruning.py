"""Keys that nobody wants: a hub in mode ``prune`` tells the hubs below, once they sent such a key, not to send it.

Both ends of a link remember these keys in a :class:`KeyTable`. :class:`Pruning` is an index of all tables for the links
below one hub, so a new pattern costs nothing for links that were told of no key that it matches.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Final, Protocol

from ..matcher import Pattern

__all__ = ["SEARCHES", "KeyTable", "Pruning"]

TABLE_BYTES: Final = 1024 * 1024
"""Bytes of the keys in one :class:`KeyTable`. Keys that are longer than most make it forget others sooner."""

SEARCHES: Final = 64
"""Most new patterns for which the pruned keys are searched. If more patterns wait, the links are told to send all of
these keys again."""


class KeyTable:
    """Keys that nobody wants, at most ``most`` and ``most_bytes`` of them: the oldest make room for new ones."""

    def __init__(self, most: int, most_bytes: int = TABLE_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._keys: OrderedDict[bytes, None] = OrderedDict()  # oldest first
        self.bytes = 0  # of all of them

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def add(self, key: bytes) -> list[bytes]:
        """Note a key; those that were forgotten for it, which may be the key itself."""
        if key in self._keys:
            return []
        self._keys[key] = None
        self.bytes += len(key)
        forgotten = []
        while len(self._keys) > self._most or self.bytes > self._most_bytes:
            oldest, _ = self._keys.popitem(last=False)
            self.bytes -= len(oldest)
            forgotten.append(oldest)
        return forgotten

    def discard(self, key: bytes) -> bool:
        """Forget a key; whether it was there."""
        if key not in self._keys:
            return False
        del self._keys[key]
        self.bytes -= len(key)
        return True

    def all_keys(self) -> list[bytes]:
        """All keys, oldest first."""
        return list(self._keys)


class Pruned(Protocol):
    """A link that was told not to send some keys."""

    def __hash__(self) -> int: ...

    def graft(self, key: bytes) -> None:
        """Somebody may want a key again."""


class Pruning:
    """Which links were told not to send which keys."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self._links: dict[bytes, dict[Pruned, None]] = {}  # by key
        self._searches: dict[int, deque[Iterator[None]]] = {}  # by the user whose patterns they are for

    def add(self, key: bytes, link: Pruned) -> None:
        """A link was told not to send a key."""
        self._links.setdefault(key, {})[link] = None

    def discard(self, key: bytes, link: Pruned) -> None:
        """A link may send a key again."""
        links = self._links.get(key)
        if links is not None:
            links.pop(link, None)
            if not links:
                del self._links[key]

    def want(self, pattern: bytes, user: int) -> None:
        """Somebody began to want a pattern: the links have to send what it matches. The work belongs to ``user``."""
        wanted = Pattern(pattern, self._separator)
        if not self._links or (wanted.is_literal and pattern not in self._links):
            return
        self._searches.setdefault(user, deque()).append(self._search(wanted))
        if sum(map(len, self._searches.values())) > SEARCHES:
            # Forgetting all keys costs less than searching for those that match, and loses no message.
            most = max(self._searches, key=lambda one: len(self._searches[one]))
            self._searches[most] = deque([self._search(Pattern(b"", self._separator))])

    def _search(self, pattern: Pattern) -> Iterator[None]:
        for key in [pattern.raw] if pattern.is_literal else list(self._links):
            yield
            if pattern.matches(key):
                for link in list(self._links.get(key, ())):
                    link.graft(key)
                    yield

    @property
    def searches(self) -> bool:
        """Whether keys are still to be searched for any pattern."""
        return bool(self._searches)

    def has_work(self, user: int) -> bool:
        """Whether keys are still to be searched for a user's patterns."""
        return user in self._searches

    def work(self, steps: int, user: int) -> bool:
        """Do up to ``steps`` steps of the searches for a user's patterns; whether there is more to do."""
        while steps > 0 and (searches := self._searches.get(user)):
            steps -= 1
            try:
                next(searches[0])
            except StopIteration:
                searches.popleft()
                if not searches:
                    del self._searches[user]
        return user in self._searches
