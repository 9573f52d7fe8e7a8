"""What may cross between a bus and other places, and who sends it: without a bus."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.border import (
    MEMBERS_MOST,
    REMOTES_MOST,
    USERS_MOST,
    Border,
    Expected,
    Here,
    Members,
    fits_a_packet,
    user_of,
)
from sbuslib.errors import KeyFormatError, UsageError
from sbuslib.limits import PACKET_BYTES
from sbuslib.matcher import check_separator
from sbuslib.wire.packets import encode_message


def test_which_keys_may_cross() -> None:
    border = Border([b"room/*/temp", b"log/"])
    for key in (b"room/1/temp", b"log/a/b"):
        assert border.refusal(key) is None
    assert border.refusal(b"room/1/hum") == "outside the patterns"
    everything = Border([b""])
    for key in (b"!/cred/1/2/3/x", b"!/cred////x", b"a/!/b", b"!", b"a/!", b"!/x"):
        assert everything.refusal(key) == "reserved key", key
    for key in (b"", b"a!/b", b"!!", b"a/b!"):
        assert everything.refusal(key) is None, key
    assert everything.refusal(b"sbus/gateway") == "key of the gateways"
    assert Border([]).refusal(b"a") == "outside the patterns"


def allowed(separator: bytes) -> bool:
    try:
        check_separator(separator)
    except UsageError:
        return False
    return True


SEPARATORS = [one for one in (bytes([byte]) for byte in range(256)) if allowed(one)]


@given(st.lists(st.sampled_from([b"!", b"/", b".", b"\n", b"a", b"1", b"*", b"\xff", b"x"]), max_size=7).map(b"".join))
def test_with_an_uncertain_separator_a_key_reserved_under_any_separator_is_refused(key: bytes) -> None:
    reserved = any(Border([b""], separator).is_reserved(key) for separator in SEPARATORS)
    assert Border([b""], certain=False).is_reserved(key) is reserved


def test_with_an_uncertain_separator_a_pattern_reserved_under_any_separator_is_refused() -> None:
    Border([b"a.!.b"])
    with pytest.raises(UsageError):
        Border([b"a.!.b"], certain=False)


@pytest.mark.parametrize("patterns", [[b"!/cred/1/2/3/"], [b"a/!/"], [b"!"], b"bytes", "text"])
def test_reserved_patterns_are_refused(patterns: list[bytes]) -> None:
    with pytest.raises(UsageError):
        Border(patterns)


def test_a_pattern_with_nul_is_refused() -> None:
    with pytest.raises(KeyFormatError):
        Border([b"a\0"])


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


@pytest.mark.parametrize(
    ("sender", "own", "user"),
    [
        (None, None, b""),
        (b"!/cred/1/2/3", None, b"!/cred/1/2"),
        (b"!/cred/1/2/3", b"!/cred/9/9/9", b"!/cred/1/2"),
        (b"!/cred/1/2/3/!/cred/4/5/6", b"!/cred/9/9/9", b"!/cred/1/2"),  # a client of a hub below
        (b"!/cred/1/2/3/!/cred/4/5/6", b"!/cred/1/2/3/!/cred/9/9/9", b"!/cred/1/2/3/!/cred/4/5"),
        (b"!/cred/1/2/3/!/cred/4/5/6/!/cred/7/8/9", b"!/cred/1/2/3/!/cred/9/9/9", b"!/cred/1/2/3/!/cred/4/5"),
        (b"!/cred/1/2/4/!/cred/4/5/6", b"!/cred/1/2/3/!/cred/9/9/9", b"!/cred/1/2"),  # handed down by the hub above
        (b"!.cred.1.2.3", None, b""),  # another separator than was given: all senders are one user
    ],
)
def test_the_user_of_a_sender_is_what_the_kernel_vouches_for(
    sender: bytes | None, own: bytes | None, user: bytes
) -> None:
    assert user_of(sender, own) == user


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
    views[1].excuse(11)
    assert not views[1].expire(20)
    assert views[1].expire(21.5)
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


def test_fits_a_packet_agrees_with_what_can_be_published() -> None:
    room = PACKET_BYTES - len(encode_message(b"key", b""))
    assert fits_a_packet(b"key", bytes(room))
    encode_message(b"key", bytes(room))
    assert not fits_a_packet(b"key", bytes(room + 1))
