"""What a link between two hubs wants: counted wants, those that another covers left out, and tables of unwanted keys.

**What is announced.** A link holds every pattern that somebody behind it wants, except those that another pattern
covers. These are *hidden*, each below one *witness*. A witness may be hidden itself, so a pattern that covers a
hundred thousand others takes them over without touching them.

**Jobs.** When a wide pattern comes or goes, every pattern below it may have to be looked at. That is done in steps, by
:meth:`Interest.work`, and each job belongs to the user whose change began it. The jobs of one user may wait for any
length of time while those of others go on, and no wanted pattern is without cover meanwhile:

* a pattern that goes is given up only after all that it hid have been announced or have found another witness;
* a hidden pattern that is wanted no more stays below its witness as long as it hides others itself (it is *fading*), so
  whoever takes its witness away comes upon them;
* what is to be added is told before what is to be removed.

A job that waits leaves at worst more announced than need be.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Final

from ..covering import segment_covers
from ..matcher import SEPARATOR, _Node, cut, is_literal, matches, stars_after

__all__ = ["Feed", "Interest", "KeyTable"]

TABLE_BYTES: Final = 1024 * 1024
"""Bytes of the keys in one :class:`KeyTable`. Keys that are longer than most make it forget others sooner."""


class Interest:
    """What one link holds at its other end: counted wants, those that another covers left out.

    Call :meth:`add` and :meth:`remove` for each change, :meth:`work` until there is no more to do for that user, and
    :meth:`take` for what the other end has to be told. A count may be below zero for a while: patterns that were
    wanted before may be added in slices, while changes come in between.

    :param most: how many patterns are announced at most before they are widened: to the first segment that most of
        them have in common, and in the end to the empty pattern.
    """

    def __init__(self, separator: bytes = SEPARATOR, most: int = 65_536) -> None:
        self._separator = separator
        self.most = most
        self._wants: dict[bytes, int] = {}
        self._announced: dict[bytes, None] = {}
        self._witness: dict[bytes, bytes] = {}  # of each hidden pattern
        self._hidden: dict[bytes, dict[bytes, None]] = {}  # by witness
        self._leaving: dict[bytes, None] = {}  # announced, wanted no more, and still hiding others
        self._root: _Node[bytes] = _Node()  # of all that is announced but for what is leaving
        self._jobs: dict[int, deque[Iterator[None]]] = {}  # by the user whose change began them
        self._to_add: OrderedDict[bytes, None] = OrderedDict()  # what the other end has to be told
        self._to_remove: OrderedDict[bytes, None] = OrderedDict()
        self._widened: dict[bytes, None] = {}
        self._families: dict[bytes, int] = {}  # how many of what is announced
        self._widen_at = most

    def __len__(self) -> int:
        """How many patterns are announced."""
        return len(self._announced)

    @property
    def wanted(self) -> int:
        """How many distinct patterns are wanted."""
        return len(self._wants)

    @property
    def widened(self) -> bool:
        """Whether more is announced than is wanted."""
        return bool(self._widened)

    @property
    def announced(self) -> list[bytes]:
        """The patterns that the other end holds once it was told all changes."""
        return list(self._announced)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do or to tell."""
        return not self._jobs and self.is_told

    @property
    def is_told(self) -> bool:
        """Whether the other end was told all that it has to know. Jobs that are left only reduce what it holds."""
        return not self._to_add and not self._to_remove

    # -- wants --------------------------------------------------------------------------------------

    def add(self, pattern: bytes, user: int = 0) -> None:
        """Somebody wants ``pattern``. The jobs that follow belong to ``user``."""
        count = self._wants.get(pattern, 0) + 1
        if count:
            self._wants[pattern] = count
        else:
            del self._wants[pattern]
        if count == 1 and pattern not in self._widened:
            self._want(pattern, user)

    def remove(self, pattern: bytes, user: int = 0) -> None:
        """Somebody who wanted ``pattern`` no longer does. The jobs that follow belong to ``user``."""
        count = self._wants.get(pattern, 0) - 1
        if count:
            self._wants[pattern] = count
        else:
            del self._wants[pattern]
            if pattern not in self._widened:
                self._unwant(pattern, user)
            if self._widened and len(self._wants) * 2 <= self.most:
                self._narrow_again(user)

    def _is_wanted(self, pattern: bytes) -> bool:
        return self._wants.get(pattern, 0) > 0 or pattern in self._widened

    def _want(self, pattern: bytes, user: int) -> None:
        if pattern in self._leaving:
            del self._leaving[pattern]
            self._insert(pattern)
            self._begin(self._hide_below(pattern), user)
        elif pattern not in self._witness:
            self._place(pattern, user)
        self._look_at_room(user)

    def _place(self, pattern: bytes, user: int) -> None:
        """Hide a pattern below one that covers it, or announce it."""
        witness = self._find_cover(pattern)
        if witness is not None:
            self._hide(pattern, witness)
            return
        self._announced[pattern] = None
        family = self._family(pattern)
        self._families[family] = self._families.get(family, 0) + 1
        self._insert(pattern)
        self._note(pattern, True)
        if not is_literal(pattern, self._separator):
            self._begin(self._hide_below(pattern), user)

    def _hide(self, pattern: bytes, witness: bytes) -> None:
        self._witness[pattern] = witness
        self._hidden.setdefault(witness, {})[pattern] = None

    def _unhide(self, pattern: bytes) -> None:
        witness = self._witness.pop(pattern)
        hidden = self._hidden[witness]
        del hidden[pattern]
        if not hidden:
            del self._hidden[witness]

    def _pop_hidden(self, witness: bytes) -> bytes:
        """Take one of the patterns that a witness hides from it."""
        hidden = self._hidden[witness]
        pattern, _ = hidden.popitem()  # from the end: a dictionary's start is slow to find once it is empty
        del self._witness[pattern]
        if not hidden:
            del self._hidden[witness]
        return pattern

    def _unwant(self, pattern: bytes, user: int) -> None:
        if pattern in self._witness:
            if pattern in self._hidden:
                self._begin(self._fade(pattern, user), user)
            else:
                self._unhide(pattern)
        elif pattern in self._announced and pattern not in self._leaving:
            self._extract(pattern)
            if pattern in self._hidden:
                self._leaving[pattern] = None
                self._begin(self._leave(pattern, user), user)
            else:
                self._give_up(pattern)

    def _give_up(self, pattern: bytes) -> None:
        del self._announced[pattern]
        if len(self._announced) <= self.most:
            self._widen_at = self.most
        family = self._family(pattern)
        self._families[family] -= 1
        if not self._families[family]:
            del self._families[family]
        self._note(pattern, False)

    # -- jobs ---------------------------------------------------------------------------------------

    def _begin(self, job: Iterator[None], user: int) -> None:
        self._jobs.setdefault(user, deque()).append(job)

    def work(self, steps: int, user: int = 0) -> bool:
        """Do up to ``steps`` steps of the jobs that a user's changes began; whether there is more to do."""
        while steps > 0 and (jobs := self._jobs.get(user)):
            steps -= 1
            try:
                next(jobs[0])
            except StopIteration:
                jobs.popleft()
                if not jobs:
                    del self._jobs[user]
                if not self._jobs:
                    self._look_at_room(user)
        return user in self._jobs

    def _hide_below(self, pattern: bytes) -> Iterator[None]:
        """Hide what a pattern that was just announced covers."""
        for other in self._covered_by(pattern):
            yield
            if pattern not in self._announced or pattern in self._leaving:
                return
            if other and other != pattern and other in self._announced and other not in self._leaving:
                self._extract(other)
                self._give_up(other)
                self._hide(other, pattern)

    def _fade(self, pattern: bytes, user: int) -> Iterator[None]:
        """Find other witnesses for what a hidden pattern hides that is wanted no more, and then forget it."""
        while not self._is_wanted(pattern) and pattern in self._witness:
            hidden = self._hidden.get(pattern)
            if not hidden:
                self._unhide(pattern)
                return
            below = self._pop_hidden(pattern)
            if self._is_wanted(below):
                self._place(below, user)
            else:
                self._hide(below, self._witness[pattern])  # it is fading too
            yield

    def _leave(self, pattern: bytes, user: int) -> Iterator[None]:
        """Announce what a pattern hides that is wanted no more, and then give it up."""
        while pattern in self._leaving:
            hidden = self._hidden.get(pattern)
            if not hidden:
                del self._leaving[pattern]
                self._give_up(pattern)
                return
            below = self._pop_hidden(pattern)
            if self._is_wanted(below):
                self._place(below, user)
            elif below in self._hidden:  # it is fading: take over what it hides, one by one
                self._hide(self._pop_hidden(below), pattern)
                self._hide(below, pattern)
            yield

    # -- widening -----------------------------------------------------------------------------------

    def widen(self, user: int = 0) -> None:
        """The other end takes no more patterns: ask it for everything."""
        self._widen_to(b"", user)

    def _look_at_room(self, user: int) -> None:
        """Where too much is announced, cover the largest family of patterns by what they have in common."""
        count = len(self._announced)
        # While work is left it may still become less, and looking takes a while: not for each pattern that comes.
        if count <= self.most or b"" in self._widened or (self._jobs and count <= self._widen_at):
            return
        self._widen_at = count + 1 + self.most // 16  # one for what it is widened to
        largest = max(self._families, key=self._families.__getitem__)
        # One that would not make at least half of the room free again is not worth having.
        worth = self._families[largest] * 2 >= self.most and largest not in self._widened
        self._widen_to(largest if worth else b"", user)

    def _family(self, pattern: bytes) -> bytes:
        """The first segment with its separator, which covers all that begin so; empty where there is no such."""
        first, separator, _ = pattern.partition(self._separator)
        return first + separator if separator else b""

    def _widen_to(self, pattern: bytes, user: int) -> None:
        if pattern in self._widened:
            return
        wanted = self._is_wanted(pattern)
        self._widened[pattern] = None
        if not wanted:
            self._want(pattern, user)

    def _narrow_again(self, user: int) -> None:
        widened, self._widened = self._widened, {}
        for pattern in widened:
            if not self._is_wanted(pattern):
                self._unwant(pattern, user)

    # -- what to tell -------------------------------------------------------------------------------

    def _note(self, pattern: bytes, added: bool) -> None:
        to_do, opposite = (self._to_add, self._to_remove) if added else (self._to_remove, self._to_add)
        if pattern in opposite:
            del opposite[pattern]  # which the other end has not heard of
        else:
            to_do[pattern] = None

    def take(self, count: int) -> list[tuple[bool, bytes]]:
        """Up to ``count`` changes to tell, in order: whether it was added (or removed), and the pattern."""
        taken: list[tuple[bool, bytes]] = []
        for added, patterns in (True, self._to_add), (False, self._to_remove):
            while patterns and len(taken) < count:
                taken.append((added, patterns.popitem(last=False)[0]))
        return taken

    def restart(self) -> None:
        """The other end has forgotten all: it has to be told everything again."""
        self._to_add = OrderedDict.fromkeys(self._announced)
        self._to_remove.clear()

    # -- the index of what is announced -------------------------------------------------------------

    def _insert(self, pattern: bytes) -> None:
        segments, below = cut(pattern, self._separator)
        node = self._root
        for segment in segments:
            node = node.child(segment)
        node.end(below)[pattern] = None

    def _extract(self, pattern: bytes) -> None:
        segments, below = cut(pattern, self._separator)
        path = [self._root]
        for segment in segments:
            path.append(path[-1].child(segment))
        path[-1].end(below).pop(pattern, None)
        for segment, parent, node in zip(reversed(segments), reversed(path[:-1]), reversed(path), strict=False):
            if not node.is_empty():
                break
            parent.drop(segment)

    def _find_cover(self, pattern: bytes) -> bytes | None:
        """Another pattern in the index that covers this one.

        Visits no more nodes than the shapes of what is announced have steps, and one chain, for the reason that
        :mod:`sbuslib.matcher` gives of keys: of the nodes whose segments cover those of ``pattern``, no two have the
        same shape, since the shape tells how many bytes of the pattern's own stem or segment each stem is. What is
        announced is wanted by users, and the steps of each user are bounded (``Limits.user_pattern_steps``).
        """
        segments, below = cut(pattern, self._separator)
        end = len(segments)
        stack = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            if node.below and (below or depth < end):
                for found in node.below:
                    if found != pattern:
                        return found
            if depth == end:
                continue
            last = depth == end - 1 and not below
            for child in _wider(node, segments[depth], last):
                if last:
                    for found in child.here or ():
                        if found != pattern:
                            return found
                else:
                    stack.append((child, depth + 1))
        return None

    def _covered_by(self, pattern: bytes) -> Iterator[bytes]:
        """Patterns in the index that this one covers; empty ones in between, so that each step is short.

        The index may change between two steps: what was in it all the time is found.
        """
        segments, below = cut(pattern, self._separator)
        end = len(segments)
        # Of nodes at one depth each: an iterator over a copy, since what is found is taken out of the index.
        stack = [(iter([self._root]), 0)]
        while stack:
            nodes, depth = stack[-1]
            node = next(nodes, None)
            if node is None:
                stack.pop()
                continue
            yield b""
            if depth >= end:
                if below:
                    yield from list(node.below or ())
                if depth > end or not below:
                    yield from list(node.here or ())
                if below and node.children:
                    stack.append((iter(list(node.children.values())), depth + 1))
                continue
            segment = segments[depth]
            children = node.children or {}
            if not segment.endswith(b"*"):
                if segment in children:
                    stack.append((iter([children[segment]]), depth + 1))
                continue
            last = depth == end - 1 and not below
            wider: list[_Node[bytes]] = []
            for text, child in list(children.items()):
                if segment_covers(segment, text, last):
                    wider.append(child)
                yield b""
            stack.append((iter(wider), depth + 1))


