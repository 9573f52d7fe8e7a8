"""The index equals the plain function, for all bytes; and whatever came and went, nothing is left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from visits import count_visits

from sbuslib.matcher import Shapes, Subscriptions, is_literal, matches, shape_of

SEPARATORS = st.sampled_from([b"/", b".", b"a", b"\x7f"])
TEXTS = st.one_of(
    st.lists(st.sampled_from([b"/", b"*", b"a", b"b", b"!", b".", b"\x7f", b"\xff", b"//", b"**"]), max_size=14).map(
        b"".join
    ),
    st.binary(max_size=12),
)


@given(patterns=st.lists(TEXTS, max_size=12), keys=st.lists(TEXTS, max_size=6), separator=SEPARATORS)
def test_the_index_equals_the_plain_function(patterns: list[bytes], keys: list[bytes], separator: bytes) -> None:
    index: Subscriptions[int] = Subscriptions(separator)
    for number, pattern in enumerate(patterns):
        index.add(pattern, number)
    for key in [*keys, *patterns]:
        expected = {number for number, pattern in enumerate(patterns) if matches(pattern, key, separator)}
        found = index.subscribers(key)
        assert set(found) == expected
        assert len(found) == len(expected)


WILD = st.lists(st.sampled_from([b"*", b"**", b"a*", b"a**", b"ab*", b"a", b"*a"]), min_size=1, max_size=4).map(
    b"/".join
)


@given(patterns=st.lists(WILD, max_size=40), keys=st.lists(WILD | TEXTS, min_size=1, max_size=6))
def test_a_look_up_visits_no_more_nodes_than_the_shapes_have_steps(patterns: list[bytes], keys: list[bytes]) -> None:
    index: Subscriptions[bytes] = Subscriptions()
    visited = count_visits(index)
    shapes = Shapes()
    for pattern in patterns:
        index.add(pattern, pattern)
        shapes.add(shape_of(pattern))
    deepest = max((pattern.count(b"/") + 1 for pattern in patterns), default=0)
    for key in keys:
        visited.clear()
        index.subscribers(key)
        assert len(visited) <= shapes.steps + deepest + 1


@given(pattern=TEXTS, key=TEXTS, separator=SEPARATORS)
def test_the_plain_function_is_the_rule_as_it_is_worded(pattern: bytes, key: bytes, separator: bytes) -> None:
    """Written down once more, step by step."""

    def walk(p: int, k: int) -> bool:
        if k == len(key):
            return p == len(pattern)
        if p == len(pattern):
            return pattern == b"" or pattern.endswith(separator)
        if pattern[p] == key[k]:
            return walk(p + 1, k + 1)
        if pattern[p : p + 1] == b"*":
            while k < len(key) and key[k : k + 1] != separator:
                k += 1
            return walk(p + 1, k)
        return False

    assert matches(pattern, key, separator) is walk(0, 0)


@given(pattern=TEXTS, key=TEXTS, separator=SEPARATORS)
def test_a_literal_pattern_matches_itself_alone(pattern: bytes, key: bytes, separator: bytes) -> None:
    if is_literal(pattern, separator):
        assert matches(pattern, key, separator) is (pattern == key)


class IndexMachine(RuleBasedStateMachine):
    """Any history of adds, removes and discards beside a plain dictionary of the same."""

    @initialize(separator=SEPARATORS)
    def begin(self, separator: bytes) -> None:
        self.separator = separator
        self.index: Subscriptions[int] = Subscriptions(separator)
        self.model: dict[int, dict[bytes, int]] = {}
        self.asked: list[bytes] = []

    @rule(pattern=TEXTS, subscriber=st.integers(0, 3))
    def add(self, pattern: bytes, subscriber: int) -> None:
        held = self.model.setdefault(subscriber, {})
        assert self.index.add(pattern, subscriber) is (pattern not in held)
        held[pattern] = held.get(pattern, 0) + 1

    @rule(data=st.data(), subscriber=st.integers(0, 3))
    def remove(self, data: st.DataObject, subscriber: int) -> None:
        held = self.model.get(subscriber, {})
        pattern = data.draw(st.sampled_from(sorted(held)) if held else TEXTS)
        if pattern not in held:
            assert self.index.remove(pattern, subscriber) is None
            return
        held[pattern] -= 1
        assert self.index.remove(pattern, subscriber) is (held[pattern] == 0)
        if not held[pattern]:
            del held[pattern]

    @rule(pattern=TEXTS, subscriber=st.integers(0, 3))
    def remove_what_may_not_be_held(self, pattern: bytes, subscriber: int) -> None:
        if pattern not in self.model.get(subscriber, {}):
            assert self.index.remove(pattern, subscriber) is None

    @rule(subscriber=st.integers(0, 3))
    def discard_one(self, subscriber: int) -> None:
        held = self.model.get(subscriber, {})
        gone = self.index.discard_one(subscriber)
        if gone is None:
            assert not held
        else:
            del held[gone]

    @rule(key=TEXTS)
    def ask(self, key: bytes) -> None:
        self.asked.append(key)
        expected = {who for who, held in self.model.items() if any(matches(p, key, self.separator) for p in held)}
        found = self.index.subscribers(key)
        assert set(found) == expected
        assert len(found) == len(expected), "each once"

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.index) == sum(map(len, self.model.values()))
        for subscriber in range(4):
            assert self.index.patterns(subscriber) == self.model.get(subscriber, {})

    def teardown(self) -> None:
        if not hasattr(self, "index"):
            return
        for subscriber in range(4):
            while self.index.discard_one(subscriber) is not None:
                pass
        assert len(self.index) == 0
        for key in self.asked:
            assert self.index.subscribers(key) == ()
        fresh: Subscriptions[int] = Subscriptions(self.separator)
        assert shape(self.index) == shape(fresh), "memory is left behind"


def shape(value: object) -> object:
    """What an object is made of, all the way down; an empty container counts for none."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()} or None
    if isinstance(value, (list, tuple, set, frozenset)):
        return [shape(inner) for inner in value] or None
    names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
    if type(value).__module__.startswith("sbuslib"):
        return {name: shape(getattr(value, name)) for name in names}
    return value


TestIndexMachine = IndexMachine.TestCase
