"""The state of a client, without a connection."""

from __future__ import annotations

import mmap
from typing import Any

import pytest

from sbuslib.clients.hub_requests import PatternRequest
from sbuslib.clients.recipes.mailbox import Mailbox
from sbuslib.clients.session import MOST_CAUSES, MOST_NOTICES, OTHER_CAUSES, Session
from sbuslib.errors import KeyFormatError, PayloadError, PeerError
from sbuslib.limits import KNOWN_KEY_BYTES, KNOWN_KEYS, PACKET_BYTES
from sbuslib.wire import control
from sbuslib.wire.packets import (
    Message,
    encode_control,
)


def feed(session: Session, *packets: bytes) -> bool:
    """Lay packets out as a receive buffer does, and let the session take them."""
    slot = max([len(packet) for packet in packets] + [1]) + 3
    with mmap.mmap(-1, slot * len(packets) + 1) as data:
        offsets = [slot * number for number in range(len(packets))]
        for offset, packet in zip(offsets, packets, strict=True):
            data[offset : offset + len(packet)] = packet
        return session.take(data, offsets, [len(packet) for packet in packets])


def test_the_number_of_remembered_keys_is_bounded() -> None:
    session = Session()
    for number in range(KNOWN_KEYS - 1):
        assert session.encode(b"k%d" % number, b"x\0y") == b"MSG k%d\0x\0y" % number
    assert session.headers[b"k7"] == b"MSG k7\0"
    session.encode(bytes(b"k" * (KNOWN_KEY_BYTES + 1)), b"")
    session.encode(b"!/cred/1/2/3/", b"")
    for key in (b"a\0", b"!/x"):
        with pytest.raises(KeyFormatError):
            session.encode(key, b"")
    with pytest.raises(PayloadError):
        session.encode(b"k", bytes(PACKET_BYTES - 5))
    assert len(session.headers) == KNOWN_KEYS
    session.encode(b"another", b"")
    assert session.headers == {b"another": b"MSG another\0"}
    session.hello()
    assert not session.headers, "what is reserved depends on the hub"


def whoami(key: bytes) -> bytes:
    return encode_control(control.WHOAMI, key)


@pytest.mark.parametrize(
    "packet",
    [b"MSG a", b"MSG ", b"SUB a", b"UNSUB a", b"x", b"\0", b"CMSG hub/sync", b"CMSG from\0x", b"CMSG from\0x\0y",
     b"CMSG from\0x\0SUB a", b"CMSG from\0x\0MSG a", b"CMSG from\0x\0CMSG a\0b"],
)  # fmt: skip
def test_a_packet_that_no_hub_sends_is_a_peer_error(packet: bytes) -> None:
    with pytest.raises(PeerError):
        feed(Session(), packet)


def test_unknown_control_messages_are_ignored() -> None:
    session = Session()
    assert feed(session, b"CMSG notice/later\0 7", b"CMSG \0", b"CMSG hub/sync\0unasked\0local") is False
    assert not session.inbox


def test_a_wrapped_message_has_its_sender() -> None:
    session = Session()
    feed(session, control.wrapper_from(b"!/cred/1/2/3") + b"MSG a\0b\0c", b"MSG a\0d")
    assert list(session.inbox) == [Message(b"a", b"b\0c", b"!/cred/1/2/3"), Message(b"a", b"d")]


def test_messages_with_the_head_of_the_one_before_have_its_key_and_its_sender() -> None:
    """Their packets are not parsed: each of those that are would be copied four times."""
    session = Session()
    one, other = control.wrapper_from(b"!/cred/1/2/3"), control.wrapper_from(b"!/cred/1/2/4")
    heads = [one + b"MSG a\0"] * 3 + [other + b"MSG a\0"] * 2 + [b"MSG a\0"] * 2 + [one + b"MSG b\0"] * 2
    for order in (heads, heads[::2] + heads[1::2]):
        packets = [head + payload for head, payload in zip(order, [b"", b"x", b"\0", b"MSG a\0"] * 3, strict=False)]
        feed(session, *packets)
        assert [session.inbox.popleft() for _ in packets] == [
            Message(b"b" if b"b\0" in head else b"a", packet.removeprefix(head), sender_in(head))
            for head, packet in zip(order, packets, strict=True)
        ]


def sender_in(head: bytes) -> bytes | None:
    return head.split(b"\0")[1] if head.startswith(b"CMSG") else None


def test_a_new_connection_restores_subscriptions_and_choices() -> None:
    session = Session()
    session.hello()
    feed(session, whoami(b"!/cred/1/2/3"))
    assert session.restore() == []
    session.subscribe(PatternRequest([b"a", b"a", b"!/cred/1/2/3/x", b"!/cred//2//y", b"!/cred/1/2/33/x"], b"/"))
    session.choose(b"echo/on")
    session.choose(b"echo/off")  # the newest of a kind
    session.choose(b"senders/on")
    session.hello()
    assert not session.knows_itself()
    feed(session, whoami(b"!/cred/1/2/4"))
    assert sorted(session.restore()) == sorted(
        [
            b"SUB a",
            b"SUB a",
            b"SUB !/cred/1/2/4/x",  # renewed
            b"SUB !/cred//2//y",
            b"SUB !/cred/1/2/33/x",  # not ours to begin with
            b"CMSG echo/off\0",  # and no senders, which this hub cannot tell
        ]
    )
    assert session.held[b"!/cred/1/2/4/x"] == 1
    assert session.held[b"!/cred/1/2/3/x"] == 0


