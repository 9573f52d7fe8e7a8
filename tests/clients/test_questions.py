"""The questions of a client, which may be asked again on a new connection."""

from __future__ import annotations

import pytest

from sbuslib.clients.questions import Sync, Whoami
from sbuslib.clients.session import Session
from sbuslib.errors import UsageError
from sbuslib.wire import control
from sbuslib.wire.packets import Control, encode_control, parse


def feed(session: Session, *packets: bytes) -> None:
    for packet in packets:
        session._take_control(packet)


def test_whoami_is_answered_by_the_answer_to_its_own_question() -> None:
    session = Session()
    first, second = Whoami(session), Whoami(session)
    assert first.ask() == second.ask() == [encode_control(control.WHOAMI)]
    feed(session, encode_control(control.WHOAMI, b"!/cred/1/2/3"))
    assert (first.is_answered(), second.is_answered()) == (True, False)
    assert session.credentials == b"!/cred/1/2/3"


def test_whoami_that_is_asked_again_waits_for_the_new_answer() -> None:
    session = Session()
    question = Whoami(session)
    question.ask()
    session.hello()  # on a new connection, where it has the first ticket
    question.ask()
    feed(session, encode_control(control.WHOAMI, b"k"))
    assert not question.is_answered()
    feed(session, encode_control(control.WHOAMI, b"k"))
    assert question.is_answered()


def token_of(packets: list[bytes]) -> bytes:
    (packet,) = packets
    value = parse(packet)
    assert isinstance(value, Control)
    assert value.payload is not None
    return value.payload.partition(b"\0")[0]


def test_sync_counts_the_answer_to_the_last_question_alone() -> None:
    session = Session()
    with Sync(session, "tree") as question:
        before = token_of(question.ask())
        after = token_of(question.ask())
        feed(session, control.encode_sync(before, b"tree"))
        assert not question.is_answered()
        feed(session, control.encode_sync(after, b"partial"))
        assert question.is_answered()
        assert question.answer == "partial"
    assert not session.scopes


def test_a_scope_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="'world'"):
        Sync(Session(), "world")
