"""The index that finds the subscribers of a name: those that hold a substring of it.

Pure. A substring is text, and text contains text exactly if its UTF-8 contains the other's.

**The theory.** A few substrings are tried one by one. More of them go into Aho-Corasick automata (the package
``pyahocorasick``). An automaton finds all of its texts in one pass over the name, however many it holds. But it cannot
be changed, only built again, which takes a tenth of a second for 10,000 random texts. So texts are kept in generations,
as in a log-structured store. The newest texts are in a plain list. When that is full, it joins the *young* automaton,
which is small enough to be built again in a millisecond or two. When the young automaton is full, it becomes a
*settled* one. Settled automata have a size limit that keeps the time for building them short. A text that is removed
only loses its holders, and goes when its automaton is built again. Without ``pyahocorasick`` all texts are in the list.

Names repeat, so the subscribers found for a name are remembered. When substrings have changed since, the remembered
name is checked against these few substrings only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from .limits import TcpLimits

try:
    import ahocorasick as _ahocorasick
except ImportError:  # the extra [tcp] is not installed
    _ahocorasick = None

__all__ = ["CACHED_NAME_BYTES", "Substrings"]

PLAIN_SUBSTRINGS: Final = 32
"""Substrings that are tried one by one. More are put into an automaton."""

YOUNG_SUBSTRINGS: Final = 512
"""Most substrings of the young automaton. Each new list builds it again, which takes a millisecond at this size."""

AUTOMATON_SUBSTRINGS: Final = 4_096
"""Most substrings of a settled automaton. Building it takes some ten milliseconds at this size."""

RECENT_CHANGES: Final = 64
"""Changes of substrings that a remembered name is checked against. After more changes it is looked up anew."""

CACHED_NAME_BYTES: Final = 512
"""Longest name that is remembered. With ``TcpLimits.cached_names`` it bounds the memory."""

S = TypeVar("S", bound=Hashable)


class _Automaton:
    """A set of texts that can be found all at once."""

    __slots__ = ("search", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        assert _ahocorasick is not None
        self.texts = set(texts)
        automaton: Any = _ahocorasick.Automaton()
        for text in self.texts:
            automaton.add_word(text, text)
        automaton.make_automaton()
        self.search: Callable[[str], Iterator[tuple[int, str]]] = automaton.iter


class _Texts:
    """Texts, and which of them a name contains."""

    def __init__(self, alive: Any) -> None:
        self._alive = alive  # a container of the texts that still have holders
        self._newest: dict[str, None] = {}
        self._automata: list[_Automaton] = []  # the young one last
        self._placed: dict[str, _Automaton] = {}

    def add(self, text: str) -> None:
        """Find ``text`` from now on."""
        if text in self._placed:
            return
        self._newest[text] = None
        if len(self._newest) > PLAIN_SUBSTRINGS and _ahocorasick is not None:
            self._merge()

    def remove(self, text: str) -> None:
        """``text`` has lost its last holder."""
        self._newest.pop(text, None)
        if not self._alive:
            self._automata.clear()
            self._placed.clear()

    def _merge(self) -> None:
        """Put the newest texts into the young automaton; once that is full, settle it."""
        texts = set(self._newest)
        self._newest.clear()
        if self._automata and len(self._automata[-1].texts) < YOUNG_SUBSTRINGS:
            texts |= self._take_out(self._automata.pop())
        if len(texts) >= YOUNG_SUBSTRINGS:
            # Texts of old automata may have lost their holders. Automata that became small are merged with this one.
            for automaton in list(self._automata):
                if len(texts) >= AUTOMATON_SUBSTRINGS:
                    break
                living = sum(map(self._alive.__contains__, automaton.texts))
                if living + len(texts) <= AUTOMATON_SUBSTRINGS:
                    self._automata.remove(automaton)
                    texts |= self._take_out(automaton)
        merged = _Automaton(texts)
        # The young automaton is always the last, so the last one tells whether it may still grow.
        self._automata.append(merged)
        for text in texts:
            self._placed[text] = merged

    def _take_out(self, automaton: _Automaton) -> set[str]:
        """The texts of ``automaton`` that are still held; it is about to be forgotten."""
        for text in automaton.texts:
            del self._placed[text]
        return {text for text in automaton.texts if text in self._alive}

    def find(self, name: str) -> list[str]:
        """The texts that ``name`` contains. Some may come twice, and some may have no holders."""
        found = [text for text in self._newest if text in name]
        for automaton in self._automata:
            for _, text in automaton.search(name):
                found.append(text)
        return found


class Substrings(Generic[S]):
    """The index from name to subscribers, which are any hashable objects.

    Subscriptions are counted: a substring added twice is in force until it was removed twice. Not for several
    threads at once.
    """

    def __init__(self, limits: TcpLimits | None = None) -> None:
        self._limits = limits if limits is not None else TcpLimits()
        self._held: dict[S, dict[str, int]] = {}
        self._holders: dict[str, dict[S, None]] = {}
        self._texts = _Texts(self._holders)
        self._remembered: dict[str, tuple[int, tuple[S, ...]]] = {}
        self._changes: deque[str] = deque(maxlen=RECENT_CHANGES)
        self._version = 0

    def __len__(self) -> int:
        """How many pairs of subscriber and distinct substring are in force."""
        return sum(map(len, self._held.values()))

    def held(self, subscriber: S) -> dict[str, int]:
        """A copy of what ``subscriber`` holds: substring to count."""
        return dict(self._held.get(subscriber, ()))

    def count(self, subscriber: S) -> int:
        """How many distinct substrings ``subscriber`` holds."""
        return len(self._held.get(subscriber, ()))

    def holds(self, subscriber: S, substring: str) -> bool:
        """Whether ``subscriber`` holds just this substring."""
        return substring in self._held.get(subscriber, ())

    def add(self, substring: str, subscriber: S) -> bool:
        """Subscribe; ``True`` when ``subscriber`` did not hold this substring before."""
        held = self._held.setdefault(subscriber, {})
        count = held.get(substring, 0)
        held[substring] = count + 1
        if count:
            return False
        holders = self._holders.setdefault(substring, {})
        if not holders and substring:
            self._texts.add(substring)
        holders[subscriber] = None
        self._changed(substring)
        return True

    def remove(self, substring: str, subscriber: S) -> bool | None:
        """Take one subscription back: ``True`` when it was the last, ``None`` when there was none."""
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
        """Remove all substrings of ``subscriber``. Returns what it held, substring to count."""
        held = self._held.pop(subscriber, {})
        for substring in held:
            self._forget(substring, subscriber)
        return held

    def _forget(self, substring: str, subscriber: S) -> None:
        holders = self._holders[substring]
        del holders[subscriber]
        if not holders:
            del self._holders[substring]
            if substring:
                self._texts.remove(substring)
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
        found = self._search(name)
        if len(name) <= CACHED_NAME_BYTES:
            if remembered is None and len(self._remembered) >= self._limits.cached_names:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[name] = self._version, found
        return found

    def _still_true(self, name: str, version: int) -> bool:
        """Whether no substring that changed since ``version`` is in ``name``."""
        behind = self._version - version
        if behind > len(self._changes):
            return False
        return not any(text in name for text in islice(reversed(self._changes), behind))

    def _search(self, name: str) -> tuple[S, ...]:
        holders = self._holders
        found = dict(holders[""]) if "" in holders else {}
        for text in self._texts.find(name):
            if text in holders:
                found.update(holders[text])
        return tuple(found)