def test_nothing_is_received_over_a_new_connection_before_what_was_chosen_is_in_force() -> None:
    session = Session(senders=True, echo=False)
    session.subscribe(PatternRequest([b"k"], b"/"))
    session.hello()
    feed(session, b"CMSG hub/features\0senders/on id=1", whoami(b"!/cred/1/2/3"))
    assert session.restore()[-1] == b"SUB k"


def test_secrets_are_renewed_when_the_hub_tells_new_credentials() -> None:
    session = Session()
    session.hello()
    feed(session, whoami(b"p/!/cred/1/2/3"))
    session.restore()
    assert not session.has_to_renew
    patterns = [b"a", b"p/!/cred/1/2/3/x", b"p/!/cred/1/2/3/x", b"p/!/cred//2//y", b"!/cred//2//z"]
    session.subscribe(PatternRequest(patterns, b"/"))
    feed(session, control.NewCredentials(b"q/r/!/cred/1/2/3").encode())
    assert session.has_to_renew
    assert sorted(session.renew()) == [
        b"SUB q/r/!/cred//2//y",
        b"SUB q/r/!/cred/1/2/3/x",
        b"SUB q/r/!/cred/1/2/3/x",
    ]
    assert session.renew() == []
    assert not session.has_to_renew
    assert session.held == {
        b"a": 1,
        b"q/r/!/cred/1/2/3/x": 2,
        b"q/r/!/cred//2//y": 1,
        b"!/cred//2//z": 1,  # of another hub
    }


def test_only_the_newest_notices_wait_for_the_application() -> None:
    session = Session()
    sent = [control.Lost("discard", number, 1.0) for number in range(MOST_NOTICES + 10)]
    feed(session, *(notice.encode() for notice in sent))
    assert list(session.notices) == sent[10:]
    assert session.lost == {"discard": sum(range(MOST_NOTICES + 10))}


def test_losses_are_a_subscriptions_where_there_is_no_other() -> None:
    session, first, second = Session(), Mailbox(b"a", b"b"), Mailbox(b"c")
    for mailbox in (first, second):
        session.subscribe(PatternRequest((*mailbox.patterns,), b"/", mailbox))
        feed(session, control.Lost("overflow", 2, 1.0).encode())
    session.shut(first)
    session.unsubscribe(first.patterns)
    feed(session, control.Away(1.0, 2.0).encode())
    session.unsubscribe(second.patterns)
    feed(session, control.Lost("outage", 1, 1.0).encode())
    assert (first.lost, second.lost) == ({"overflow": 2}, {"away": 1})
    assert session.lost == {"overflow": 4, "away": 1, "outage": 1}


def test_losses_of_very_many_causes_are_counted_together() -> None:
    session = Session()
    causes = [letter * times for letter in "abcdefgh" for times in range(1, 10)]
    feed(session, *(control.Lost(cause, 2, 1.0).encode() for cause in causes))
    assert len(session.lost) == MOST_CAUSES + 1
    assert session.lost[OTHER_CAUSES] == 2 * (len(causes) - MOST_CAUSES)
    feed(session, control.Lost(causes[0], 5, 1.0).encode())
    assert session.lost[causes[0]] == 7


def test_the_reason_of_a_kick_is_cut_off_where_it_is_too_long() -> None:
    session = Session()
    feed(session, control.Kicked("x" * 100_000).encode())
    assert session.kicked == "x" * 1_024


def test_a_new_connection_begins_without_batches_until_the_hub_knows_of_them() -> None:
    session = Session()
    session.batches = True
    session.hello()
    assert not session.batches


# -- exceptions of signal handlers, which come after any call


@pytest.mark.parametrize("call", range(9))
@pytest.mark.parametrize("is_kept", [False, True], ids=["inbox", "mailbox"])
def test_an_exception_that_comes_while_packets_are_sorted_loses_none(
    monkeypatch: pytest.MonkeyPatch, call: int, is_kept: bool
) -> None:
    calls = 0

    def interrupted(*arguments: Any) -> Message:
        nonlocal calls
        calls += 1
        if calls == call + 1:
            raise KeyboardInterrupt
        return Message(*arguments)

    monkeypatch.setattr("sbuslib.clients.session.Message", interrupted)
    session, mailbox = Session(), Mailbox(b"*")
    if is_kept:
        session.subscribe(PatternRequest([b"*"], b"/", mailbox))
    packets = [b"MSG k%d\0%d" % (number // 3, number) for number in range(8)]
    data, offsets = mmap.mmap(-1, 65_536), [1_000 * number for number in range(len(packets))]
    for offset, packet in zip(offsets, packets, strict=True):
        data[offset : offset + len(packet)] = packet
    try:
        ended = session.take(data, offsets, [len(packet) for packet in packets])
    except KeyboardInterrupt:
        assert session.has_unread
        ended = session.take_rest(data)
    assert not ended
    came = mailbox.messages if is_kept else session.inbox
    assert [message.payload for message in came] == [b"%d" % number for number in range(8)]
    assert not session.lost
