"""Keys that nobody wants: a hub in mode ``prune`` tells the hubs below, once they sent such a key, not to send it.

Both ends of a link remember these keys in a :class:`KeyTable`. :class:`Pruning` is an index of all tables for the links
below one hub, so a new pattern costs nothing for links that were told of no key that it matches.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Final, Protocol

from ..matcher import Pattern

__all__ = ["SEARCHES", "KeyTable", "Pruning"]

TABLE_BYTES: Final = 1024 * 1024
"""Bytes of the keys in one :class:`KeyTable`. Keys that are longer than most make it forget others sooner."""

SEARCHED_A_STEP: Final = 64
"""Keys that are compared with a pattern before the next turn may begin: about 50 microseconds."""

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
        self.searches: dict[int, int] = {}
        """The searches that are not over, by number, and the users whose patterns they are for."""
        self._number = 0  # of the last search

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

    def want(self, pattern: bytes, user: int) -> tuple[int, Iterator[None]] | None:
        """Somebody began to want a pattern: the links have to send what it matches.

        Returns whose work that is, and the work, in small steps; ``None``: there is none.
        """
        if not self._links:
            return None
        wanted = Pattern(pattern, self._separator)
        if wanted.is_literal and pattern not in self._links:
            return None
        if len(self.searches) >= SEARCHES:
            # Forgetting all keys costs less than searching for those that match, and loses no message.
            [(user, _)] = Counter(self.searches.values()).most_common(1)
            self.searches = {number: other for number, other in self.searches.items() if other != user}
            wanted = Pattern(b"", self._separator)
        self._number += 1
        self.searches[self._number] = user
        return user, self._search(self._number, wanted)

    def _search(self, number: int, pattern: Pattern) -> Iterator[None]:
        for at, key in enumerate([pattern.raw] if pattern.is_literal else list(self._links)):
            if at % SEARCHED_A_STEP == 0:
                yield
            if number not in self.searches:
                return
            if pattern.matches(key):
                for link in list(self._links.get(key, ())):
                    link.graft(key)
        self.searches.pop(number, None)
