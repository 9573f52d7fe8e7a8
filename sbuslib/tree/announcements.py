"""What was announced to the links of a hub, and how far each link was told: one record for all links.

No link has a copy of the patterns that it was told or has still to be told. What concerns all links is in two logs, of
patterns that were announced and of patterns that were taken back. A log has each pattern once, where it was last noted.
A :class:`Reader` is a place in both logs, and a few patterns that concern its link alone.

A link is told what was taken back only while it has been told all that is announced. So whatever is wanted all the
time, the link always holds a pattern that covers it. It may be told something twice, which changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate, islice

__all__ = ["Announcements", "Reader"]


class _Log:
    """Patterns in the order in which they were last noted, each with its number."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._patterns: list[bytes] = []
        self._last: dict[bytes, int] = {}  # where each pattern is valid: elsewhere it is a leftover

    def __len__(self) -> int:
        return len(self._last)

    @property
    def end(self) -> int:
        """The last number, or one after it."""
        return self._numbers[-1] if self._numbers else 0

    def append(self, pattern: bytes, number: int) -> None:
        self._last[pattern] = number
        self._numbers.append(number)
        self._patterns.append(pattern)
        if len(self._numbers) > 2 * len(self._last) + 64:
            entries = list(self.after(0))
            self._numbers = [number for number, _ in entries]
            self._patterns = [pattern for _, pattern in entries]

    def discard(self, pattern: bytes) -> None:
        self._last.pop(pattern, None)

    def after(self, number: int) -> Iterator[tuple[int, bytes]]:
        """The patterns that were noted after this number."""
        last = self._last
        for place in range(bisect_right(self._numbers, number), len(self._numbers)):
            pattern = self._patterns[place]
            if last.get(pattern) == self._numbers[place]:
                yield self._numbers[place], pattern


class Announcements:
    """What was announced to all links but one, or to one alone.

    :param concerns: whether a link of some number has to hold a pattern, as it is now.
    """

    def __init__(self, concerns: Callable[[bytes, int], bool]) -> None:
        self.concerns = concerns
        self.added = _Log()
        self.removed = _Log()
        self.number = 0
        """Goes up with each change that concerns all links."""
        self.furthest = 0
        """How far any link was told what was announced."""
        self.noted: dict[int, None] = {}
        """Links that have a change of their own. Who tells the links clears this."""
        self._since: dict[bytes, int] = {}  # where each pattern of both logs was first announced
        self._readers: dict[int, Reader] = {}
        self._prune_at = 64

    def reader(self, link: int) -> Reader:
        """The place of a link in the logs: it knows nothing as yet."""
        reader = self._readers[link] = Reader(self, link)
        return reader

    def forget(self, link: int) -> None:
        """A link has gone."""
        self._readers.pop(link, None)
        self.noted.pop(link, None)

    def begin_all(self, pattern: bytes) -> None:
        """A pattern concerns all links but perhaps one."""
        self.number += 1
        self._since.setdefault(pattern, self.number)
        self.removed.discard(pattern)
        self.added.append(pattern, self.number)

    def end_all(self, pattern: bytes) -> None:
        """It does not any more, but perhaps one."""
        self.added.discard(pattern)
        if self._since[pattern] > self.furthest:
            del self._since[pattern]  # no link has heard of it
            return
        self.number += 1
        self.removed.append(pattern, self.number)
        if len(self.removed) > self._prune_at:
            self._prune()

    def begin(self, pattern: bytes, link: int) -> None:
        """A pattern concerns one link, whatever it is to others."""
        reader = self._readers.get(link)
        if reader is not None:
            reader.begin(pattern)
            self.noted[link] = None

    def end(self, pattern: bytes, link: int) -> None:
        """It does not concern this link any more."""
        reader = self._readers.get(link)
        if reader is not None:
            reader.end(pattern)
            self.noted[link] = None

    def leave_out(self, pattern: bytes, link: int) -> None:
        """A pattern that concerns all links does not concern this one any more."""
        reader = self._readers.get(link)
        if reader is not None and reader.heard_of(pattern, self._since[pattern]):
            self.end(pattern, link)

    def told_ahead(self, pattern: bytes, place: int) -> None:
        """A link that has come to this place of the logs was told a pattern that may be further on."""
        if pattern in self._since:
            self._since[pattern] = min(self._since[pattern], place)

    def _prune(self) -> None:
        """Forget what was taken back from all links that were told it."""
        places = sorted((reader.removed, reader.added) for reader in self._readers.values())
        removed = [place for place, _ in places]
        added = list(accumulate((place for _, place in places), max))
        for number, pattern in list(self.removed.after(0)):
            before = bisect_left(removed, number)  # links that were not told this
            if not before or added[before - 1] < self._since[pattern]:
                self.removed.discard(pattern)
                del self._since[pattern]
        self._prune_at = 2 * len(self.removed) + 64


class Reader:
    """What one link has still to be told."""

    def __init__(self, announcements: Announcements, link: int) -> None:
        self._announcements = announcements
        self._link = link
        self.added = 0
        self.removed = announcements.number
        self._to_begin: dict[bytes, bool] = {}  # with whether the other end may hold it
        self._to_end: dict[bytes, bool] = {}

    @property
    def is_told(self) -> bool:
        """Whether nothing is left to tell."""
        logs = self._announcements
        begun = not self._to_begin and self.added >= logs.added.end
        return begun and not self._to_end and self.removed >= logs.removed.end

    def begin(self, pattern: bytes) -> None:
        """A pattern begins to concern this link, whatever it is to others."""
        may_hold = self._to_begin.get(pattern, False) or self._to_end.pop(pattern, False)
        self._to_begin[pattern] = may_hold

    def end(self, pattern: bytes) -> None:
        """A pattern ceases to concern this link."""
        if self._to_begin.pop(pattern, True):
            self._to_end[pattern] = True

    def heard_of(self, pattern: bytes, since: int) -> bool:
        """Whether the link was told a pattern that was announced at this place, or would be next."""
        return since <= self.added or pattern in self._to_begin

    def take(self, count: int) -> list[tuple[bool, bytes]]:
        """Up to ``count`` changes to tell, in order: whether it was added (or removed), and the pattern.

        There may be none although more is left: :attr:`is_told` tells.
        """
        logs, link = self._announcements, self._link
        taken: list[tuple[bool, bytes]] = []
        while self._to_begin and count > 0:
            count -= 1
            pattern, _ = self._to_begin.popitem()
            if logs.concerns(pattern, link):
                taken.append((True, pattern))
                logs.told_ahead(pattern, self.added)
        for number, pattern in islice(logs.added.after(self.added), max(0, count)):
            count -= 1
            self.added = number
            if logs.concerns(pattern, link):
                taken.append((True, pattern))
        logs.furthest = max(logs.furthest, self.added)
        if count <= 0:
            return taken
        self.added = max(self.added, logs.added.end)
        while self._to_end and count > 0:
            count -= 1
            pattern, _ = self._to_end.popitem()
            if not logs.concerns(pattern, link):
                taken.append((False, pattern))
        for number, pattern in islice(logs.removed.after(self.removed), max(0, count)):
            count -= 1
            self.removed = number
            if not logs.concerns(pattern, link):
                taken.append((False, pattern))
        if count > 0:
            self.removed = max(self.removed, logs.removed.end)
        return taken
