"""Index that finds the subscribers of a name: those that hold a substring of it.

Pure. A substring is text, and text contains text exactly if its UTF-8 contains the other's.

Each name is compared with each substring, which takes some 40 ns: peers hold a handful, and
:class:`~sbuslib.tcp.limits.TcpLimits` bounds how many all hold together.

Names repeat, so the subscribers found for a name are remembered. When substrings have changed since, the remembered
name is checked against these few substrings only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from itertools import islice
from typing import Final, Generic, TypeVar

from .limits import TcpLimits

RECENT_CHANGES: Final = 64
"""Changes of substrings that a remembered name is checked against. After more changes it is looked up anew."""

CACHED_NAME_BYTES: Final = 512
"""Longest name that is remembered. With ``TcpLimits.cached_names`` it bounds the memory."""

S = TypeVar("S", bound=Hashable)


class Substrings(Generic[S]):
    """The index from name to subscribers, which are any hashable objects.

    Subscriptions are counted: a substring added twice is in force until it was removed twice. Not for several
    threads at once.
    """

    def __init__(self, limits: TcpLimits | None = None) -> None:
        self._limits = limits if limits is not None else TcpLimits()  # how many names are remembered
        self._held: dict[S, dict[str, int]] = {}  # how often each subscriber holds a substring
        self._holders: dict[str, dict[S, None]] = {}  # subscribers, by substring
        # Subscribers of a name, and the version in which that was true.
        self._remembered: dict[str, tuple[int, tuple[S, ...]]] = {}
        self._changes: deque[str] = deque(maxlen=RECENT_CHANGES)  # substrings that changed of late
        self._version = 0  # changes so far

    def __len__(self) -> int:
        """Number of pairs of subscriber and distinct substring in force."""
        return sum(map(len, self._held.values()))

    @property
    def distinct(self) -> int:
        """Number of distinct substrings that all subscribers hold together."""
        return len(self._holders)

    def count(self, subscriber: S) -> int:
        """Number of distinct substrings that ``subscriber`` holds."""
        return len(self._held.get(subscriber, ()))

    def add(self, substring: str, subscriber: S) -> bool:
        """Add one subscription: ``True`` if ``subscriber`` did not hold this substring before."""
        held = self._held.setdefault(subscriber, {})
        count = held.get(substring, 0)
        held[substring] = count + 1
        if count:
            return False
        holders = self._holders.setdefault(substring, {})
        holders[subscriber] = None
        self._changed(substring)
        return True

    def remove(self, substring: str, subscriber: S) -> bool | None:
        """Remove one subscription: ``True`` if it was the last, ``None`` if there was none."""
        held = self._held.get(subscriber)
        if held is None or substring not in held:
            return None
        if held[substring] > 1:
            held[substring] -= 1
            return False
        del held[substring]
        if not held:
            del self._held[subscriber]
        self._forget(substring, subscriber)
        return True

    def discard(self, subscriber: S) -> dict[str, int]:
        """Remove all substrings of ``subscriber``. Returns its substrings with their counts."""
        held = self._held.pop(subscriber, {})
        for substring in held:
            self._forget(substring, subscriber)
        return held

    def _forget(self, substring: str, subscriber: S) -> None:
        holders = self._holders[substring]
        del holders[subscriber]
        if not holders:
            del self._holders[substring]
        self._changed(substring)

    def _changed(self, substring: str) -> None:
        self._version += 1
        self._changes.append(substring)

    def subscribers(self, name: str) -> tuple[S, ...]:
        """The subscribers with at least one substring that ``name`` contains, each once, in any order."""
        remembered = self._remembered.get(name)
        if remembered is not None:
            if remembered[0] == self._version:
                return remembered[1]
            if self._still_true(name, remembered[0]):
                self._remembered[name] = self._version, remembered[1]
                return remembered[1]
        subscribers = self._search(name)
        if len(name) <= CACHED_NAME_BYTES:
            if remembered is None and len(self._remembered) >= self._limits.cached_names:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[name] = self._version, subscribers
        return subscribers

    def _still_true(self, name: str, version: int) -> bool:
        """Whether no substring that changed since ``version`` is in ``name``."""
        behind = self._version - version
        if behind > len(self._changes):
            return False
        return not any(text in name for text in islice(reversed(self._changes), behind))

    def _search(self, name: str) -> tuple[S, ...]:
        subscribers: dict[S, None] = {}
        for text, holders in self._holders.items():
            if text in name:
                subscribers.update(holders)
        return tuple(subscribers)
