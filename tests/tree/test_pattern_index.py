"""An index of patterns by what they cover, against the rule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from visits import count_visits

from sbuslib.covering import covers
from sbuslib.matcher import Shapes, shape_of
from sbuslib.tree.pattern_index import PatternIndex

segment = st.text("*ab", max_size=4).map(str.encode)
pattern = st.lists(segment, max_size=4).map(b"/".join)


@given(st.sets(pattern, max_size=40), st.sets(pattern, max_size=10), pattern)
def test_the_index_finds_what_covers_a_pattern_and_what_it_covers(
    held: set[bytes], gone: set[bytes], one: bytes
) -> None:
    index: PatternIndex[bytes] = PatternIndex()
    visited = count_visits(index)
    for some in held | gone:
        index.add(some, some)
    for some in gone - held:
        index.discard(some, some)
    shapes = Shapes()
    for some in held:
        shapes.add(shape_of(some))
    deepest = max((some.count(b"/") + 1 for some in held), default=0)
    visited.clear()
    assert sorted(index.covering(one)) == sorted(some for some in held if covers(some, one))
    assert len(visited) <= shapes.steps + deepest + 1, "as many nodes as the shapes have steps, and one chain"
    found = [some for some in index.covered_by(one) if some is not None]
    assert sorted(found) == sorted(some for some in held if covers(one, some))
