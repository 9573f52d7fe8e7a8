"""What links are told of the patterns that are wanted, without I/O."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbuslib.tree.interest import Interest, InterestCursor

PATTERNS = [b"", b"a", b"b", b"a/", b"a/*", b"*/b", b"c/**"]
PRESUMED = b"!/presumed/"
OLD = "two"
"""A link to an older hub, which does not know that mark."""


class Index:
    """As much of a router as interest asks. A presumed pattern is another than the same without the mark."""

    def __init__(self) -> None:
        self.held: dict[bytes, set[Any]] = {}

    def holders(self, pattern: bytes) -> set[Any]:
        return self.held.get(pattern, set())

    def all_patterns(self) -> list[bytes]:
        return list(self.held)

    @property
    def distinct_patterns(self) -> int:
        return len(self.held)

    def add(self, pattern: bytes, who: Any) -> bool:
        is_new = who not in self.holders(pattern)
        self.held.setdefault(pattern, set()).add(who)
        return is_new

    def remove(self, pattern: bytes, who: Any) -> bool:
        held = self.holders(pattern)
        was_held = who in held
        held.discard(who)
        if not held:
            self.held.pop(pattern, None)
        return was_held


class Holdings:
    """Links, and what each holds of what it was told."""

    def __init__(self, most: int = 100) -> None:
        self.router = Index()
        self.interest = Interest(self.router, most, PRESUMED)
        self.cursors: dict[Any, InterestCursor] = {}
        self.held: dict[Any, set[bytes]] = {}
        self.told = 0

    def join(self, link: Any) -> None:
        self.cursors[link] = self.interest.begin(link, presumes=link != OLD)
        self.held[link] = set()

    def leave(self, link: Any) -> None:
        self.interest.forget(link)
        del self.cursors[link], self.held[link]

    def want(self, who: Any, pattern: bytes) -> list[Any]:
        return list(self.interest.changed(pattern, who, True)) if self.router.add(pattern, who) else []

    def unwant(self, who: Any, pattern: bytes) -> list[Any]:
        removed = self.router.remove(pattern, who)
        return list(self.interest.changed(pattern, who, False)) if removed else []

    def read(self, link: Any, count: int = 1_000) -> None:
        for wanted, pattern in self.cursors[link].take(count)[0]:
            self.told += 1
            assert wanted is not (pattern in self.held[link]), "told twice"
            (self.held[link].add if wanted else self.held[link].remove)(pattern)
            if not wanted and pattern in (b"", PRESUMED):
                wide = {b"", PRESUMED}
                assert self.held[link] - wide == self.wanted(link) - wide or b"" in self.held[link], (
                    "everything is taken back after what it stood for is told"
                )
            elif not wanted and self.held[link].isdisjoint((b"", PRESUMED)):
                assert pattern not in self.wanted(link), "everything is asked for before what it stands for is not"

    def wanted(self, link: Any) -> set[bytes]:
        found = {p for p in self.router.all_patterns() if any(one is not link for one in self.router.holders(p))}
        if link == OLD:
            found = {pattern.removeprefix(PRESUMED) for pattern in found}
        return {b""} if b"" in found else found


WHO = ["one", "two", "x", "y"]
STEPS = st.one_of(
    st.tuples(
        st.sampled_from(["want", "unwant"]),
        st.sampled_from(WHO),
        st.sampled_from([*PATTERNS, *(PRESUMED + pattern for pattern in PATTERNS)]),
    ),
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
        everything = [{b"" if link == OLD else PRESUMED}] if 2 * tree.router.distinct_patterns > most else []
        assert tree.held[link] in [tree.wanted(link), *everything], link


@pytest.mark.parametrize(("link", "everything"), [("one", PRESUMED), (OLD, b"")])
def test_too_many_patterns_are_replaced_by_the_empty_one_until_there_are_half_as_many(
    link: str, everything: bytes
) -> None:
    tree = Holdings(most=10)
    tree.join(link)
    for n in range(11):
        tree.want("x", b"%d" % n)
        tree.read(link)
    tree.read(link)
    assert tree.held[link] == {everything}
    for n in range(5):
        tree.unwant("x", b"%d" % n)
        tree.read(link)
    assert tree.held[link] == {everything}
    tree.unwant("x", b"5")
    tree.read(link)
    assert tree.held[link] == {b"%d" % n for n in range(6, 11)}


def test_what_is_presumed_is_told_beside_what_is_wanted_and_to_an_older_hub_in_its_place() -> None:
    tree = Holdings()
    tree.join("one")
    tree.join(OLD)
    for pattern in (PRESUMED, b"a", PRESUMED + b"a/"):
        tree.want("x", pattern)
    for link in tree.cursors:
        tree.read(link)
    assert tree.held == {"one": {PRESUMED, b"a", PRESUMED + b"a/"}, OLD: {b""}}
    tree.unwant("x", PRESUMED)
    tree.unwant("x", b"a")
    tree.want("x", PRESUMED + b"a")
    for link in tree.cursors:
        tree.read(link)
    assert tree.held == {"one": {PRESUMED + b"a", PRESUMED + b"a/"}, OLD: {b"a", b"a/"}}


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
