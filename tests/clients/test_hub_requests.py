"""The questions of a client: each has its own answer, also where several are open."""

from __future__ import annotations

from sbuslib.clients.hub_requests import HubQuestion, SyncScope
from sbuslib.clients.session import Session
from sbuslib.wire import control
from sbuslib.wire.packets import Control, encode_control, parse


def feed(session: Session, *packets: bytes) -> None:
    for packet in packets:
        control_message = parse(packet)
        assert isinstance(control_message, Control)
        session._take_control(control_message)


def asked(session: Session, key: bytes, payload: bytes = b"") -> HubQuestion:
    """A question that was sent."""
    question = session.ask(key, payload)
    session.expect(question)
    return question


def test_questions_under_one_key_are_answered_in_their_order() -> None:
    session = Session()
    first, second, other = asked(session, b"a", b"1"), asked(session, b"a", b"2"), asked(session, b"b")
    assert parse(second.packet) == Control(b"a", b"2")
    feed(session, encode_control(b"a", b"one"), encode_control(b"b", b""))
    assert (first.answer, second.answer, other.answer) == (b"one", None, b"")
    feed(session, encode_control(b"a", b"two"), encode_control(b"a", b"unasked"))
    assert second.answer == b"two"


def test_an_answer_of_another_connection_is_of_no_question() -> None:
    session = Session()
    before, by_token = asked(session, control.WHOAMI), session.ask_by_token(control.SYNC, b"")
    session.hello()  # on a new connection, where the first question is its own
    after = asked(session, control.WHOAMI)
    feed(session, encode_control(control.WHOAMI, b"k1"), control.encode_sync(b"1", b"tree"))
    assert session.knows_itself()
    assert (before.answer, after.answer, by_token.answer, session.credentials) == (None, None, None, b"k1")
    feed(session, encode_control(control.WHOAMI, b"k2"))
    assert (before.answer, after.answer, session.credentials) == (None, b"k2", b"k2")


def test_an_answer_with_a_token_is_found_by_it() -> None:
    session = Session()
    one, two = session.ask_by_token(control.SYNC, b""), session.ask_by_token(control.SYNC, b"\0tree")
    assert [parse(question.packet) for question in (one, two)] == [
        Control(control.SYNC, b"1"),
        Control(control.SYNC, b"2\0tree"),
    ]
    feed(session, control.encode_sync(b"2", b"partial"), encode_control(control.SYNC, b"1"))
    assert (one.answer, two.answer) == (b"", b"partial")
    del one  # nobody waits for it
    feed(session, control.encode_sync(b"1", b"tree"))
    assert [*session._by_token] == [b"2"]


def test_how_far_it_is_in_force() -> None:
    assert [SyncScope.of(answer) for answer in (b"", b"local", b"partial", b"tree")] == [
        "local",
        "local",
        "partial",
        "tree",
    ]
    assert (SyncScope.of(control.SCOPE_TRUSTED), SyncScope.of(control.SCOPE_TRUSTED).trusted_only) == ("tree", True)
    assert not SyncScope.of(b"tree").trusted_only
