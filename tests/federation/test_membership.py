"""How gateways and bridges keep out of each other's way: without a bus."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from sbuslib.federation import membership as module
from sbuslib.federation.membership import (
    MEMBERS_MOST,
    USERS_MOST,
    BridgeStatistics,
    EchoFilter,
    Heartbeat,
    Membership,
    announcement_of,
    digest,
    encode_heartbeat,
)
from sbuslib.keys.own_keys import CONTROL
from sbuslib.wire.packets import Message


def said(*numbers: int) -> bytes:
    return announcement_of([(b"k", b"%d" % number) for number in numbers])


def of(number: int) -> bytes:
    return digest(b"k", b"%d" % number)


def test_each_announcement_answers_for_one_message_and_is_forgotten_in_time() -> None:
    echoes = EchoFilter()
    echoes.expect(b"one", said(1), 0)
    echoes.expect(b"one", said(1), 1)
    assert not echoes.take(b"two", of(1))
    assert [echoes.take(b"one", of(1)) for _ in range(3)] == [True, True, False]
    echoes.expect(None, said(2, 3), 2)
    echoes.expect(None, said(4), 3)
    echoes.expire(12)
    assert (len(echoes), echoes.take(None, of(4))) == (1, True)
    echoes.expire(13)
    assert echoes._users == {}


def test_announcements_of_one_user_do_not_push_out_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "USER_MOST", 10)
    echoes = EchoFilter()
    echoes.expect(b"gateway", said(*range(4)), 0, b"one")
    for number in range(1_000):
        echoes.expect(b"stranger%d" % number, said(number), 1, b"two")
    assert len(echoes) == 14
    assert all(echoes.take(b"gateway", of(number), b"one") for number in range(4))
    assert [echoes.take(b"stranger%d" % number, of(number), b"two") for number in (989, 990, 999)] == [
        False, True, True,
    ]  # fmt: skip


def test_users_beyond_a_number_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "USER_MOST", 10)
    echoes = EchoFilter()
    for number in range(10 * USERS_MOST):
        echoes.expect(b"sender", said(number), 0, b"user%d" % number)
    assert len(echoes) == USERS_MOST + 10
    known = [number for number in range(10 * USERS_MOST) if echoes.take(b"sender", of(number), b"user%d" % number)]
    assert known == [*range(USERS_MOST), *range(10 * USERS_MOST - 10, 10 * USERS_MOST)]


def membership(me: str, refused: Counter[str] | None = None) -> Membership:
    return Membership(me, "alike", "it", b"!/cred/1/1/9", b"/", refused if refused is not None else Counter())


def word(heartbeat: Heartbeat) -> Message:
    return Message(CONTROL, encode_heartbeat(heartbeat), b"!/cred/1/1/10")


def test_spares_agree_on_the_one_that_sends() -> None:
    views = {me: membership(me) for me in ("g1", "g2")}
    assert all(view.leads for view in views.values())
    for me, other in (("g2", "g1"), ("g1", "g2")):
        views[other].hear(Message(*views[me].heartbeat(BridgeStatistics(), 0)), 0)
    assert [(view.leads, view.spares) for view in views.values()] == [(True, 1), (False, 1)]
    for view in views.values():
        view.hear(word(Heartbeat("g0", "different")), 0)
    assert [(view.leads, view.others, view.spares) for view in views.values()] == [(True, 2, 1), (False, 2, 1)]
    for _ in range(2):
        views["g2"].hear(Message(*views["g1"].farewell()), 1)
    assert views["g2"].leads


def test_one_that_says_nothing_is_forgotten_unless_this_process_did_not_run_meanwhile() -> None:
    one = membership("g2")
    assert not one.is_due(0)
    one.hear(word(Heartbeat("g1", "alike")), 0.5)
    assert (one.is_asked, one.is_due(1)) == (True, True)  # so that the new one hears of this one
    one.heartbeat(BridgeStatistics(), 1)
    assert (one.is_asked, one.is_due(2), one.others) == (False, True, 1)
    assert [one.is_due(now) for now in (100, 101, 102, 103)] == [True] * 4
    assert not one.leads
    assert not one.is_due(104)
    assert (one.others, one.leads) == (0, True)


def test_words_of_strangers_are_bounded_and_those_that_are_known_stay() -> None:
    refused = Counter[str]()
    one = membership("me", refused)
    one.heartbeat(BridgeStatistics(), 0)
    for number in range(10 * MEMBERS_MOST):
        one.hear(word(Heartbeat(f"forged{number}", "alike")), 0)
    assert one.others == MEMBERS_MOST - 1
    for heartbeat in (
        Heartbeat("unknown", "alike", leaving=True),
        Heartbeat("me", "alike", leaving=True),
        Heartbeat("me", "other"),
    ):
        one.hear(word(heartbeat), 0)
    for text in (b"here " + b"[" * 60_000, b"nonsense"):
        one.hear(Message(CONTROL, text), 0)
    assert refused == {
        "too many gateways": 9 * MEMBERS_MOST + 1,
        "forged heartbeat": 2,
        "malformed heartbeat": 1,
    }
    assert one.others == MEMBERS_MOST - 1


def test_what_another_brought_is_known_once_and_one_that_is_alone_announces_nothing() -> None:
    one, other = membership("g1"), membership("g2")
    brought = [(b"a", b"x"), (b"a", b"x")]
    assert one.announced(brought) == brought
    for view, me in ((one, "g2"), (other, "g1")):
        view.hear(word(Heartbeat(me, "alike")), 0)
    (key, announcement), *rest = one.announced(brought)
    assert (key, rest) == (CONTROL, brought)
    other.hear(Message(CONTROL, announcement, b"!/cred/1/1/10"), 0)
    messages = [Message(b"a", b"x", b"!/cred/1/1/%d" % pid) for pid in (11, 10, 10, 10)]
    assert [other.has_brought(message) for message in messages] == [False, True, True, False]


@pytest.mark.parametrize(
    "heartbeat",
    [
        Heartbeat("", "alike"),
        Heartbeat("g" * 65, "alike"),
        Heartbeat("g\n", "alike"),
        Heartbeat("g", "a b"),
        Heartbeat("g", "alike", text="t" * 301),
        Heartbeat("g", "alike", counts=BridgeStatistics(kept=-1)),
    ],
)
def test_malformed_heartbeats_are_refused(heartbeat: Heartbeat) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(heartbeat), type=Heartbeat)
