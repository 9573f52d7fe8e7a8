"""What a link announces, against a model."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from visits import count_visits

from sbuslib.covering import covers
from sbuslib.matcher import Shapes, shape_of
from sbuslib.tree.interest import Interest, KeyTable

segment = st.text("*ab", max_size=4).map(str.encode)
pattern = st.lists(segment, max_size=4).map(b"/".join)


USERS = (0, 1, 2)


class OtherEnd:
    """What the other end holds after each change it was told."""

    def __init__(self, interest: Interest) -> None:
        self.interest = interest
        self.held: set[bytes] = set()

    def tell(self, count: int = 1 << 30) -> None:
        for added, one in self.interest.take(count):
            if added:
                assert one not in self.held
                self.held.add(one)
            else:
                self.held.remove(one)

    def settle(self) -> None:
        for user in USERS:
            while self.interest.work(100, user):
                pass
        self.tell()
        assert self.interest.settled


class InterestMachine(RuleBasedStateMachine):
    """Wants come and go, users have their turns and changes are told in any order: nothing wanted is ever missing."""

    most = 1_000

    def __init__(self) -> None:
        super().__init__()
        self.interest = Interest(most=self.most)
        self.end = OtherEnd(self.interest)
        self.wants: Counter[bytes] = Counter()
        self.told: set[bytes] = set()  # wanted, and told since without a break

    @rule(one=pattern, user=st.sampled_from(USERS))
    def add(self, one: bytes, user: int) -> None:
        self.interest.add(one, user)
        self.wants[one] += 1

    @rule(data=st.data(), user=st.sampled_from(USERS))
    def remove(self, data: st.DataObject, user: int) -> None:
        if self.wants:
            one = data.draw(st.sampled_from(sorted(self.wants)))
            self.interest.remove(one, user)
            self.wants[one] -= 1
            self.wants = +self.wants
            if one not in self.wants:
                self.told.discard(one)

    @rule(steps=st.integers(1, 5), user=st.sampled_from(USERS))
    def work(self, steps: int, user: int) -> None:
        self.interest.work(steps, user)

    @rule(count=st.integers(1, 3))
    def tell(self, count: int) -> None:
        self.end.tell(count)
        self.check_no_gap()

    def check_no_gap(self) -> None:
        for want in self.told:
            assert any(covers(held, want) for held in self.end.held), f"{want!r} was dropped for a while"

    @rule()
    def settle(self) -> None:
        self.end.settle()
        self.check_no_gap()
        assert self.end.held == set(self.interest.announced)
        for want in self.wants:
            assert any(covers(held, want) for held in self.end.held)
        self.told = set(self.wants)
        if not self.interest.widened:
            assert self.end.held <= set(self.wants)
            for p, q in itertools.permutations(self.end.held, 2):
                assert not covers(p, q), "one that another covers was announced"
        else:
            assert len(self.wants) * 2 > self.most

    @rule()
    def reconnect(self) -> None:
        self.interest.restart()
        self.end.held.clear()
        self.told.clear()

    @invariant()
    def counts(self) -> None:
        assert self.interest.wanted == len(self.wants)


class WideningMachine(InterestMachine):
    """The same with room for three patterns."""

    most = 3

    @rule()
    def is_bounded(self) -> None:
        self.end.settle()
        self.told = set(self.wants)
        assert len(self.end.held) <= self.most


TestInterest = InterestMachine.TestCase
TestWidening = WideningMachine.TestCase
for case in (TestInterest, TestWidening):
    case.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.lists(pattern, max_size=40), pattern)
def test_finding_a_cover_visits_at_most_as_many_nodes_as_the_shapes_have_steps(wanted: list[bytes], one: bytes) -> None:
    interest = Interest()
    visited = count_visits(interest)
    shapes = Shapes()
    for some in wanted:
        interest.add(some)
    while interest.work(100):
        pass
    for some in interest.announced:
        shapes.add(shape_of(some))
    deepest = max((some.count(b"/") + 1 for some in wanted), default=0)
    visited.clear()
    found = interest._find_cover(one)
    assert (found is not None) == any(covers(some, one) for some in interest.announced if some != one)
    assert len(visited) <= shapes.steps + deepest + 1


def test_patterns_from_before_may_be_added_after_later_changes() -> None:
    interest = Interest()
    interest.remove(b"a")
    interest.add(b"a")
    assert interest.settled
    assert interest.wanted == 0
    interest.add(b"a")
    assert interest.take(5) == [(True, b"a")]


def test_one_pattern_is_announced_for_a_hundred_thousand_that_it_covers() -> None:
    interest = Interest()
    interest.add(b"room/")
    for n in range(100_000):
        interest.add(b"room/%d/*" % n)
    assert interest.announced == [b"room/"]
    assert interest.take(10) == [(True, b"room/")]
    assert not interest.work(100)
    interest.remove(b"room/5/*")
    interest.add(b"room/5/*")
    assert interest.settled


def test_a_covering_pattern_is_removed_after_the_patterns_below_it_are_added() -> None:
    interest = Interest()
    interest.add(b"room/")
    for n in range(1_000):
        interest.add(b"room/%d" % n)
    interest.take(10)
    interest.remove(b"room/")
    assert interest.work(10), "it is done in steps"
    while interest.work(10):
        pass
    changes = interest.take(2_000)
    assert changes[-1] == (False, b"room/")
    assert len(changes) == 1_001


def test_a_widened_interest_narrows_again() -> None:
    interest = Interest(most=4)
    end = OtherEnd(interest)
    for n in range(5):
        interest.add(b"room/%d" % n)
    end.settle()
    assert end.held == {b"room/"}
    for n in range(5):
        interest.add(b"%d" % n)
    end.settle()
    assert end.held == {b""}
    for n in range(5):
        interest.remove(b"room/%d" % n)
    for n in range(3):
        interest.remove(b"%d" % n)
    end.settle()
    assert end.held == {b"3", b"4"}


def test_jobs_of_one_user_do_not_delay_jobs_of_another() -> None:
    interest = Interest()
    end = OtherEnd(interest)
    for n in range(1_000):
        interest.add(b"room/%d" % n, 1)
    interest.add(b"hall/*", 2)
    interest.add(b"room/", 1)  # which takes a thousand steps
    interest.add(b"hall/", 2)
    assert not interest.work(100, 2)
    end.tell()
    assert {held for held in end.held if held.startswith(b"hall")} == {b"hall/"}
    assert len(end.held) == 1_002
    assert interest.work(100, 1)
    end.settle()
    assert end.held == {b"hall/", b"room/"}


def test_a_pattern_stays_covered_while_its_witness_and_the_witness_of_that_go() -> None:
    interest = Interest()
    end = OtherEnd(interest)
    interest.add(b"a/b/c", 1)
    interest.add(b"a/b/", 1)
    end.settle()
    interest.add(b"a/", 2)
    end.settle()
    assert end.held == {b"a/"}
    interest.remove(b"a/b/", 1)  # the user has no turn, so its job waits
    interest.remove(b"a/", 2)
    while interest.work(1, 2):
        end.tell()
        assert any(covers(held, b"a/b/c") for held in end.held)
    end.tell()
    assert end.held == {b"a/b/c"}
    end.settle()
    assert end.held == {b"a/b/c"}


@pytest.mark.parametrize(("most", "most_bytes"), [(3, 1_000), (1_000, 3)])
def test_the_table_of_keys_forgets_the_oldest(most: int, most_bytes: int) -> None:
    table = KeyTable(most, most_bytes)
    assert [table.add(key) for key in (b"a", b"b", b"a", b"c")] == [[], [], [], []]
    assert table.add(b"d") == [b"a"]
    assert table.keys() == [b"b", b"c", b"d"]
    assert table.discard(b"c")
    assert not table.discard(b"c")
    assert len(table) == table.bytes == 2
    assert [key for key in table.matched(b"*", b"/") if key] == [b"b", b"d"]
    assert b"d" in table
