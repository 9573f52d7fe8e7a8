"""Matching of patterns and keys: the plain rule, and an index that applies it to many patterns at once.

**The rule.** Walk pattern and key from the left. Equal bytes advance both. At a ``*`` of the pattern that faces another
byte, the key skips to its next separator or its end. Any other difference is no match. When the key has ended, the
pattern must have ended too. When only the pattern has ended, it matches if it is empty or ends in the separator. The
walk never goes back, which decides all corner cases: ``a/*`` does not match ``a/``, ``a/*/c`` matches ``a//c``, and a
``*`` in a key equals one in the pattern, byte for byte.

**The theory of the index.** A separator in the pattern only ever meets one in the key. So the walk can be cut at
separators: the *n*-th segment of the pattern meets the *n*-th segment of the key and nothing else. Within a segment the
walk goes along equal bytes up to the first ``*`` that faces another byte, and from there skips to the segment's end,
where only further ``*`` may remain. Therefore a segment of a pattern matches the segment *s* of a key in just two ways:

* it equals *s*, or
* it is a stem, which ends in no star and with which *s* starts, followed by stars: by more stars than *s* has after the
  stem, since those are met one by one. In the key's last segment there is exactly one star more, and *s* must go on:
  once the key has ended, a further star would meet nothing.

So a node of the trie keeps its children by their whole text. The children that end in stars are also kept by stem. A
look-up costs one probe for the text, and one for each length of stem in use at that node. Patterns without ``*`` that
do not end in a separator match one key only, and are in a plain dictionary.

**The cost of a look-up.** The *shape* of a pattern is which of its segments end in stars, and for each of these how
long the stem is and how many stars follow. The text is not part of it. One key meets at most one node of each shape:
where the shape has no stars, the node's segment is the key's own; where it has stars, the stem is as many bytes of the
key's segment as the shape says. So among the nodes that a key reaches, no two have the same shape. The nodes without
stars are one chain, no longer than the deepest pattern. Each other node is on the path of some pattern, at or after its
first segment with stars. So it is counted in the *steps* of that pattern's shape, which are the segments from the first
one with stars to the last one. The same holds for each probe by a length of stem, since some pattern goes on with it.
**So a look-up visits at most one chain, and as many nodes as all distinct shapes in use have steps together; and it
probes at most twice as often.** ``*/a``, ``*/b`` and a hundred thousand like them have one shape, of two steps;
``*/x``, ``**/x``, ``a*/x``, ``ab*/x`` have four shapes. :mod:`sbuslib.core.quotas` bounds what one user may add to that
sum. Source: the search by tuples of Srinivasan, Suri and Varghese, "Packet Classification using Tuple Space Search"
(SIGCOMM 1999), whose tuples are these shapes.

Nothing here walks along the bytes of a key in Python: a key may have 400,000 of them, all stars.

This module knows nothing of the reserved token ``!``: see :mod:`sbuslib.secrets`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from math import inf
from typing import Generic, TypeVar

from .errors import UsageError

__all__ = ["SEPARATOR", "Pattern", "Shapes", "Subscriptions", "check_separator", "matches", "stars_after"]

SEPARATOR = b"/"

S = TypeVar("S", bound=Hashable)


def check_separator(separator: bytes) -> bytes:
    """``separator`` itself.

    Raises :exc:`~sbuslib.errors.UsageError` unless it is one byte of ASCII, and neither NUL, ``*``, ``!`` nor a
    digit: between the numbers of a secret key, a digit would make one client's key read as another's.
    """
    allowed = isinstance(separator, bytes) and len(separator) == 1 and separator.isascii()
    if not allowed or separator in b"\0*!0123456789":
        given = separator.decode("ascii", "backslashreplace") if isinstance(separator, bytes) else repr(separator)
        raise UsageError(f"a separator is one byte of ASCII, and no NUL, '*', '!' or digit, not {given}")
    return separator


def matches(pattern: bytes, key: bytes, separator: bytes = SEPARATOR) -> bool:
    """Return whether ``pattern`` matches ``key``, by the rule in the module's docstring.

    >>> matches(b"room/*/temp", b"room/1/temp"), matches(b"room/", b"room/1/temp"), matches(b"a/*", b"a/")
    (True, True, False)
    """
    return Pattern(pattern, separator).matches(key)


class Pattern:
    """A pattern that was cut at its separators, once for all uses of its parts.

    >>> [(pattern.segments, pattern.below) for pattern in (Pattern(raw, b"/") for raw in (b"a/*", b"a/*/", b""))]
    [([b'a', b'*'], False), ([b'a', b'*'], True), ([], True)]
    """

    __slots__ = ("below", "is_literal", "mark", "raw", "segments", "separator")

    def __init__(self, raw: bytes, separator: bytes, mark: bytes = b"") -> None:
        self.raw = raw
        self.separator = separator  # one byte
        self.mark = mark  # distinguishes patterns of a separate index from equal ones
        self.segments = raw.split(separator)
        self.below = not self.segments[-1]  # whether it also matches all keys with further segments
        if self.below:
            self.segments.pop()
        self.is_literal = not self.below and b"*" not in raw  # whether it matches one key only: itself

    @property
    def name(self) -> bytes:
        """The pattern with its mark."""
        return self.mark + self.raw

    @property
    def shape(self) -> bytes:
        """Which segments end in stars, with the length of each stem and the number of its stars; empty if none does.

        >>> [Pattern(raw, b"/").shape for raw in (b"room/*/temp", b"house/*/door", b"a/b**/", b"a/b/")]
        [b'/0*1/', b'/0*1/', b'/1*2', b'']
        """
        if b"*" not in self.raw:
            return b""
        marks = []
        for segment in self.segments:
            stem = segment.rstrip(b"*")
            marks.append(b"%d*%d" % (len(stem), len(segment) - len(stem)) if len(stem) < len(segment) else b"")
        return b"/".join(marks) if any(marks) else b""

    def matches(self, key: bytes) -> bool:
        """Whether it matches a key."""
        segments, below = self.segments, self.below
        count = len(segments)
        parts = key.split(self.separator, count)
        if len(parts) != count + below:
            return False
        last = -1 if below else count - 1  # the segment of the pattern that meets the last segment of the key

        for number, segment in enumerate(segments):
            part = parts[number]
            if segment == part:
                continue
            stem = segment.rstrip(b"*")
            stars = len(segment) - len(stem)
            if not stars or not part.startswith(stem):
                return False
            met = stars_after(part, len(stem))
            if number != last:
                if met >= stars:
                    return False
            elif met != stars - 1 or len(stem) + met == len(part):
                return False
        return True


def stars_after(text: bytes, start: int) -> int:
    """Count the stars in a row that ``text`` has from ``start`` on."""
    if not text.startswith(b"*", start):
        return 0
    rest = text[start:]
    return len(rest) - len(rest.lstrip(b"*"))


class Shapes:
    """The distinct shapes of some patterns. ``steps`` is the most that these patterns add to one look-up."""

    __slots__ = ("_counts", "steps")

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}  # of patterns, by shape
        self.steps = 0  # of all shapes

    def add(self, shape: bytes, most: float = inf) -> bool:
        """Add a pattern of this shape; ``False``, and nothing added, if that makes more than ``most`` steps."""
        if shape:
            count = self._counts.get(shape, 0)
            steps = self.steps if count else self.steps + _steps(shape)
            if steps > most:
                return False
            self.steps = steps
            self._counts[shape] = count + 1
        return True

    def remove(self, shape: bytes) -> None:
        """Remove a pattern of this shape."""
        if shape:
            left = self._counts.pop(shape) - 1
            if left:
                self._counts[shape] = left
            else:
                self.steps -= _steps(shape)


def _steps(shape: bytes) -> int:
    """Count the segments from the first one with stars to the last one."""
    return shape.lstrip(b"/").count(b"/") + 1


class _Node(Generic[S]):
    """Node of the trie: the segments that may follow, and the subscribers whose pattern ends here.

    Most nodes have one child and nothing else, so the rest is ``None`` until it is needed.
    """

    __slots__ = ("below", "children", "here", "lengths", "starred")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[S]] | None = None  # by segment
        # Those children that end in stars, again: stem -> number of stars -> child.
        self.starred: dict[bytes, dict[int, _Node[S]]] | None = None
        self.lengths: dict[int, int] | None = None  # how many of these stems are so long: a look-up probes each length
        self.here: dict[S, None] | None = None  # the pattern ended with the segment that led here
        self.below: dict[S, None] | None = None  # it ended with the separator after that segment

    def child(self, segment: bytes) -> _Node[S]:
        """The child for a pattern's segment, made if need be."""
        if self.children is None:
            self.children = {}
        node = self.children.get(segment)
        if node is None:
            node = self.children[segment] = type(self)()
            stem = segment.rstrip(b"*")
            if len(stem) < len(segment):
                if self.starred is None or self.lengths is None:
                    self.starred, self.lengths = {}, {}
                if stem not in self.starred:
                    self.starred[stem] = {}
                    self.lengths[len(stem)] = self.lengths.get(len(stem), 0) + 1
                self.starred[stem][len(segment) - len(stem)] = node
        return node

    def drop(self, segment: bytes) -> None:
        """Forget the child for ``segment``, which has become empty."""
        assert self.children is not None
        del self.children[segment]
        stem = segment.rstrip(b"*")
        if len(stem) < len(segment):
            assert self.starred is not None
            assert self.lengths is not None
            del self.starred[stem][len(segment) - len(stem)]
            if not self.starred[stem]:
                del self.starred[stem]
                self.lengths[len(stem)] -= 1
                if not self.lengths[len(stem)]:
                    del self.lengths[len(stem)]

    def is_empty(self) -> bool:
        return not (self.children or self.here or self.below)

    def end(self, below: bool) -> dict[S, None]:
        """The subscribers whose pattern ends here, without or with (``below``) a separator after it."""
        if below:
            if self.below is None:
                self.below = {}
            return self.below
        if self.here is None:
            self.here = {}
        return self.here

    def follow_stars(self, segment: bytes, last: bool, into: list[_Node[S]]) -> None:
        """Add to ``into`` the children whose segment ends in a star and matches ``segment`` of a key."""
        assert self.lengths is not None
        assert self.starred is not None
        size = len(segment)
        # No more probes than the segment has bytes, however many lengths of stems other clients' patterns have.
        for length in self.lengths if len(self.lengths) <= size else range(size + 1):
            by_count = self.starred.get(segment[:length]) if length <= size else None
            if by_count is None:
                continue
            met = 0  # stars of the key after the stem, counted no further than the patterns here have stars
            if segment.startswith(b"*", length):
                met = stars_after(segment[length : length + max(by_count)], 0)
            if last:
                node = by_count.get(met + 1) if length + met < size else None
                if node is not None:
                    into.append(node)
            elif met:
                into.extend(node for count, node in by_count.items() if count > met)
            else:
                into.extend(by_count.values())


