"""How gateways and bridges keep out of each other's way: without a bus."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from sbuslib.federation import fellows as module
from sbuslib.federation.fellows import (
    MEMBERS_MOST,
    USERS_MOST,
    BridgeStatistics,
    Expected,
    Fellows,
    Here,
    announcement_of,
    digest,
    encode_here,
)
from sbuslib.federation.import_export import CONTROL
from sbuslib.wire.packets import Message


def said(*numbers: int) -> bytes:
    return announcement_of([(b"k", b"%d" % number) for number in numbers])


def of(number: int) -> bytes:
    return digest(b"k", b"%d" % number)


def test_each_announcement_answers_for_one_message_and_is_forgotten_in_time() -> None:
    expected = Expected()
    expected.hear(b"one", said(1), 0)
    expected.hear(b"one", said(1), 1)
    assert not expected.take(b"two", of(1))
    assert [expected.take(b"one", of(1)) for _ in range(3)] == [True, True, False]
    expected.hear(None, said(2, 3), 2)
    expected.hear(None, said(4), 3)
    expected.expire(12)
    assert (len(expected), expected.take(None, of(4))) == (1, True)
    expected.expire(13)
    assert expected._users == {}


def test_announcements_of_one_user_do_not_push_out_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "USER_MOST", 10)
    expected = Expected()
    expected.hear(b"gateway", said(*range(4)), 0, b"one")
    for number in range(1_000):
        expected.hear(b"stranger%d" % number, said(number), 1, b"two")
    assert len(expected) == 14
    assert all(expected.take(b"gateway", of(number), b"one") for number in range(4))
    assert [expected.take(b"stranger%d" % number, of(number), b"two") for number in (989, 990, 999)] == [
        False, True, True,
    ]  # fmt: skip


def test_users_beyond_a_number_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "USER_MOST", 10)
    expected = Expected()
    for number in range(10 * USERS_MOST):
        expected.hear(b"sender", said(number), 0, b"user%d" % number)
    assert len(expected) == USERS_MOST + 10
    known = [number for number in range(10 * USERS_MOST) if expected.take(b"sender", of(number), b"user%d" % number)]
    assert known == [*range(USERS_MOST), *range(10 * USERS_MOST - 10, 10 * USERS_MOST)]


def fellows(me: str, refused: Counter[str] | None = None) -> Fellows:
    return Fellows(me, "alike", "it", b"!/cred/1/1/9", b"/", refused if refused is not None else Counter())


def word(here: Here) -> Message:
    return Message(CONTROL, encode_here(here), b"!/cred/1/1/10")


def test_spares_agree_on_the_one_that_sends() -> None:
    views = {me: fellows(me) for me in ("g1", "g2")}
    assert all(view.leads for view in views.values())
    for me, other in (("g2", "g1"), ("g1", "g2")):
        views[other].hear(Message(*views[me].say_here(BridgeStatistics(), 0)), 0)
    assert [(view.leads, view.spares) for view in views.values()] == [(True, 1), (False, 1)]
    for view in views.values():
        view.hear(word(Here("g0", "different")), 0)
    assert [(view.leads, view.others, view.spares) for view in views.values()] == [(True, 2, 1), (False, 2, 1)]
    for _ in range(2):
        views["g2"].hear(Message(*views["g1"].say_leaving()), 1)
    assert views["g2"].leads


def test_one_that_says_nothing_is_forgotten_unless_this_process_did_not_run_meanwhile() -> None:
    one = fellows("g2")
    assert not one.beat(0)
    one.hear(word(Here("g1", "alike")), 0.5)
    assert (one.is_asked, one.beat(1)) == (True, True)  # so that the new one hears of this one
    one.say_here(BridgeStatistics(), 1)
    assert (one.is_asked, one.beat(2), one.others) == (False, True, 1)
    assert [one.beat(now) for now in (100, 101, 102, 103)] == [True] * 4
    assert not one.leads
    assert not one.beat(104)
    assert (one.others, one.leads) == (0, True)


def test_words_of_strangers_are_bounded_and_those_that_are_known_stay() -> None:
    refused = Counter[str]()
    one = fellows("me", refused)
    one.say_here(BridgeStatistics(), 0)
    for number in range(10 * MEMBERS_MOST):
        one.hear(word(Here(f"forged{number}", "alike")), 0)
    assert one.others == MEMBERS_MOST - 1
    for here in (Here("unknown", "alike", leaving=True), Here("me", "alike", leaving=True), Here("me", "other")):
        one.hear(word(here), 0)
    for text in (b"here " + b"[" * 60_000, b"nonsense"):
        one.hear(Message(CONTROL, text), 0)
    assert refused == {
        "too many gateways": 9 * MEMBERS_MOST + 1,
        "forged word of a gateway": 2,
        "unknown word of a gateway": 1,
    }
    assert one.others == MEMBERS_MOST - 1


def test_what_another_brought_is_known_once_and_one_that_is_alone_announces_nothing() -> None:
    one, other = fellows("g1"), fellows("g2")
    brought = [(b"a", b"x"), (b"a", b"x")]
    assert one.announced(brought) == brought
    for view, me in ((one, "g2"), (other, "g1")):
        view.hear(word(Here(me, "alike")), 0)
    (key, announcement), *rest = one.announced(brought)
    assert (key, rest) == (CONTROL, brought)
    other.hear(Message(CONTROL, announcement, b"!/cred/1/1/10"), 0)
    messages = [Message(b"a", b"x", b"!/cred/1/1/%d" % pid) for pid in (11, 10, 10, 10)]
    assert [other.has_brought(message) for message in messages] == [False, True, True, False]


@pytest.mark.parametrize(
    "here",
    [
        Here("", "alike"),
        Here("g" * 65, "alike"),
        Here("g\n", "alike"),
        Here("g", "a b"),
        Here("g", "alike", text="t" * 301),
        Here("g", "alike", counts=BridgeStatistics(kept=-1)),
    ],
)
def test_malformed_here_messages_are_refused(here: Here) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(here), type=Here)
