"""What the hub above wants of what is published here: everything, what it announced, or all but what it pruned.

Those below have to know it too, since what they publish may have to go further up. They are told by patterns, one by
one: what the hub above wanted before the link broke is taken back in slices (:meth:`Demand.work`), after everything
has been wanted in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..core.router import Router
from ..covering import narrow
from ..limits import Limits
from ..matcher import Shapes, Subscriptions, shape_of
from .pruning import KeyTable

__all__ = ["Demand", "index"]


def index(patterns: Iterable[bytes] | None, separator: bytes) -> Subscriptions[bytes] | None:
    """An index that tells whether a key matches any of ``patterns``; ``None`` for no bounds."""
    if patterns is None:
        return None
    made: Subscriptions[bytes] = Subscriptions(separator)
    for pattern in patterns:
        made.add(pattern, b"")
    return made


def _always(key: bytes) -> bool:
    return True


def _never(key: bytes) -> bool:
    return False


class Demand:
    """What the hub above wants. It is taken to want everything until it has said all.

    :param export: the patterns that may go up, ``None`` for all.
    :param tell: called with each pattern that the hub above begins (``True``) or ceases to want.
    """

    def __init__(
        self, router: Router[Any], limits: Limits, export: list[bytes] | None, tell: Callable[[bytes, bool], None]
    ) -> None:
        self._router = router
        self._limits = limits
        self._separator = router.namespace.separator
        self._export = export
        self._exports = index(export, self._separator)
        self._tell = tell
        self._all = False
        self._had: Callable[[bytes], bool] = _always
        self._resumed = False
        self._former: deque[bytes] = deque()  # which those below have yet to be told of
        self._forget()

    def _forget(self) -> None:
        self._wanted: Subscriptions[bytes] = Subscriptions(self._separator)
        self._announced: dict[bytes, list[bytes]] = {}
        self._bytes = 0  # of these patterns
        self._shapes = Shapes()
        self._anew: deque[bytes] = deque()  # announced patterns that are to be narrowed to other exports
        self._too_many = False
        self.pruned = KeyTable(self._limits.pruned_keys)

    def __len__(self) -> int:
        """How many patterns were announced."""
        return len(self._announced)

    def wants(self, key: bytes) -> bool:
        """Whether a message under a key that is not secret goes up."""
        if self._exports is not None and not self._exports.subscribers(key):
            return False
        if self._all:
            return key not in self.pruned
        return bool(self._wanted.subscribers(key))

    def patterns(self) -> list[bytes]:
        """The patterns that the links below count as wanted above: for a link that comes."""
        return [*(self._everything() if self._all else ()), *self._wanted.patterns(b""), *self._former]

    def _everything(self) -> list[bytes]:
        return [b""] if self._export is None else self._export

    def want_all(self, everything: bool) -> None:
        """Whether the hub above is taken to want all that may go up."""
        everything = everything or self._too_many
        if everything is self._all:
            return
        self._all = everything
        for pattern in self._everything():
            self._tell(pattern, everything)
        self._router.reconsider_all()

    def had_wanted(self, key: bytes) -> bool:
        """Whether a message that was kept, and is not wanted now, may have been for somebody who has not come back.

        It was not if the hub above had told all that it wanted before the link broke, and that was not among it.
        """
        return self._had(key)

    def resume(self) -> None:
        """All that was kept was sent."""
        self._had = _never
        self._resumed = True

    def _remember(self) -> None:
        """Remember what is wanted now, for :meth:`had_wanted`."""
        wanted, pruned = self._wanted, self.pruned
        if self._resumed and self._all:
            self._had = lambda key: key not in pruned
        elif self._resumed:
            self._had = lambda key: bool(wanted.subscribers(key))
        elif self._announced or not self._all:
            self._had = _always  # it broke before all was told or sent
        self._resumed = False

    def begin_anew(self) -> None:
        """The link broke: forget what the hub above said, and take it to want everything."""
        self._remember()
        former = self._wanted.patterns(b"")
        self._forget()
        self.want_all(True)
        self._former.extend(former)
        self._router.reconsider_all()

    @property
    def is_bounded(self) -> bool:
        """Whether only some patterns may go up."""
        return self._export is not None

    def set_export(self, export: list[bytes] | None) -> None:
        """From now on other patterns may go up. What was announced is narrowed anew, in small steps."""
        former, self._export = self._everything(), export
        self._exports = index(export, self._separator)
        if self._all:
            for pattern in self._everything():
                self._tell(pattern, True)
            for pattern in former:
                self._tell(pattern, False)
        self._anew = deque(self._announced)
        self._router.reconsider_all()

    def work(self, steps: int) -> bool:
        """Tell some of what was not told yet; whether there is more."""
        for _ in range(min(steps, len(self._former))):
            self._tell(self._former.popleft(), False)
        for _ in range(min(steps, len(self._anew))):
            pattern = self._anew.popleft()
            if (before := self._announced.get(pattern)) is not None:
                narrowed = self._announced[pattern] = narrow(pattern, self._export, self._separator)
                self._want(narrowed)
                self._unwant(before)
        return bool(self._former or self._anew)

    def end(self) -> None:
        """The relay has stopped: nothing is wanted above."""
        for pattern in self.patterns():
            self._tell(pattern, False)
        self._former.clear()
        self._forget()
        self._all = self._resumed = False
        self._had = _always
        self._router.reconsider_all()

    # -- what the hub above says --------------------------------------------------------------------

    def announce(self, pattern: bytes) -> None:
        """Somebody above wants a pattern."""
        if pattern in self._announced:
            return
        if not self._has_room(pattern):
            self._too_many = True  # to send everything takes neither memory nor time
            self.want_all(True)
            return
        self._bytes += len(pattern)
        narrowed = self._announced[pattern] = narrow(pattern, self._export, self._separator)
        self._want(narrowed)

    def _want(self, patterns: Iterable[bytes]) -> None:
        for one in patterns:
            if self._wanted.add(one, b""):
                self._shapes.add(shape_of(one, self._separator))
                self._router.reconsider(one)
                self._tell(one, True)

    def _unwant(self, patterns: Iterable[bytes]) -> None:
        for one in patterns:
            if self._wanted.remove(one, b""):
                self._shapes.remove(shape_of(one, self._separator))
                self._router.reconsider(one)
                self._tell(one, False)

    def _has_room(self, pattern: bytes) -> bool:
        """Whether another pattern stays within what a user of this hub may have."""
        limits = self._limits
        if len(self._announced) >= limits.user_patterns or len(pattern) > limits.pattern_bytes:
            return False
        if self._bytes + len(pattern) > limits.user_pattern_bytes:
            return False
        if pattern.count(self._separator) >= limits.pattern_segments:
            return False
        steps = self._shapes.steps + self._shapes.would_add(shape_of(pattern, self._separator))
        return steps <= limits.user_pattern_steps

    def take_back(self, pattern: bytes) -> None:
        """Nobody above wants a pattern any more."""
        if pattern in self._announced:
            self._bytes -= len(pattern)
        self._unwant(self._announced.pop(pattern, ()))

    def prune(self, key: bytes) -> None:
        """Nobody above wants a key."""
        for one in (key, *self.pruned.add(key)):
            self._router.reconsider(one)

    def graft(self, key: bytes) -> None:
        """Somebody above may want a key again. Links below that were told not to send it are told to send it."""
        if self.pruned.discard(key):
            self._router.reconsider(key)
            self._tell(key, True)
            self._tell(key, False)
