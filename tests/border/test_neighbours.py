"""How gateways and bridges keep out of each other's way: without a bus."""

from __future__ import annotations

import msgspec
import pytest

from sbuslib.border import neighbours
from sbuslib.border.neighbours import (
    MEMBERS_MOST,
    REMOTES_MOST,
    USERS_MOST,
    Doubled,
    Expected,
    Here,
    Members,
    announcement_of,
)


def test_each_announcement_answers_for_one_message() -> None:
    expected = Expected(3, 10)
    expected.announce(b"one", b"a", 0)
    expected.announce(b"one", b"a", 1)
    assert not expected.take(b"two", b"a")
    assert [expected.take(b"one", b"a") for _ in range(3)] == [True, True, False]
    for text in (b"b", b"c", b"d", b"e"):
        expected.announce(None, text, 2)
    assert len(expected) == 3  # the oldest went
    assert not expected.take(None, b"b")
    expected.expire(11)
    assert len(expected) == 3
    expected.expire(12)
    assert len(expected) == 0


def test_announcements_of_one_user_do_not_push_out_those_of_another() -> None:
    expected = Expected(10, 10)
    for number in range(4):
        expected.announce(b"gateway", b"real%d" % number, 0, b"one")
    for number in range(1_000):
        expected.announce(b"stranger%d" % number, b"forged%d" % number, 1, b"two")
    assert len(expected) == 10
    assert all(expected.take(b"gateway", b"real%d" % number) for number in range(4))
    assert [expected.take(b"stranger%d" % number, b"forged%d" % number) for number in (993, 994, 999)] == [
        False, True, True,
    ]  # fmt: skip
    expected.expire(11)
    assert len(expected) == 0
    assert expected._of_users == {}


def test_announcements_of_more_users_than_are_counted_apart_are_bounded_together() -> None:
    expected = Expected(1_000, 10)
    for number in range(10 * USERS_MOST):
        expected.announce(b"sender", b"real%d" % number, 0, b"user%d" % number)
    assert len(expected._of_users) == USERS_MOST + 1
    for number in range(10_000):
        expected.announce(b"sender", b"forged%d" % number, 1, b"stranger%d" % number)
    assert len(expected) == 1_000
    assert all(expected.take(b"sender", b"real%d" % number) for number in range(USERS_MOST))


def test_spares_agree_on_the_one_that_sends() -> None:
    views = [Members(me, "alike", 10) for me in ("g1", "g2")]

    def say(here: Here, now: float) -> None:
        for view in views:
            view.hear(here, now)

    say(Here("g2", "alike", ("B", "C")), 0)
    assert [view.is_ours("B") for view in views] == [False, True]
    say(Here("g1", "alike", ("B",)), 0)
    assert [view.is_ours("B") for view in views] == [True, False]
    assert [view.is_ours("C") for view in views] == [False, True]
    assert [view.is_ours("D") for view in views] == [True, True]  # no gateway has said that it is connected
    assert [(view.others, view.spares) for view in views] == [(1, 1), (1, 1)]
    say(Here("g0", "different", ("B",)), 0)
    assert [view.is_ours("B") for view in views] == [True, False]
    assert [(view.others, view.spares) for view in views] == [(2, 1), (2, 1)]
    say(Here("g1", "alike", leaving=True), 1)
    assert views[1].is_ours("B")
    assert not views[1].expire(1, 11.5)  # this process did not run meanwhile
    assert not views[1].expire(20, 21)
    assert views[1].expire(21, 22)
    assert (views[1].others, views[1].spares) == (0, 0)


def test_a_bounded_number_of_gateways_is_remembered_and_known_ones_stay() -> None:
    members = Members("me", "alike", 10)
    members.hear(Here("me", "alike"), 0)
    for number in range(10 * MEMBERS_MOST):
        here = Here(f"forged{number}", "alike")
        if members.has_room_for(here):
            members.hear(here, 0)
    assert members.others == MEMBERS_MOST - 1
    assert members.has_room_for(Here("forged1", "alike", ("B.x",)))
    assert members.has_room_for(Here("me", "alike"))
    assert members.has_room_for(Here("unknown", "alike", leaving=True))


def test_a_gateway_that_repeats_itself_changes_nothing() -> None:
    members = Members("me", "alike", 10)
    assert members.hear(Here("g1", "alike", ("B.x",), word="1"), 0)
    assert not members.hear(Here("g1", "alike", ("B.x",), word="2"), 1)
    assert members.hear(Here("g1", "alike", (), word="3"), 2)
    assert members.hear(Here("g1", "alike", leaving=True), 3)
    assert not members.hear(Here("g1", "alike", leaving=True), 3)


@pytest.mark.parametrize(
    "here",
    [
        Here("", "alike"),
        Here("g" * 65, "alike"),
        Here("g\n", "alike"),
        Here("g", "a b"),
        Here("g", "alike", ("r" * 131,)),
        Here("g", "alike", ("r",) * (REMOTES_MOST + 1)),
        Here("g", "alike", word="w" * 65),
    ],
)
def test_malformed_here_messages_are_refused(here: Here) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(here), type=Here)


def said(*numbers: int) -> bytes:
    return announcement_of([(b"k", b"%d" % number) for number in numbers])


def test_what_two_bring_at_the_same_time_comes_twice() -> None:
    doubled = Doubled()
    doubled.hear(said(*range(10)), 0.0)
    doubled.bring(said(*range(20)), 0.1)
    doubled.hear(said(*range(10, 20)), 0.2)
    assert doubled.look()
    assert not doubled.look(), "it is told once"
    assert doubled.is_so
    doubled.bring(said(*range(100, 120)), 1.0)
    assert not doubled.look()
    assert not doubled.is_so


def test_what_comes_again_later_or_over_one_path_does_not_come_twice() -> None:
    doubled = Doubled()
    for _ in range(2):
        doubled.bring(said(*range(20)), 0.0)  # its publisher said it twice
    doubled.hear(said(*range(20)), 5.0)  # a stream sent it again, to a spare
    doubled.hear(said(*range(100, 120)), 5.0)
    doubled.hear(b"here {}", 5.0)
    assert not doubled.look()


def test_few_messages_say_nothing() -> None:
    doubled = Doubled()
    for number in range(15):
        doubled.hear(said(number), 0.0)
        doubled.bring(said(number), 0.0)
        assert not doubled.look()
    doubled.hear(said(15), 0.0)
    doubled.bring(said(15), 0.0)
    assert doubled.look()


def test_only_the_newest_messages_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_COMPARED", 4)
    doubled = Doubled()
    doubled.hear(said(*range(100)), 0.0)
    doubled.bring(said(*range(96)), 0.0)
    assert not doubled.look()
    doubled.hear(said(*range(92, 96)), 0.0)
    assert len(doubled._brought) + len(doubled._announced) <= 8