def _wider(node: _Node[bytes], segment: bytes, last: bool) -> list[_Node[bytes]]:
    """The children whose segment takes all that ``segment`` takes: ``segment_covers``, by the index."""
    found: list[_Node[bytes]] = []
    stem = segment.rstrip(b"*")
    stars = len(segment) - len(stem)
    if node.children is not None and segment in node.children:
        found.append(node.children[segment])
    if not stars:
        if node.lengths:
            node.follow_stars(segment, last, found)
        return found
    for length in node.lengths or ():
        by_count = (node.starred or {}).get(stem[:length]) if length <= len(stem) else None
        if by_count is None:
            continue
        if length == len(stem):
            if not last:  # in the last place only the segment itself would do
                found += [child for count, child in by_count.items() if count > stars]
        else:
            met = stars_after(stem, length)
            found += [child for count, child in by_count.items() if (count == met + 1 if last else count > met)]
    return found


class Feed:
    """What was wanted when a link began, to be added to its interest in slices while changes come in between."""

    def __init__(self, patterns: Iterable[list[bytes]] = ()) -> None:
        self._left = deque(patterns)

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, count: int) -> list[bytes]:
        """The next patterns, up to ``count``."""
        taken: list[bytes] = []
        while self._left and len(taken) < count:
            some = self._left[0]
            wanted = count - len(taken)
            taken += some[-wanted:]
            del some[-wanted:]
            if not some:
                self._left.popleft()
        return taken


class KeyTable:
    """Keys that nobody wants, at most ``most`` and ``most_bytes`` of them: the oldest make room for new ones."""

    def __init__(self, most: int, most_bytes: int = TABLE_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self.bytes = 0

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

    def keys(self) -> list[bytes]:
        """All keys, oldest first."""
        return list(self._keys)

    def matched(self, pattern: bytes, separator: bytes) -> Iterator[bytes | None]:
        """The keys that ``pattern`` matches, and ``None`` for each that it does not: one a step."""
        for key in self.keys():
            yield key if matches(pattern, key, separator) else None
