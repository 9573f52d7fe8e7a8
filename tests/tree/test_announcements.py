"""What was announced to links, and how far each was told: whatever is wanted, a link that was told all holds it."""

from __future__ import annotations

from random import Random

import pytest

from sbuslib.tree.announcements import Announcements, Reader


class Wanted:
    """Which patterns are wanted by all links, and which by one more; and what each link holds."""

    def __init__(self) -> None:
        self.by_all: set[bytes] = set()
        self.by_one: set[tuple[bytes, int]] = set()
        self.announcements = Announcements(self.concerns)
        self.readers: dict[int, Reader] = {}
        self.held: dict[int, set[bytes]] = {}

    def concerns(self, pattern: bytes, link: int) -> bool:
        return pattern in self.by_all or (pattern, link) in self.by_one

    def join(self, link: int) -> None:
        self.readers[link] = self.announcements.reader(link)
        self.held[link] = set()

    def leave(self, link: int) -> None:
        del self.readers[link], self.held[link]
        self.by_one = {(pattern, one) for pattern, one in self.by_one if one != link}
        self.announcements.forget(link)

    def turn(self, pattern: bytes) -> None:
        """A pattern that all want is wanted no more, or the other way round."""
        self.by_all ^= {pattern}
        if pattern in self.by_all:
            self.announcements.begin_all(pattern)
        else:
            self.announcements.end_all(pattern)

    def turn_one(self, pattern: bytes, link: int) -> None:
        """The same, of one link."""
        self.by_one ^= {(pattern, link)}
        if (pattern, link) in self.by_one:
            self.announcements.begin(pattern, link)
        else:
            self.announcements.end(pattern, link)

    def tell(self, link: int, count: int) -> None:
        for added, pattern in self.readers[link].take(count):
            if added:
                self.held[link].add(pattern)
            else:
                self.held[link].discard(pattern)

    def tell_all(self, link: int) -> None:
        while not self.readers[link].is_told:
            self.tell(link, 3)


def test_a_link_that_joins_is_told_what_is_wanted_now() -> None:
    wanted = Wanted()
    for pattern in (b"a", b"b", b"c", b"b"):
        wanted.turn(pattern)
    wanted.join(1)
    assert not wanted.readers[1].is_told
    assert wanted.readers[1].take(10) == [(True, b"a"), (True, b"c")]
    assert wanted.readers[1].is_told


def test_a_pattern_that_no_link_was_told_is_not_taken_back() -> None:
    wanted = Wanted()
    wanted.join(1)
    wanted.turn(b"a")
    wanted.turn(b"a")
    assert wanted.readers[1].take(10) == []
    assert not len(wanted.announcements.removed)


def test_a_pattern_is_taken_back_after_all_others_were_told() -> None:
    wanted = Wanted()
    wanted.join(1)
    wanted.turn(b"old")
    wanted.tell_all(1)
    for pattern in (b"old", b"new", b"newer"):
        wanted.turn(pattern)
    assert [wanted.readers[1].take(1) for _ in range(3)] == [[(True, b"new")], [(True, b"newer")], [(False, b"old")]]


def test_a_pattern_of_one_link_is_told_to_this_link_alone() -> None:
    wanted = Wanted()
    for link in (1, 2):
        wanted.join(link)
    wanted.turn_one(b"a", 1)
    assert list(wanted.announcements.noted) == [1]
    assert (wanted.readers[1].take(10), wanted.readers[2].take(10)) == ([(True, b"a")], [])
    wanted.turn_one(b"a", 1)
    assert (wanted.readers[1].take(10), wanted.readers[2].take(10)) == ([(False, b"a")], [])


def test_the_record_does_not_grow_with_the_number_of_changes() -> None:
    wanted = Wanted()
    wanted.join(1)
    for n in range(5_000):
        wanted.turn(b"%d" % n)
        wanted.tell_all(1)
        wanted.turn(b"%d" % n)
        wanted.tell_all(1)
    announcements = wanted.announcements
    for size in (len(announcements.added._numbers), len(announcements.removed._numbers), len(announcements._since)):
        assert size < 500


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [12, 300])
def test_links_that_were_told_all_hold_what_is_wanted_after_random_changes(count: int, seed: int) -> None:
    random = Random(seed)
    wanted = Wanted()
    patterns = [b"%d" % n for n in range(count)]  # of many, some are forgotten once all links that were told them know
    for _ in range(50 * count):
        link = random.randrange(4)
        act = random.random()
        if link not in wanted.readers:
            wanted.join(link)
        elif act < 0.03:
            wanted.leave(link)
        elif act < 0.4:
            wanted.turn(random.choice(patterns))
        elif act < 0.6:
            wanted.turn_one(random.choice(patterns), link)
        else:
            wanted.tell(link, random.randrange(1, 6) if link else 100)  # one reads faster
    for link in wanted.readers:
        wanted.tell_all(link)
        due = {pattern for pattern in patterns if wanted.concerns(pattern, link)}
        assert wanted.held[link] == due
