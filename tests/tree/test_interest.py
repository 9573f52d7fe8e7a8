"""What links are told of the patterns that are wanted, without I/O."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbuslib.matcher import Pattern, Subscriptions
from sbuslib.tree.interest import Interest, InterestCursor

PATTERNS = [b"", b"a", b"b", b"a/", b"a/*", b"*/b", b"c/**"]


class Index:
    """As much of a router as interest asks."""

    def __init__(self) -> None:
        self.index: Subscriptions[Any] = Subscriptions()
        self.holders = self.index.holders
        self.all_patterns = self.index.everything

    @property
    def distinct_patterns(self) -> int:
        return self.index.distinct()


class Holdings:
    """Links, and what each holds of what it was told."""

    def __init__(self, most: int = 100) -> None:
        self.router = Index()
        self.interest = Interest(self.router, most)
        self.cursors: dict[Any, InterestCursor] = {}
        self.held: dict[Any, set[bytes]] = {}
        self.told = 0

    def join(self, link: Any) -> None:
        self.cursors[link] = self.interest.begin(link)
        self.held[link] = set()

    def leave(self, link: Any) -> None:
        self.interest.forget(link)
        del self.cursors[link], self.held[link]

    def want(self, who: Any, pattern: bytes) -> list[Any]:
        return list(self.interest.changed(pattern, who, True)) if self.router.index.add(Pattern(pattern), who) else []

    def unwant(self, who: Any, pattern: bytes) -> list[Any]:
        removed = self.router.index.remove(Pattern(pattern), who)
        return list(self.interest.changed(pattern, who, False)) if removed else []

    def read(self, link: Any, count: int = 1_000) -> None:
        for wanted, pattern in self.cursors[link].take(count)[0]:
            self.told += 1
            assert wanted is not (pattern in self.held[link]), "told twice"
            (self.held[link].add if wanted else self.held[link].remove)(pattern)
            if not wanted and not pattern:
                assert self.held[link] == self.wanted(link), "everything is taken back after what it stood for is told"
            elif not wanted and b"" not in self.held[link]:
                assert pattern not in self.wanted(link), "everything is asked for before what it stands for is not"

    def wanted(self, link: Any) -> set[bytes]:
        found = {p for p in self.router.all_patterns() if any(one is not link for one in self.router.holders(p))}
        return {b""} if b"" in found else found


WHO = ["one", "two", "x", "y"]
STEPS = st.one_of(
    st.tuples(st.sampled_from(["want", "unwant"]), st.sampled_from(WHO), st.sampled_from(PATTERNS)),
    st.tuples(st.just("read"), st.sampled_from(["one", "two"]), st.integers(0, 4)),
    st.tuples(st.just("rejoin"), st.sampled_from(["one", "two"]), st.just(0)),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=60), st.sampled_from([2, 4, 100]))
def test_each_link_holds_what_others_want_once_it_was_told_all(steps: list[tuple[Any, ...]], most: int) -> None:
    tree = Holdings(most)
    for link in ("one", "two"):
        tree.join(link)
    for what, first, second in steps:
        match what:
            case "want" | "unwant":
                getattr(tree, what)(first, second)
            case "read":
                tree.read(first, second)
            case "rejoin":
                tree.leave(first)
                tree.join(first)
    for link, cursor in tree.cursors.items():
        while not cursor.is_level:
            tree.read(link, 2)
        everything = [{b""}] if 2 * tree.router.distinct_patterns > most else []
        assert tree.held[link] in [tree.wanted(link), *everything], link


def test_too_many_patterns_are_replaced_by_the_empty_one_until_there_are_half_as_many() -> None:
    tree = Holdings(most=10)
    tree.join("one")
    for n in range(11):
        tree.want("x", b"%d" % n)
        tree.read("one")
    tree.read("one")
    assert tree.held["one"] == {b""}
    for n in range(5):
        tree.unwant("x", b"%d" % n)
        tree.read("one")
    assert tree.held["one"] == {b""}
    tree.unwant("x", b"5")
    tree.read("one")
    assert tree.held["one"] == {b"%d" % n for n in range(6, 11)}


@pytest.mark.parametrize("reads", [True, False])
def test_what_a_link_has_to_look_at_is_bounded(reads: bool) -> None:
    tree = Holdings(most=100)
    tree.join("one")
    for n in range(10_000):
        tree.want("x", b"%d" % n)
        tree.unwant("x", b"%d" % n)
        if reads:
            tree.read("one")
    assert len(tree.cursors["one"]._later) <= 2_048
    tree.want("x", b"a")
    while not tree.cursors["one"].is_level:
        tree.read("one")
    assert tree.held["one"] == {b"a"}


def test_what_others_want_as_well_is_told_nobody_again() -> None:
    tree = Holdings()
    tree.join("one")
    tree.join("two")
    tree.want("x", b"a")
    for link in tree.cursors:
        tree.read(link)
    for who in ("y", "one", "two"):
        assert tree.want(who, b"a") == []
    assert tree.unwant("x", b"a") == tree.unwant("y", b"a") == []
    assert tree.interest.is_spread
    assert tree.unwant("one", b"a") == ["two"]
