"""Where messages go: mailboxes, the inbox, or both."""

from __future__ import annotations

import pytest

from sbuslib.clients import mailboxes
from sbuslib.clients.hub_requests import PatternRequest
from sbuslib.clients.recipes.mailbox import Mailbox
from sbuslib.clients.session import Session
from sbuslib.limits import KNOWN_KEYS
from sbuslib.wire.packets import Message


def put(session: Session, *keys: bytes) -> None:
    assert session.mailboxes is not None
    for key in keys:
        session.mailboxes.put(Message(key, b"x"))


def keys(box: Mailbox) -> list[bytes]:
    found = []
    while (message := box.take()) is not None:
        found.append(message.key)
    return found


def inbox(session: Session) -> list[bytes]:
    found = [message.key for message in session.inbox]
    session.inbox.clear()
    return found


def subscribe(session: Session, *patterns: bytes) -> None:
    session.subscribe(PatternRequest(patterns, b"/"))


def test_a_message_goes_to_mailboxes_and_to_the_inbox_where_the_application_wants_it_too() -> None:
    session, one, other = Session(), Mailbox(b"a/", b"a/*"), Mailbox(b"a/1")
    for box in (one, other):
        session.open(box)
        subscribe(session, *box.patterns)
    put(session, b"a/1", b"a/2", b"b")
    assert (keys(one), keys(other), inbox(session)) == ([b"a/1", b"a/2"], [b"a/1"], [b"b"])
    subscribe(session, b"a/1", b"")
    put(session, b"a/1", b"a/2", b"!/cred////a")
    assert (keys(one), keys(other)) == ([b"a/1", b"a/2"], [b"a/1"])
    assert inbox(session) == [b"a/1", b"a/2", b"!/cred////a"]
    session.unsubscribe([b"", b"a/1"])
    put(session, b"a/1")
    assert inbox(session) == []
    session.unsubscribe(other.patterns)
    session.shut(other)
    put(session, b"a/1", b"a/2")
    assert (keys(one), keys(other), inbox(session)) == ([b"a/1", b"a/1", b"a/2"], [b"a/1"], [])


def test_no_wildcard_of_a_mailbox_reaches_a_secret_key() -> None:
    session, everything, secret = Session(), Mailbox(b""), Mailbox(b"!/cred/1/2/3/r")
    for box in (everything, secret):
        session.open(box)
        subscribe(session, *box.patterns)
    put(session, b"!/cred/1/2/3/r", b"r")
    assert (keys(everything), keys(secret), inbox(session)) == ([b"r"], [b"!/cred/1/2/3/r"], [])


def test_what_is_remembered_of_keys_is_bounded() -> None:
    session, box = Session(), Mailbox(b"")
    session.open(box)
    put(session, *(b"k%d" % number for number in range(3 * KNOWN_KEYS)), bytes(b"k" * 10_000))
    assert session.mailboxes is not None
    assert len(session.mailboxes._places) <= KNOWN_KEYS
    assert len(box.messages) == 3 * KNOWN_KEYS + 1


@pytest.mark.parametrize("bound", [{"MOST_UNREAD": 3}, {"MOST_UNREAD_BYTES": 3}])
def test_an_inbox_that_nobody_reads_is_bounded(bound: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bound.items():
        monkeypatch.setattr(mailboxes, name, value)
    session = Session()
    session.open(Mailbox(b"a"))
    put(session, *[b"b"] * 5)
    assert (len(session.inbox), session.lost) == (3, {"unread": 2})
    for _ in range(10):
        session.inbox.popleft()
        put(session, b"b")
    assert (len(session.inbox), session.lost) == (3, {"unread": 2})
    put(session, b"b")
    assert (len(inbox(session)), session.lost) == (3, {"unread": 3})
