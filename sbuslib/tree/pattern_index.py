"""An index of patterns by what they cover: which of them covers a pattern, and which of them does a pattern cover.

It holds any objects, each with a pattern of its own. :mod:`sbuslib.covering` says what covering is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from ..covering import segment_covers
from ..matcher import SEPARATOR, _Node, cut, stars_after

__all__ = ["PatternIndex"]

T = TypeVar("T")


class PatternIndex(Generic[T]):
    """Objects by their patterns: at most one object for each pattern."""

    def __init__(self, separator: bytes = SEPARATOR) -> None:
        self._separator = separator
        self._root: _Node[T] = _Node()

    def add(self, pattern: bytes, found: T) -> None:
        """Add an object."""
        segments, below = cut(pattern, self._separator)
        node = self._root
        for segment in segments:
            node = node.child(segment)
        node.end(below)[found] = None

    def discard(self, pattern: bytes, found: T) -> None:
        """Take an object out."""
        segments, below = cut(pattern, self._separator)
        path = [self._root]
        for segment in segments:
            path.append(path[-1].child(segment))
        path[-1].end(below).pop(found, None)
        for segment, parent, node in zip(reversed(segments), reversed(path[:-1]), reversed(path), strict=False):
            if not node.is_empty():
                break
            parent.drop(segment)

    def covering(self, pattern: bytes) -> Iterator[T]:
        """The objects whose patterns cover this one, and that of the pattern itself.

        Visits no more nodes than the shapes of the patterns have steps, and one chain, for the reason that
        :mod:`sbuslib.matcher` gives of keys: of the nodes whose segments cover those of ``pattern``, no two have the
        same shape, since the shape tells how many bytes of the pattern's own stem or segment each stem is. The steps
        of each user are bounded (``Limits.user_pattern_steps``).
        """
        segments, below = cut(pattern, self._separator)
        end = len(segments)
        stack = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            if node.below and (below or depth < end):
                yield from node.below
            if depth == end:
                continue
            last = depth == end - 1 and not below
            for child in _wider(node, segments[depth], last):
                if not last:
                    stack.append((child, depth + 1))
                elif child.here:
                    yield from child.here

    def covered_by(self, pattern: bytes) -> Iterator[T | None]:
        """The objects whose patterns this one covers; ``None`` in between, so that each step is short.

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
            yield None
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
            wider: list[_Node[T]] = []
            for text, child in list(children.items()):
                if segment_covers(segment, text, last):
                    wider.append(child)
                yield None
            stack.append((iter(wider), depth + 1))


def _wider(node: _Node[T], segment: bytes, last: bool) -> list[_Node[T]]:
    """The children whose segment takes all that ``segment`` takes: ``segment_covers``, by the index."""
    found: list[_Node[T]] = []
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
