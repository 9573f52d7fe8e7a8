"""Pruning: a link in mode ``prune`` that has sent a key that nobody wants is asked not to send it again.

The key is grafted when somebody wants it. A pattern that matches one key is looked up among all of these keys.
For any other, each link looks at all of its keys, some at a time, in turns of the user who subscribed. All patterns
that come meanwhile need one more look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from ..core.protocols import Receiver
from ..matcher import Pattern
from .interest import Changes

PRUNED_BYTES: Final = 256
"""Longest key that is pruned, in bytes. Longer ones are rare, and sent always."""


class Pruning:
    """The links in mode ``prune``.

    :param is_received: whether anybody but a link receives a key.
    :param most: how many keys may be pruned on a link.
    """

    def __init__(self, is_received: Callable[[bytes, Receiver], bool], most: int) -> None:
        self.is_received = is_received
        self.most = most
        self.cursors: dict[Receiver, PrunedKeys] = {}
        """By link."""
        self.by_key: dict[bytes, set[PrunedKeys]] = {}
        """The links on which a key is pruned."""
        self.looks = 0
        """Goes up when all links have to look at all of their keys."""
        self.has_news = False
        """Whether that is so since they were asked last to do so."""

    def begin(self, link: Receiver) -> PrunedKeys:
        """A link begins: it may send all keys."""
        cursor = self.cursors[link] = PrunedKeys(self, link)
        return cursor

    def forget(self, link: Receiver) -> None:
        """A link has ended."""
        cursor = self.cursors.pop(link, None)
        if cursor is not None:
            cursor.graft_all()

    def want(self, pattern: Pattern) -> Iterable[Receiver]:
        """Somebody began to want a pattern. Returns the links that have to send a key again, besides :attr:`looks`."""
        if not self.by_key:
            return ()
        if pattern.is_literal:
            return self.want_key(pattern.raw)
        self.look_at_all()
        return ()

    def want_key(self, key: bytes) -> Iterable[Receiver]:
        """Somebody may want a key. Returns the links that have to send it again."""
        cursors = list(self.by_key.get(key, ()))
        for cursor in cursors:
            cursor.graft(key)
        return [cursor.link for cursor in cursors]

    def look_at_all(self) -> None:
        """Any key may be wanted."""
        self.looks += 1
        self.has_news = True


class PrunedKeys:
    """The keys that are pruned on one link, and those that have still to be grafted."""

    def __init__(self, pruning: Pruning, link: Receiver) -> None:
        self.link = link
        self.keys: dict[bytes, None] = {}
        """Oldest first."""
        self._pruning = pruning
        self._grafts: dict[bytes, None] = {}  # keys that have still to be grafted
        self._later: list[bytes] = []  # keys to be looked at, the last one first
        self._looks = pruning.looks  # when all keys were looked at last

    def add(self, key: bytes) -> bytes | None:
        """Prune a key on the link. Returns another one that has to be grafted, if there are too many."""
        self.keys[key] = None
        self._grafts.pop(key, None)
        self._pruning.by_key.setdefault(key, set()).add(self)
        if len(self.keys) <= self._pruning.most:
            return None
        oldest = next(iter(self.keys))
        self._discard(oldest)
        return oldest

    def _discard(self, key: bytes) -> None:
        del self.keys[key]
        links = self._pruning.by_key[key]
        links.remove(self)
        if not links:
            del self._pruning.by_key[key]

    def graft(self, key: bytes) -> None:
        """Note that a key has to be grafted."""
        self._discard(key)
        self._grafts[key] = None

    def graft_all(self) -> None:
        """Note that all keys have to be grafted, whether anybody wants them or not."""
        for key in list(self.keys):
            self.graft(key)

    @property
    def is_level(self) -> bool:
        """Whether everything was sent to the link."""
        return not self._grafts and not self._later and (self._looks == self._pruning.looks or not self.keys)

    def take(self, count: int) -> tuple[Changes, bool]:
        """Up to ``count`` keys that the link has to send again, and whether these are all: only so many are looked at
        at a time.
        """
        if not self._later and self._looks != self._pruning.looks:
            self._looks = self._pruning.looks
            self._later = list(self.keys)
        for _ in range(min(count, len(self._later))):
            key = self._later.pop()
            if key in self.keys and self._pruning.is_received(key, self.link):
                self.graft(key)
        keys = list(islice(self._grafts, count))
        for key in keys:
            del self._grafts[key]
        return [(True, key) for key in keys], self.is_level
