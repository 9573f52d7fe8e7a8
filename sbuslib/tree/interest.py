"""Which patterns are wanted, by whom, and what each link has still to be told of that.

Who holds a pattern stands in the router's index, for all subscribers, links among them. Nothing is kept beside it: a
link is told a pattern if anybody but itself holds it. A change is noted in one log for all links. A :class:`Reader` is
a place in this log, and knows what the other end of its link holds, so nothing is told twice.

Most links are told the same: so a part of the log is worked out once for all that hold none of its patterns alone.

A link that has to hold the empty pattern is told no other. The same holds for a link that was told more than ``most``
patterns, until half as many are wanted by anybody: then more comes from it than is wanted, and never less. While that
holds for all links, nothing is noted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from typing import Final, Protocol

from ..covering import narrow
from ..wire.control import encode_changes

__all__ = ["LOOKED_AT", "Interest", "News", "Reader", "Wanted"]

LOOKED_AT: Final = 4
"""How many patterns are looked at for each change that may be told, before the next turn."""

_SPARE: Final = 1_024

PAGE: Final = 256
"""Changes of one part of the log that is worked out once for all links."""

_PAGES: Final = 64
"""Such parts that are remembered: those that a link begins in the middle are parts of their own."""


class Index(Protocol):
    """Who holds which pattern: the router."""

    @property
    def distinct_patterns(self) -> int:
        """How many patterns are held by anybody."""

    def all_patterns(self) -> list[bytes]:
        """These patterns."""

    def holders(self, pattern: bytes) -> Collection[Hashable]:
        """Who holds just this pattern."""


class News(list[tuple[bool, bytes]]):
    """Changes to tell, in order: whether it is wanted, and the pattern."""

    @cached_property
    def packets(self) -> list[bytes]:
        """What is said of them."""
        return encode_changes(self)


class _Page:
    """What a part of the log comes to, for each link that does not alone hold any of its patterns."""

    def __init__(self, patterns: Sequence[bytes], router: Index) -> None:
        self.length = len(patterns)  # changes, of which several may be of one pattern
        holders = {pattern: router.holders(pattern) for pattern in patterns if pattern}
        self.news = News((bool(held), pattern) for pattern, held in holders.items())  # as they are now
        self.wanted = frozenset(pattern for wanted, pattern in self.news if wanted)  # of these
        self.unwanted = frozenset(holders.keys() - self.wanted)  # the others
        self.concerns = {holder for held in holders.values() if len(held) == 1 for holder in held}
        """Who alone holds one of them."""


class Interest:
    """The patterns that are wanted. :meth:`changed` is called with each change, while there are readers.

    :param most: how many patterns a link is told at most, besides the empty one.
    """

    def __init__(self, router: Index, most: int) -> None:
        self._router = router
        self.holders = router.holders
        """Who holds just a pattern."""
        self.most = most
        self._readers: dict[Hashable, Reader] = {}  # by link
        self.listening: set[Reader] = set()
        """Those whose links are told single patterns. To the others the log says nothing."""
        self._log: list[bytes] = []  # patterns that changed, each as often as it did
        self.first = 0
        """The number of the first change in the log."""
        self._snapshot: tuple[list[bytes], int] | None = None  # all patterns, and after which change
        self._pages: dict[tuple[int, int], _Page] = {}  # by the numbers of their first change, and after their last
        self.noted: dict[Hashable, None] = {}
        """Links that have to be told something that concerns no other."""

    def __len__(self) -> int:
        return self._router.distinct_patterns

    @property
    def number(self) -> int:
        """The number of the last change that concerns all links."""
        return self.first + len(self._log)

    def snapshot(self) -> tuple[list[bytes], int]:
        """All patterns that were wanted after a change, and its number: later changes are in the log.

        One list serves many links: each would have a hundred thousand places of its own.
        """
        if self._snapshot is None or self._snapshot[1] < self.first:
            self._snapshot = self._router.all_patterns(), self.number
        return self._snapshot

    def by_others(self, pattern: bytes, link: Hashable) -> bool:
        """Whether anybody but a link wants a pattern."""
        holders = self.holders(pattern)
        return len(holders) > (link in holders)

    # -- links --------------------------------------------------------------------------------------

    def reader(self, link: Hashable) -> Reader:
        """What a link has to be told. Its other end knows nothing as yet."""
        reader = self._readers[link] = Reader(self, link)
        return reader

    def forget(self, link: Hashable) -> None:
        """A link has ended."""
        reader = self._readers.pop(link, None)
        if reader is not None:
            self.listening.discard(reader)
        self.noted.pop(link, None)
        if not self._readers:
            self._shorten(len(self._log))
            self._snapshot = None
            self._pages.clear()

    # -- changes ------------------------------------------------------------------------------------

    def changed(self, pattern: bytes, subscriber: Hashable, wanted: bool) -> None:
        """A subscriber began or ceased to hold a pattern: the router knows that already."""
        shrinks = not wanted and len(self) * 2 <= self.most
        if not self._readers or (pattern and not self.listening and not shrinks):
            self._snapshot = None  # it lacks what is not in the log
            return
        holders = self.holders(pattern)
        count = len(holders)
        if count == wanted:  # nobody else holds it
            self._note(pattern)
        elif count == 1 + wanted:  # one other does: it alone has to learn that there is, or was, another
            for other in holders:
                if other is not subscriber:
                    self._note_for(other, pattern)

    def _note_for(self, link: Hashable, pattern: bytes) -> None:
        if link in self._readers:
            self._readers[link].look_at(pattern)
            self.noted[link] = None
            self._pages.clear()  # any other change is in the log after them

    def _note(self, pattern: bytes) -> None:
        self._log.append(pattern)
        if len(self._log) > 2 * self.most + _SPARE:
            self._shorten(len(self._log) // 2)  # a link that reads too slowly looks at all patterns again
        elif len(self._log) % _SPARE == 0:
            self._shorten(min((reader.place for reader in self.listening), default=self.number) - self.first)

    def _shorten(self, count: int) -> None:
        if count > 0:
            del self._log[:count]
            self.first += count

    def page(self, number: int) -> _Page:
        """What the log comes to from a change on, which must be in it, up to the next multiple of :data:`PAGE`."""
        key = number, min((number // PAGE + 1) * PAGE, self.number)
        page = self._pages.get(key)
        if page is None:
            if len(self._pages) >= _PAGES:
                self._pages.clear()
            page = self._pages[key] = _Page(self.changes(number, key[1] - number), self._router)
        return page

    def changes(self, number: int, most: int) -> list[bytes]:
        """The patterns of up to ``most`` changes from one on, which must be in the log."""
        return self._log[number - self.first : number - self.first + most]


class Reader:
    """What one link has still to be told. Its other end knows nothing as yet."""

    def __init__(self, interest: Interest, link: Hashable) -> None:
        self._interest = interest
        self._link = link
        self.held: set[bytes] = set()
        """The patterns that the other end holds."""
        self._later: deque[bytes] = deque()  # patterns to be looked at, after all of the snapshot
        self._for_all = False  # whether the patterns were last looked at while the link had to hold the empty one
        self._widened = self._full = False
        self._look_at_all()

    def look_at(self, pattern: bytes) -> None:
        """This pattern may have to be told."""
        self._later.append(pattern)

    def _look_at_all(self) -> None:
        self._for_all = self._takes_all
        (self._interest.listening.discard if self._for_all else self._interest.listening.add)(self)
        self._all, self.place = ([], self._interest.number) if self._for_all else self._interest.snapshot()
        self._at = 0  # how many of the snapshot were looked at
        self._later = deque(self.held)  # after them: so nothing is missed meanwhile

    def widen(self) -> None:
        """The other end takes no more patterns: ask for everything."""
        self._widened = True

    @property
    def _takes_all(self) -> bool:
        interest = self._interest
        if len(self.held) > interest.most:
            self._full = True
        elif len(interest) * 2 <= interest.most:
            self._full = False
        return self._widened or self._full or interest.by_others(b"", self._link)

    @property
    def _is_level(self) -> bool:
        """Whether all was looked at."""
        return (
            not self._later
            and self._at == len(self._all)
            and self.place == self._interest.number
            and self._for_all is self._takes_all
        )

    @property
    def is_told(self) -> bool:
        """Whether all was told."""
        return self._is_level and (b"" in self.held) is self._for_all

    def take_page(self) -> News | None:
        """What most links are told of the next part of the log; ``None``: this one has to look for itself."""
        interest, held = self._interest, self.held
        if self._for_all or self._takes_all or self._later or self._at < len(self._all):
            return None
        if not interest.first <= self.place < interest.number or b"" in held:
            return None

        page = interest.page(self.place)
        fits = len(held) + len(page.wanted) <= interest.most and held.isdisjoint(page.wanted) and held >= page.unwanted
        if not fits or self._link in page.concerns:
            return None
        held |= page.wanted
        held -= page.unwanted
        self.place += page.length
        return page.news

    def take(self, count: int) -> News:
        """Up to ``count`` changes to tell. There may be more, since only so many patterns are looked at."""
        interest, held, taken = self._interest, self.held, News()
        if self._for_all is not self._takes_all or self.place < interest.first:
            self._look_at_all()
        if self._for_all:
            self.place = interest.number
        if self._for_all and b"" not in held and count > 0:
            held.add(b"")
            taken.append((True, b""))

        # Some patterns at a time, until there are enough changes, or the link holds one too many.
        looks, holders_of, link = LOOKED_AT * count, interest.holders, self._link
        while True:
            room = count if self._for_all else interest.most + 1 - len(held)
            patterns = self._next(min(looks, count - len(taken), room))
            if not patterns:
                break
            looks -= len(patterns)
            for pattern in patterns:
                holders = () if self._for_all else holders_of(pattern)
                wanted = len(holders) > (link in holders)
                if pattern and wanted is not (pattern in held):
                    (held.add if wanted else held.remove)(pattern)
                    taken.append((wanted, pattern))

        if not self._for_all and b"" in held and self._is_level and len(taken) < count:
            held.remove(b"")
            taken.append((False, b""))
        return taken

    def _next(self, most: int) -> Sequence[bytes]:
        """Up to ``most`` patterns that have to be looked at next."""
        if self._at < len(self._all):
            patterns = self._all[self._at : self._at + most]
            self._at += len(patterns)
        elif self._later:
            patterns = [self._later.popleft() for _ in range(min(most, len(self._later)))]
        else:
            patterns = self._interest.changes(self.place, most)
            self.place += len(patterns)
        return patterns


class Wanted:
    """The subscriptions of this hub at the hub above, over one link.

    :param reader: which patterns are wanted here.
    :param bounds: patterns that may come down; ``None``: all.
    """

    def __init__(self, reader: Reader, bounds: list[bytes] | None, separator: bytes) -> None:
        self.reader = reader
        self._bounds = bounds
        self._separator = separator
        self._parts: dict[bytes, list[bytes]] = {}  # of each pattern that is wanted here
        self._held: Counter[bytes] = Counter()  # for how many of these each part is held above
        self._anew: deque[bytes] = deque()  # patterns that have to be narrowed to other bounds

    def __len__(self) -> int:
        return len(self._held)

    def set_bounds(self, bounds: list[bytes] | None) -> None:
        """From now on other patterns may come down."""
        self._bounds = bounds
        self._anew.extend(self._parts)

    @property
    def is_told(self) -> bool:
        """Whether the hub above was told all."""
        return self.reader.is_told and not self._anew

    def take(self, count: int) -> list[tuple[bool, bytes]]:
        """Some ``count`` changes to tell, in order: whether it is wanted, and the pattern."""
        changes: list[tuple[bool, bytes]] = []
        while self._anew and len(changes) < count:
            pattern = self._anew.popleft()
            if pattern in self._parts:
                self._set(pattern, True, changes)
        for wanted, pattern in self.reader.take(max(0, count - len(changes))):
            self._set(pattern, wanted, changes)
        return changes

    def _set(self, pattern: bytes, wanted: bool, changes: list[tuple[bool, bytes]]) -> None:
        former = self._parts.pop(pattern, [])
        if wanted:
            parts = self._parts[pattern] = narrow(pattern, self._bounds, self._separator)
            changes += ((True, part) for part in parts if not self._held[part])
            self._held.update(parts)
        self._held.subtract(former)
        for part in former:
            if self._held[part] <= 0 and part in self._held:
                del self._held[part]
                changes.append((False, part))
