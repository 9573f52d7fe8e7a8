"""What this hub wants from the hub above: what is wanted here, narrowed to what may come down."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable

from ..covering import narrow
from .interest import Interest, Reader

__all__ = ["Wanted"]


class Wanted:
    """The subscriptions of this hub at the hub above.

    :param bounds: patterns that may come down; ``None``: all.
    """

    def __init__(self, interest: Interest, bounds: list[bytes] | None, separator: bytes) -> None:
        self._interest = interest
        self._above: Hashable = None
        self._bounds = bounds
        self._separator = separator
        self._reader: Reader | None = None  # while the relay runs
        self._parts: dict[bytes, list[bytes]] = {}  # of each pattern that is wanted here
        self._held: Counter[bytes] = Counter()  # for how many of these each part is held above
        self._anew: deque[bytes] = deque()  # patterns that have to be narrowed to other bounds

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, above: Hashable) -> None:
        """The hub above holds nothing as yet. What ``above`` holds here, it is not asked for."""
        self.end()
        self._above = above
        self._reader = self._interest.reader(above)

    def end(self) -> None:
        """The relay has stopped."""
        self._reader = None
        self._interest.forget(self._above)
        self._parts.clear()
        self._held.clear()
        self._anew.clear()

    def widen(self) -> None:
        """The hub above takes no more patterns: ask for everything."""
        if self._reader is not None:
            self._reader.widen()

    def set_bounds(self, bounds: list[bytes] | None) -> None:
        """From now on other patterns may come down."""
        self._bounds = bounds
        self._anew.extend(self._parts)

    @property
    def is_told(self) -> bool:
        """Whether the hub above was told all."""
        return self._reader is None or (self._reader.is_told and not self._anew)

    def take(self, count: int) -> list[tuple[bool, bytes]]:
        """Some ``count`` changes to tell, in order: whether it is wanted, and the pattern."""
        changes: list[tuple[bool, bytes]] = []
        while self._anew and len(changes) < count:
            pattern = self._anew.popleft()
            if pattern in self._parts:
                self._set(pattern, True, changes)
        if self._reader is not None:
            for wanted, pattern in self._reader.take(max(0, count - len(changes))):
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
