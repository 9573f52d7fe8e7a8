"""Local interest: which patterns are wanted, by whom, and which changes each link has still to be sent.

The router's index has the holders of each pattern, for all subscribers, links among them. Nothing is kept beside it: a
pattern is announced to a link if anybody but the link itself holds it. Each link has an :class:`InterestCursor`, which
knows what the other end holds, so that nothing is announced twice, and which patterns it has to look at.

To a link that has to hold the empty pattern no other is announced. Where a link would hold more than ``most`` patterns,
it is announced the empty one in their place, as *presumed*, until half as many are wanted by anybody: then more comes
from it than is wanted, and never less, and nobody takes that for known. Single changes are not noted for such a link.

Presumed patterns that others hold are announced as presumed, too: they bear a mark. The hub at the other end may be an
older one that does not know the mark. To such a hub each of them is announced without it, as if somebody wanted it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from ..wire.control import encode_changes

LOOKED_AT: Final = 4
"""Patterns that are looked at for each change that may be announced, before the next turn."""

_SPARE: Final = 1_024

Changes: TypeAlias = list[tuple[bool, bytes]]
"""Changes to announce, in order: whether the pattern is wanted, and the pattern."""


class Index(Protocol):
    """An index of the holders of each pattern: the router."""

    @property
    def distinct_patterns(self) -> int:
        """How many patterns are held by anybody."""

    def all_patterns(self) -> list[bytes]:
        """These patterns."""

    def holders(self, pattern: bytes) -> Collection[Hashable]:
        """Return the holders of just this pattern."""


class _Page:
    """Net result of some changes: the same for every link that is not the only holder of one of these patterns.

    :param wide: the patterns that stand for all others, of which it has none.
    """

    def __init__(self, patterns: list[bytes], wide: tuple[bytes, ...], router: Index) -> None:
        self.patterns = patterns
        holders = {pattern: router.holders(pattern) for pattern in patterns if pattern not in wide}
        self.changes: Changes = [(bool(held), pattern) for pattern, held in holders.items()]  # as they are now
        self.wanted = frozenset(pattern for wanted, pattern in self.changes if wanted)  # of these
        self.unwanted = frozenset(holders.keys() - self.wanted)  # the others
        self.concerns = {holder for held in holders.values() if len(held) == 1 for holder in held}
        """Subscribers that are the only holder of one of them."""


class Interest:
    """The patterns that are wanted, and the links to which they are announced.

    :param most: the most patterns that are announced to a link, besides the empty one.
    :param presumption: the mark of a pattern that is presumed.
    """

    def __init__(self, router: Index, most: int, presumption: bytes) -> None:
        self._router = router
        self.presumption = presumption
        self.wide = (b"", presumption)
        """The empty pattern, wanted and presumed: they stand for all others."""
        self.holders = router.holders
        """Returns the holders of just one pattern."""
        self.most = most
        self.cursors: dict[Hashable, InterestCursor] = {}
        """By link."""
        self.listening: dict[Hashable, InterestCursor] = {}
        """Cursors of the links to which single patterns are announced."""
        self.has_news = False
        """Whether patterns have changed since all links were asked last to look at them."""
        self._news: list[bytes] = []  # patterns that no link has been made to look at yet
        self._all: list[bytes] | None = None  # all patterns, until one changes
        self._page: _Page | None = None  # the page announced last, until a pattern changes
        self._said: tuple[Changes, list[bytes]] = [], []  # changes announced last, and their packets

    def __len__(self) -> int:
        return self._router.distinct_patterns

    def all_patterns(self) -> list[bytes]:
        """All patterns. One list serves many links: each would have a hundred thousand places of its own."""
        if self._all is None:
            self._all = self._router.all_patterns()
        return self._all

    def begin(self, link: Hashable, presumes: bool) -> InterestCursor:
        """Make the cursor of a new link. Its other end knows nothing as yet.

        :param presumes: whether it knows the mark of what is presumed.
        """
        cursor = self.cursors[link] = InterestCursor(self, link, presumes)
        return cursor

    def forget(self, link: Hashable) -> None:
        """Forget a link that has ended. After the last one, changes are noted again from the next link on."""
        self.cursors.pop(link, None)
        self.listening.pop(link, None)
        if not self.cursors:
            self._all = self._page = None

    def changed(self, pattern: bytes, subscriber: Hashable, wanted: bool) -> Iterable[Hashable]:
        """A subscriber began or ceased to hold a pattern: the router knows that already.

        Returns the links that have to look at it now, besides what all have to.
        """
        self._all = self._page = None
        holders = self.holders(pattern)

        # 1. Nobody else holds it: all links have to learn that, but for those that hold the empty pattern.
        if len(holders) == wanted:
            shrinks = not wanted and len(self) * 2 <= self.most
            if self.listening or shrinks or pattern in self.wide:
                self.has_news = True
                self._news.append(pattern)
                if len(self._news) > _SPARE:
                    self.spread()
            return ()

        # 2. One other does: it alone has to learn that there is, or was, another.
        if len(holders) != 1 + wanted:
            return ()
        concerned = [other for other in holders if other is not subscriber and other in self.cursors]
        for other in concerned:
            self.cursors[other].look_at([pattern])
        return concerned

    def spread(self) -> None:
        """Have all links look at what has changed: once for many changes."""
        if self._news:
            news, self._news = self._news, []
            for cursor in list(self.listening.values()):
                cursor.look_at(news)

    @property
    def is_spread(self) -> bool:
        """Return whether all links look at all changes."""
        return not self._news

    def page(self, patterns: list[bytes]) -> _Page:
        """Return the net result of these patterns: computed once, since most links look at the same ones."""
        if self._page is None or self._page.patterns != patterns:
            self._page = _Page(patterns.copy(), self.wide, self._router)
        return self._page

    def encode(self, changes: Changes) -> list[bytes]:
        """Encode changes for a child: once, since most links are sent the same."""
        if changes != self._said[0]:
            self._said = changes, encode_changes(changes)
        return self._said[1]


class InterestCursor:
    """The changes that one link has still to be sent. At first its other end knows nothing.

    :param presumes: whether the other end knows the mark of what is presumed.
    """

    def __init__(self, interest: Interest, link: Hashable, presumes: bool) -> None:
        self._interest = interest
        self._link = link
        self._presumes = presumes
        self.held: set[bytes] = set()
        """The patterns that the other end holds."""
        self._later: list[bytes] = []  # patterns to be looked at, after all
        self._for_all: bytes | None = None  # which stood for all others when the patterns were last looked at, if any
        self._widened = self._full = False
        self._look_at_all()

    def look_at(self, patterns: list[bytes]) -> None:
        """Note patterns that may have to be announced."""
        if self._for_all is None:
            self._later += self._named(patterns)
            if len(self._later) > 2 * self._interest.most + _SPARE:  # the other end does not read
                self._look_at_all()

    def _look_at_all(self) -> None:
        self._for_all = self._stands_for_all
        if self._for_all is not None:
            self._interest.listening.pop(self._link, None)
        else:
            self._interest.listening[self._link] = self
        self._all = [] if self._for_all is not None else self._named(self._interest.all_patterns())
        self._at = 0  # how many of these were looked at
        self._later = list(self.held)  # after them: so nothing is missed meanwhile

    def widen(self) -> None:
        """The other end takes no more patterns: ask for everything."""
        self._widened = True

    def _named(self, patterns: list[bytes]) -> list[bytes]:
        """The patterns as the other end names them."""
        if self._presumes:
            return patterns
        return [pattern.removeprefix(self._interest.presumption) for pattern in patterns]

    def _is_wanted(self, pattern: bytes) -> bool:
        """Whether the other end has to hold a pattern, unless another stands for all."""
        interest = self._interest
        for name in (pattern,) if self._presumes else (pattern, interest.presumption + pattern):
            holders = interest.holders(name)
            if len(holders) > (self._link in holders):
                return True
        return False

    @property
    def _single(self) -> int:
        """How many patterns the other end holds besides those that stand for all others."""
        return len(self.held) - sum(wide in self.held for wide in self._interest.wide)

    @property
    def _stands_for_all(self) -> bytes | None:
        """The pattern that the other end has to hold in place of all others; *None*: it has to hold each."""
        interest = self._interest
        if self._single > interest.most:
            self._full = True
        elif len(interest) * 2 <= interest.most:
            self._full = False
        if self._is_wanted(b""):
            return b""
        return (interest.presumption if self._presumes else b"") if self._widened or self._full else None

    def _has_to_hold(self, wide: bytes) -> bool:
        """Whether the other end has to hold one of those that stand for all others."""
        return wide == self._for_all if self._for_all is not None else self._presumes and self._is_wanted(wide)

    @property
    def _is_level(self) -> bool:
        """Whether all was looked at."""
        is_done = not self._later and self._at == len(self._all) and self._interest.is_spread
        return is_done and self._for_all == self._stands_for_all

    @property
    def _is_wide_enough(self) -> bool:
        return all((wide in self.held) is self._has_to_hold(wide) for wide in self._interest.wide)

    @property
    def is_level(self) -> bool:
        """Whether everything was announced."""
        return self._is_level and self._is_wide_enough

    def take(self, count: int) -> tuple[Changes, bool]:
        """Take up to ``count`` changes, and whether these are all: only so many patterns are looked at."""
        interest, held, taken = self._interest, self.held, Changes()
        interest.spread()
        if self._for_all != self._stands_for_all:
            self._look_at_all()
        for wide in interest.wide:
            if wide not in held and len(taken) < count and self._has_to_hold(wide):
                held.add(wide)
                taken.append((True, wide))

        # 1. The changes that most links are sent.
        is_usual = self._presumes and self._for_all is None and not taken and self._is_wide_enough
        if is_usual and self._at == len(self._all) and len(self._later) <= count:
            page = interest.page(self._later)
            fits = self._single + len(page.wanted) <= interest.most and self._link not in page.concerns
            if fits and held.isdisjoint(page.wanted) and held >= page.unwanted:
                held |= page.wanted
                held -= page.unwanted
                self._later.clear()
                return page.changes, True

        # 2. Some patterns at a time, until there are enough changes, or the link holds one too many.
        looks = LOOKED_AT * count
        while True:
            room = count if self._for_all is not None else interest.most + 1 - self._single
            patterns = self._next(min(looks, count - len(taken), room))
            if not patterns:
                break
            looks -= len(patterns)
            for pattern in patterns:
                if pattern in interest.wide:
                    continue
                wanted = self._for_all is None and self._is_wanted(pattern)
                if wanted is not (pattern in held):
                    (held.add if wanted else held.remove)(pattern)
                    taken.append((wanted, pattern))

        # 3. The patterns that these stood for were announced.
        for wide in interest.wide:
            if wide in held and len(taken) < count and not self._has_to_hold(wide) and self._is_level:
                held.remove(wide)
                taken.append((False, wide))
        return taken, self.is_level

    def _next(self, most: int) -> Sequence[bytes]:
        """Up to ``most`` patterns that have to be looked at next."""
        if self._at < len(self._all):
            patterns = self._all[self._at : self._at + most]
            self._at += len(patterns)
            return patterns
        patterns = self._later[:most]
        del self._later[:most]
        return patterns