class Subscriptions(Generic[S]):
    """The index from key to subscribers. Subscribers are any hashable objects.

    Subscriptions are counted: a pattern added twice is in force until it was removed twice. Not for
    several threads at once.
    """

    def __init__(self, separator: bytes, mark: bytes = b"") -> None:
        self._separator = check_separator(separator)  # one byte
        self.mark = mark  # of all its patterns
        self._held: dict[S, dict[bytes, int]] = {}  # by subscriber: patterns, and how many times each
        self._literal: dict[bytes, dict[S, None]] = {}  # holders of patterns that match one key
        self._wild: dict[bytes, dict[S, None]] = {}  # as in the node that each ends in
        self._root: _Node[S] = _Node()
        self._depths: dict[int, int] = {}  # how many patterns have so many segments
        self._depth = 0  # the most segments of any pattern

    def __len__(self) -> int:
        """How many pairs of subscriber and distinct pattern are in force."""
        return sum(map(len, self._held.values()))

    def patterns(self, subscriber: S) -> dict[bytes, int]:
        """The patterns that ``subscriber`` holds, with their counts: a copy."""
        return dict(self._held.get(subscriber, ()))

    def names(self, subscriber: S) -> list[bytes]:
        """The same without their counts, which takes a quarter of the time."""
        return list(self._held.get(subscriber, ()))

    def distinct(self) -> int:
        """How many different patterns are in force."""
        return len(self._literal) + len(self._wild)

    def everything(self) -> list[bytes]:
        """All patterns that are in force, copied."""
        return [*self._literal, *self._wild]

    def holders(self, pattern: bytes) -> Collection[S]:
        """The subscribers that hold just this pattern, as they are until the next change."""
        return self._literal.get(pattern, ()) or self._wild.get(pattern, ())

    def holds(self, pattern: bytes, subscriber: S) -> bool:
        """Whether ``subscriber`` holds just this pattern."""
        return pattern in self._held.get(subscriber, ())

    def count(self, subscriber: S) -> int:
        """How many distinct patterns ``subscriber`` holds."""
        return len(self._held.get(subscriber, ()))

    def times(self, pattern: bytes, subscriber: S) -> int:
        """How many times ``subscriber`` subscribed to just this pattern."""
        return self._held.get(subscriber, {}).get(pattern, 0)

    def add(self, pattern: Pattern, subscriber: S, times: int = 1) -> bool:
        """Subscribe, so many times; ``True`` when ``subscriber`` did not hold this pattern before."""
        raw = pattern.raw
        held = self._held.setdefault(subscriber, {})
        count = held.get(raw, 0)
        held[raw] = count + times
        if count:
            return False
        if pattern.is_literal:
            self._literal.setdefault(raw, {})[subscriber] = None
            return True

        node = self._root
        for segment in pattern.segments:
            node = node.child(segment)
        ends = self._wild[raw] = node.end(pattern.below)
        ends[subscriber] = None
        depth = len(pattern.segments)
        self._depths[depth] = self._depths.get(depth, 0) + 1
        self._depth = max(self._depth, depth)
        return True

    def remove(self, pattern: Pattern, subscriber: S) -> bool | None:
        """Unsubscribe once. ``True``: that was the last of this pattern. ``None``: there was none."""
        raw = pattern.raw
        held = self._held.get(subscriber)
        if held is None or raw not in held:
            return None
        if held[raw] > 1:
            held[raw] -= 1
            return False
        del held[raw]
        if not held:
            del self._held[subscriber]
        self._forget(pattern, subscriber)
        return True

    def withdraw(self, pattern: Pattern, subscriber: S) -> bool:
        """Unsubscribe as often as it subscribed, which takes no longer for many. Returns whether it was subscribed."""
        held = self._held.get(subscriber, {})
        if pattern.raw not in held:
            return False
        held[pattern.raw] = 1
        return bool(self.remove(pattern, subscriber))

    def discard_one(self, subscriber: S) -> Pattern | None:
        """Take out one of ``subscriber``'s patterns, with its whole count, and return it. ``None``: none is left."""
        held = self._held.get(subscriber)
        if held is None:
            return None
        pattern = Pattern(held.popitem()[0], self._separator, self.mark)
        if not held:
            del self._held[subscriber]
        self._forget(pattern, subscriber)
        return pattern

    def _forget(self, pattern: Pattern, subscriber: S) -> None:
        if pattern.is_literal:
            subscribers = self._literal[pattern.raw]
            del subscribers[subscriber]
            if not subscribers:
                del self._literal[pattern.raw]
            return

        segments = pattern.segments
        path = [self._root]
        for segment in segments:
            path.append(path[-1].child(segment))
        ends = path[-1].end(pattern.below)
        del ends[subscriber]
        if not ends:
            del self._wild[pattern.raw]
        for segment, parent, node in zip(reversed(segments), reversed(path[:-1]), reversed(path), strict=False):
            if not node.is_empty():
                break
            parent.drop(segment)
        depth = len(segments)
        self._depths[depth] -= 1
        if not self._depths[depth]:
            del self._depths[depth]
            self._depth = max(self._depths, default=0)

    def subscribers(self, key: bytes) -> tuple[S, ...]:
        """The subscribers with at least one pattern that matches ``key``, each once, in any order.

        See the module's docstring for the cost.
        """
        literal = self._literal.get(key)
        root = self._root
        if not (self._depth or root.below):
            return tuple(literal) if literal is not None else ()
        found: dict[S, None] = {}
        if literal is not None:
            found.update(literal)
        # Cut no further than the deepest pattern reaches, since a key may have 400,000 separators. The rest of the key
        # is one piece. It is below every node, so it is never looked up.
        segments = key.split(self._separator, self._depth)
        last = len(segments) - 1
        nodes = [root]
        # A hub does this for each key that it has not seen before. So the code of a step is here, and not in functions.
        for number, segment in enumerate(segments):
            following: list[_Node[S]] = []
            for node in nodes:
                if node.below:
                    found.update(node.below)
                if node.children:
                    child = node.children.get(segment)
                    if child is not None:
                        following.append(child)
                    if node.lengths:
                        node.follow_stars(segment, number == last, following)
            if not following:
                return tuple(found)
            nodes = following
        for node in nodes:
            if node.here:
                found.update(node.here)
        return tuple(found)
