"""How gateways and bridges keep out of each other's way: without a bus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from sbuslib.border import fellows as module
from sbuslib.border.fellows import (
    MEMBERS_MOST,
    REMOTES_MOST,
    USERS_MOST,
    BridgeCounts,
    Doubled,
    Expected,
    Fellows,
    Here,
    announcement_of,
    encode_here,
)
from sbuslib.border.keys import CONTROL
from sbuslib.wire.packets import Message


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


def fellows(me: str, refused: Counter[str] | None = None, warn: Callable[[str], object] = print) -> Fellows:
    return Fellows(me, "alike", b"/", refused if refused is not None else Counter(), warn)


def word(here: Here) -> Message:
    return Message(CONTROL, encode_here(here), b"!/cred/1/1/10")


def test_spares_agree_on_the_one_that_sends() -> None:
    views = {me: fellows(me) for me in ("g1", "g2")}

    def say(me: str, *remotes: str) -> None:
        _, said = views[me].say_here(remotes, "", BridgeCounts(), 0)
        for other, view in views.items():
            if other != me:
                assert view.hear(Message(CONTROL, said), b"", 0)

    def lead(remote: str) -> list[bool]:
        return [view.leads_to(remote) for view in views.values()]

    say("g2", "B", "C")
    say("g1")
    assert lead("B") == [False, True]
    say("g1", "B")
    assert (lead("B"), lead("C")) == ([True, False], [False, True])
    assert lead("D") == [True, True]  # none has said that it is connected
    assert [(view.others, view.spares) for view in views.values()] == [(1, 1), (1, 1)]
    for view in views.values():
        assert view.hear(word(Here("g0", "different", ("B",))), b"", 0)
    assert lead("B") == [True, False]
    assert [(view.others, view.spares) for view in views.values()] == [(2, 1), (2, 1)]
    leaving = Message(CONTROL, views["g1"].say_leaving()[1])
    assert views["g2"].hear(leaving, b"", 1)
    assert not views["g2"].hear(leaving, b"", 1)
    assert views["g2"].leads_to("B")
    assert not views["g1"].leads_to("C")  # it takes out no more than before


def test_one_that_says_nothing_is_forgotten_unless_this_process_did_not_run_meanwhile() -> None:
    one = fellows("g1")
    assert not one.beat(0)
    one.hear(word(Here("g2", "alike")), b"", 0.5)
    assert (one.is_asked, one.beat(1)) == (True, True)  # so that the new one hears of this one
    one.say_here((), "", BridgeCounts(), 1)
    assert (one.is_asked, one.beat(2), one.others) == (False, True, 1)
    assert one.beat(100)
    assert one.beat(101)
    assert one.beat(102)
    assert one.beat(103)
    assert not one.beat(104)
    assert (one.others, one.spares) == (0, 0)


def test_words_of_strangers_are_bounded_and_those_that_are_known_stay() -> None:
    refused = Counter[str]()
    one = fellows("me", refused)
    one.say_here(("B.x",), "", BridgeCounts(), 0)
    for number in range(10 * MEMBERS_MOST):
        one.hear(word(Here(f"forged{number}", "alike")), b"", 0)
    assert one.others == MEMBERS_MOST - 1
    assert one.hear(word(Here("forged1", "alike", ("B.x",))), b"", 0)
    assert not one.hear(word(Here("unknown", "alike", leaving=True)), b"", 0)
    for here in (Here("me", "alike", leaving=True), Here("me", "other")):
        assert not one.hear(word(here), b"", 0)
    assert not one.hear(Message(CONTROL, b"here " + b"[" * 60_000), b"", 0)
    assert not one.hear(Message(CONTROL, b"nonsense"), b"", 0)
    assert refused == {
        "too many gateways": 9 * MEMBERS_MOST + 1,
        "forged word of a gateway": 2,
        "unknown word of a gateway": 1,
    }
    assert one.leads_to("B.x") is False  # "forged1" sorts first: a spare that says nothing more is forgotten


def test_what_another_brought_is_known_once_and_one_that_is_alone_announces_nothing() -> None:
    one, other = fellows("g1"), fellows("g2")
    brought = [(b"a", b"x"), (b"a", b"x")]
    assert one.announcement(brought, 0) == []
    for view, me in ((one, "g2"), (other, "g1")):
        view.hear(word(Here(me, "alike")), b"", 0)
    [(key, said)] = one.announcement(brought, 0)
    assert key == CONTROL
    assert not other.hear(Message(CONTROL, said, b"!/cred/1/1/10"), b"", 0)
    messages = [Message(b"a", b"x", b"!/cred/1/1/%d" % pid) for pid in (11, 10, 10, 10)]
    assert [other.has_brought(message) for message in messages] == [False, True, True, False]


@pytest.mark.parametrize(
    "here",
    [
        Here("", "alike"),
        Here("g" * 65, "alike"),
        Here("g\n", "alike"),
        Here("g", "a b"),
        Here("g", "alike", ("r" * 131,)),
        Here("g", "alike", ("r",) * (REMOTES_MOST + 1)),
        Here("g", "alike", text="t" * 301),
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
    monkeypatch.setattr(module, "_COMPARED", 4)
    doubled = Doubled()
    doubled.hear(said(*range(100)), 0.0)
    doubled.bring(said(*range(96)), 0.0)
    assert not doubled.look()
    doubled.hear(said(*range(92, 96)), 0.0)
    assert len(doubled._brought) + len(doubled._announced) <= 8
