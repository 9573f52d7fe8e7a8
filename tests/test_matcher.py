"""The matching rule, by the plain function and by the index."""

from __future__ import annotations

import doctest
from collections import defaultdict
from typing import Any

import pytest
from support import vectors

from sbuslib import matcher
from sbuslib.matcher import Pattern, Shapes, Subscriptions, check_separator, matches


def test_vectors_by_the_plain_function() -> None:
    rows = list(vectors())
    assert len(rows) == 4_000
    assert {verdict for verdict, _, _ in rows} == {True, False}
    assert [row for row in rows if matches(row[1], row[2]) is not row[0]] == []


@pytest.mark.parametrize("separator", [b"", b"//", b"\0", b"*", b"!", b"0", b"9", b"\xff", "/", None, 47])
def test_a_separator_is_one_byte(separator: object) -> None:
    with pytest.raises(ValueError, match="one byte"):
        check_separator(separator)  # type: ignore[arg-type]


def test_a_key_of_nothing_but_separators_costs_no_more_than_the_patterns() -> None:
    """Counted in segments looked at, since time cannot be asserted."""
    looked: dict[str, int] = defaultdict(int)

    class Key(bytes):
        def split(self, sep: bytes | None = None, maxsplit: int = -1) -> list[bytes]:  # type: ignore[override]
            pieces = super().split(sep, maxsplit)
            looked["segments"] += len(pieces)
            return pieces

    index: Subscriptions[int] = Subscriptions(b"/")
    index.add(Pattern(b"a/*/c", b"/"), 1)
    assert index.subscribers(Key(b"/" * 400_000)) == ()
    assert looked["segments"] <= 4


def test_long_stems_of_others_cost_a_short_key_nothing() -> None:
    index: Subscriptions[int] = Subscriptions(b"/")
    for length in range(1, 1_000):
        index.add(Pattern(b"a" * length + b"*", b"/"), length)
    probes = 0

    class Counting(dict[bytes, Any]):
        def get(self, key: bytes, default: Any = None) -> Any:
            nonlocal probes
            probes += 1
            return super().get(key, default)

    index._root.starred = Counting(index._root.starred or {})
    assert set(index.subscribers(b"aaab")) == {1, 2, 3}
    assert probes <= 5


def test_the_examples_in_the_docstrings() -> None:
    assert doctest.testmod(matcher).failed == 0


@pytest.mark.parametrize(
    ("pattern", "shape", "steps"),
    [
        (b"", b"", 0),
        (b"a/b/", b"", 0),
        (b"a*b/c", b"", 0),  # a star that does not end its segment is a byte like any other
        (b"*", b"0*1", 1),
        (b"*/a", b"0*1/", 2),
        (b"a/*", b"/0*1", 1),
        (b"a/b**/c/*/d/", b"/1*2//0*1/", 4),
    ],
)
def test_shapes(pattern: bytes, shape: bytes, steps: int) -> None:
    assert Pattern(pattern, b"/").shape == shape
    shapes = Shapes()
    assert shapes.add(shape, steps - 1) is (steps == 0)
    assert shapes.steps == 0
    assert shapes.add(shape, steps)
    assert shapes.add(shape, steps)
    assert shapes.steps == steps
    shapes.remove(shape)
    assert shapes.steps == steps
    shapes.remove(shape)
    assert shapes.steps == 0


class CountedReads(bytes):
    """A key that counts how often a single byte of it is asked for."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int):
            type(self).reads += 1
        return super().__getitem__(place)


def test_no_key_is_walked_byte_by_byte() -> None:
    key = CountedReads(b"*" * 400_000)
    index: Subscriptions[bytes] = Subscriptions(b"/")
    for pattern in (b"*", b"**", b"***/", b"*" * 4_000):
        index.add(Pattern(pattern, b"/"), pattern)
        assert not matches(pattern, key)
    node = index._root
    found: list[Any] = []
    node.follow_stars(key, True, found)
    assert not found
    node.follow_stars(key, False, found)
    assert not found
    assert CountedReads.reads == 0
