"""What a link announces, against a model."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbuslib.covering import covers
from sbuslib.tree.interest import Interest

segment = st.text("*ab", max_size=4).map(str.encode)
pattern = st.lists(segment, max_size=4).map(b"/".join)

USERS = (0, 1, 2)
LINKS = (1, 2, 3)
HOLDERS = (0, *LINKS)


class OtherEnd:
    """What the other end of a link holds after each change it was told."""

    def __init__(self, interest: Interest, link: int = 1) -> None:
        self.link = link
        self.reader = interest.reader(link)
        self.held: set[bytes] = set()
        self.sure: set[bytes] = set()  # what others have wanted, and were told, since without a break

    def tell(self, count: int = 1 << 30) -> None:
        for added, one in self.reader.take(count):
            if added:
                self.held.add(one)
            else:
                self.held.discard(one)
                self.check_no_gap()

    def check_no_gap(self) -> None:
        for want in self.sure:
            assert any(covers(held, want) for held in self.held), f"{want!r} was dropped for a while"


def settle(interest: Interest, *ends: OtherEnd) -> None:
    for user in USERS:
        while interest.work(100, user):
            pass
    for end in ends:
        while not end.reader.is_told:
            end.tell(1_000)


class InterestMachine(RuleBasedStateMachine):
    """Wants come and go, users have their turns and changes are told in any order: no link misses what others want."""

    most = 1_000

    def __init__(self) -> None:
        super().__init__()
        self.interest = Interest(most=self.most)
        self.ends = {link: OtherEnd(self.interest, link) for link in LINKS}
        self.wants: dict[bytes, Counter[int]] = {}

    def of_others(self, link: int) -> set[bytes]:
        return {one for one, holders in self.wants.items() if set(holders) - {link}}

    def change(self, one: bytes, user: int, holder: int, wanted: bool) -> None:
        holders = self.wants.setdefault(one, Counter())
        holders[holder] += 1 if wanted else -1
        self.wants[one] = +holders
        if not self.wants[one]:
            del self.wants[one]
        number = self.ends[holder].link if holder else 0
        (self.interest.add if wanted else self.interest.remove)(one, user, number)
        for link, end in self.ends.items():
            end.sure &= self.of_others(link)

    @rule(one=pattern, user=st.sampled_from(USERS), holder=st.sampled_from(HOLDERS))
    def add(self, one: bytes, user: int, holder: int) -> None:
        if not holder or one not in self.wants or holder not in self.wants[one]:
            self.change(one, user, holder, True)

    @rule(data=st.data(), user=st.sampled_from(USERS), holder=st.sampled_from(LINKS))
    def add_again(self, data: st.DataObject, user: int, holder: int) -> None:
        if self.wants:
            self.add(data.draw(st.sampled_from(sorted(self.wants))), user, holder)

    @rule(data=st.data(), user=st.sampled_from(USERS))
    def remove(self, data: st.DataObject, user: int) -> None:
        if self.wants:
            one = data.draw(st.sampled_from(sorted(self.wants)))
            self.change(one, user, data.draw(st.sampled_from(sorted(self.wants[one]))), False)

    @rule(steps=st.integers(1, 5), user=st.sampled_from(USERS))
    def work(self, steps: int, user: int) -> None:
        self.interest.work(steps, user)

    @rule(count=st.integers(1, 3), link=st.sampled_from(LINKS))
    def tell(self, count: int, link: int) -> None:
        self.ends[link].tell(count)

    @rule(link=st.sampled_from(LINKS))
    def tell_all(self, link: int) -> None:
        end = self.ends[link]
        while not end.reader.is_told:
            end.tell(5)
        end.sure = self.of_others(link)
        end.check_no_gap()

    @rule()
    def settle(self) -> None:
        settle(self.interest, *self.ends.values())
        for link, end in self.ends.items():
            end.check_no_gap()
            end.sure = others = self.of_others(link)
            end.check_no_gap()
            assert all(any(covers(held, want) for want in others) for held in end.held), "told what only it wants"
            if self.interest.widened:
                assert len(self.wants) * 2 > self.most
                assert len(end.held) <= self.most
            else:
                assert end.held <= others
                for p, q in itertools.permutations(end.held, 2):
                    own = (one for one, holders in self.wants.items() if set(holders) == {link})
                    assert not covers(p, q) or any(covers(one, q) for one in own), "one that another covers was told"

    @rule(link=st.sampled_from(LINKS), user=st.sampled_from(USERS))
    def reconnect(self, link: int, user: int) -> None:
        for one, holders in list(self.wants.items()):
            if link in holders:
                self.change(one, user, link, False)
        number = self.ends[link].link
        self.interest.announcements.forget(number)
        self.ends[link] = OtherEnd(self.interest, number + len(LINKS))

    @invariant()
    def counts(self) -> None:
        assert self.interest.wanted == len(self.wants)

    def teardown(self) -> None:
        for end in self.ends.values():
            end.sure.clear()
        for one, holders in list(self.wants.items()):
            for holder in holders.elements():
                self.interest.remove(one, 0, self.ends[holder].link if holder else 0)
        settle(self.interest, *self.ends.values())
        assert not any(end.held for end in self.ends.values())
        assert not len(self.interest)
        assert not any((self.interest._wants, self.interest._families, self.interest._by_size, self.interest._load))
        records = self.interest.announcements
        records._prune()
        assert not any((len(records.added), len(records.removed), records._since))


class WideningMachine(InterestMachine):
    """The same with room for three patterns."""

    most = 3


TestInterest = InterestMachine.TestCase
TestWidening = WideningMachine.TestCase
for case in (TestInterest, TestWidening):
    case.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
del case


def test_patterns_from_before_may_be_added_after_later_changes() -> None:
    interest = Interest()
    end = OtherEnd(interest)
    interest.feed([(b"a", 0, 1), (b"b", 2, 1), (b"b", 0, -1)])
    assert interest.feeding
    interest.remove(b"a")
    interest.add(b"a")
    interest.add(b"b")
    assert interest.wanted == 1
    settle(interest, end)
    assert not interest.feeding
    assert end.held == {b"a", b"b"}
    assert interest.wanted == 2


def test_one_pattern_is_told_for_a_hundred_thousand_that_it_covers() -> None:
    interest = Interest()
    end = OtherEnd(interest)
    interest.add(b"room/")
    for n in range(100_000):
        interest.add(b"room/%d/*" % n)
    end.tell()
    assert end.held == {b"room/"}
    assert not interest.work(100)
    number = interest.announcements.number
    interest.remove(b"room/5/*")
    interest.add(b"room/5/*")
    assert interest.announcements.number == number
    assert end.reader.is_told


def test_a_covering_pattern_is_removed_after_the_patterns_below_it_are_added() -> None:
    interest = Interest()
    interest.add(b"room/")
    for n in range(1_000):
        interest.add(b"room/%d" % n)
    reader = interest.reader(1)
    reader.take(10)
    interest.remove(b"room/")
    assert interest.work(10), "it is done in steps"
    settle(interest)
    changes = reader.take(2_000)
    assert changes[-1] == (False, b"room/")
    assert len(changes) == 1_001


def test_what_only_one_link_wants_covers_the_patterns_of_others_for_all_links_but_this_one() -> None:
    interest = Interest()
    ends = [OtherEnd(interest, link) for link in LINKS]
    interest.add(b"room/1", holder=1)
    interest.add(b"room/2", holder=2)
    interest.add(b"room/", holder=3)
    interest.add(b"room/3", holder=3)
    settle(interest, *ends)
    assert [end.held for end in ends] == [{b"room/"}, {b"room/"}, {b"room/1", b"room/2"}]
    interest.add(b"room/", holder=1)
    settle(interest, *ends)
    assert [end.held for end in ends] == [{b"room/"}] * 3
    interest.remove(b"room/", holder=3)
    settle(interest, *ends)
    assert [end.held for end in ends] == [{b"room/2", b"room/3"}, {b"room/"}, {b"room/"}]


def test_a_pattern_that_concerns_one_link_is_no_change_for_the_others() -> None:
    interest = Interest()
    ends = [OtherEnd(interest, link) for link in LINKS]
    interest.add(b"room/1", holder=1)
    settle(interest, *ends)
    interest.announcements.noted.clear()
    number = interest.announcements.number
    interest.add(b"room/1", holder=2)
    assert interest.announcements.number == number
    assert list(interest.announcements.noted) == [1]
    assert [end.reader.is_told for end in ends] == [False, True, True]
    settle(interest, *ends)
    assert ends[0].held == {b"room/1"}


def test_largest_families_are_widened_first() -> None:
    interest = Interest(most=1_000)
    end = OtherEnd(interest)
    for n in range(10):
        interest.add(b"small/%d" % n)
    for n in range(3_000):
        interest.add(b"family/%d/%d" % (n % 50, n))
        interest.add(b"%d/%d" % (n % 50, n))
    settle(interest, end)
    families = {held for held in end.held if held.endswith(b"/")}
    assert b"family/" in families
    assert 2 <= len(families) <= 51
    assert {held for held in end.held if held.startswith(b"small")} == {b"small/%d" % n for n in range(10)}
    assert 500 < len(end.held) <= 1_000


def test_fifty_families_become_at_most_fifty_patterns() -> None:
    interest = Interest(most=100)
    end = OtherEnd(interest)
    for n in range(10_000):
        interest.add(b"%d/%d" % (n % 50, n))
    settle(interest, end)
    assert end.held == {b"%d/" % n for n in range(50)}


def test_a_family_that_only_one_link_wants_is_not_told_to_it() -> None:
    interest = Interest(most=10)
    ends = [OtherEnd(interest, link) for link in LINKS]
    for n in range(90):
        interest.add(b"%d/%d" % (n % 3, n), holder=1 + n % 3)
    settle(interest, *ends)
    assert [end.held for end in ends] == [{b"1/", b"2/"}, {b"0/", b"2/"}, {b"0/", b"1/"}]
    interest.add(b"0/x", holder=2)
    settle(interest, *ends)
    assert [end.held for end in ends] == [{b"0/", b"1/", b"2/"}, {b"0/", b"2/"}, {b"0/", b"1/"}]
    interest.remove(b"0/x", holder=2)
    settle(interest, *ends)
    assert ends[0].held == {b"1/", b"2/"}


def test_a_widened_interest_narrows_again() -> None:
    interest = Interest(most=4)
    end = OtherEnd(interest)
    for n in range(5):
        interest.add(b"room/%d" % n)
    settle(interest, end)
    assert end.held == {b"room/"}
    for n in range(5):
        interest.add(b"%d" % n)
    settle(interest, end)
    assert end.held == {b""}
    for n in range(5):
        interest.remove(b"room/%d" % n)
    for n in range(3):
        interest.remove(b"%d" % n)
    settle(interest, end)
    assert end.held == {b"3", b"4"}


def test_less_room_widens_and_more_room_narrows() -> None:
    interest = Interest(most=100)
    end = OtherEnd(interest)
    wanted = {b"%d/%d" % (n % 2, n) for n in range(50)}
    for one in wanted:
        interest.add(one)
    interest.set_room(40)
    settle(interest, end)
    assert len(end.held) == 26
    interest.set_room(100)
    settle(interest, end)
    assert end.held == wanted


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
    settle(interest, end)
    assert end.held == {b"hall/", b"room/"}


def test_a_pattern_stays_covered_while_its_witness_and_the_witness_of_that_go() -> None:
    interest = Interest()
    end = OtherEnd(interest)
    interest.add(b"a/b/c", 1)
    interest.add(b"a/b/", 1)
    settle(interest, end)
    interest.add(b"a/", 2)
    settle(interest, end)
    assert end.held == {b"a/"}
    interest.remove(b"a/b/", 1)  # the user has no turn, so its job waits
    interest.remove(b"a/", 2)
    while interest.work(1, 2):
        end.tell()
        assert any(covers(held, b"a/b/c") for held in end.held)
    end.tell()
    assert b"a/" not in end.held
    assert any(covers(held, b"a/b/c") for held in end.held)
    settle(interest, end)
    assert end.held == {b"a/b/c"}


def test_what_a_link_that_does_not_read_was_told_bounds_what_is_remembered_for_it() -> None:
    interest = Interest()
    reading, stuck = OtherEnd(interest, 1), OtherEnd(interest, 2)
    for n in range(10):
        interest.add(b"%d" % n)
    settle(interest, reading, stuck)
    for n in range(10):
        interest.remove(b"%d" % n)
    for n in range(10_000):
        interest.add(b"new/%d" % n)
        reading.tell()
        interest.remove(b"new/%d" % n)
        reading.tell()
    records = interest.announcements
    assert len(records.removed) < 200
    assert len(records.added._numbers) < 200
    settle(interest, stuck)
    assert not stuck.held
