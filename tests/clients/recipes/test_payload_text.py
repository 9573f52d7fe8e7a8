"""What tools show of a payload: each wire format by its name, and everything else as it is."""

from __future__ import annotations

import pytest

from sbuslib.clients.recipes.payload_text import payload_text
from sbuslib.clients.recipes.queue import Announcement, Submission, encode
from sbuslib.clients.recipes.request import FAILED, REPLY, encode_answer, encode_question
from sbuslib.wire.offers import Offer, encode_offer
from sbuslib.wire.packets import Message

CALLER = b"!/cred/100/1000/7"
REPLY_TO = CALLER + b"/reply/" + b"0f" * 16
FILE = encode_offer(Offer("file", 2_000, b"report\x1b.txt", store=bytes(16)))


def request(payload: bytes, reply_to: bytes = REPLY_TO) -> bytes:
    return encode_question(1, 5.0, reply_to, payload)


def submission(*jobs: tuple[bytes, bytes]) -> bytes:
    return request(encode(Submission(list(jobs))))


@pytest.mark.parametrize(
    ("key", "payload", "shown"),
    [
        (b"bob", request(b"who?\x1b"), "(request, reply to !/cred/100/1000/7) who?\\x1b"),
        (b"bob", request(b""), "(request, reply to !/cred/100/1000/7)"),
        (REPLY_TO, encode_answer(REPLY, 1, b"you"), "(reply) you"),
        (REPLY_TO, encode_answer(FAILED, 1, b"ValueError"), "(error) ValueError"),
        (b"queue/mail/submit", submission((b"a", b"A")), "(job a, reply to !/cred/100/1000/7) A"),
        (
            b"t.bob.queue.mail.submit",
            submission(*[(b"a", b"A")] * 3),
            "(job a and 2 more, reply to !/cred/100/1000/7) A",
        ),
        (b"queue/mail/submit", request(b"\x91\x90"), "(request, reply to !/cred/100/1000/7) \\x91\\x90"),
        (
            b"queue/mail/work",
            encode(Announcement(CALLER, 8, [1])),
            "(worker !/cred/100/1000/7, prefetch 8, holds 1 jobs)",
        ),
        (b"files", FILE, "(file report\\x1b.txt, 2,000 bytes, at its publisher)"),
        (b"camera", encode_offer(Offer("frame", 5), b"small"), "(frame, 5 bytes) small"),
    ],
)
def test_what_programs_of_the_library_exchange_is_named(key: bytes, payload: bytes, shown: str) -> None:
    assert payload_text(Message(key, payload)) == shown


@pytest.mark.parametrize(
    ("key", "payload"),
    [
        (b"bob", request(b"x", b"room/1")),  # no caller's key: a server does not answer there either
        (b"bob", request(b"")[:-1]),
        (b"bob", b"REQ1"),
        (b"room/1", encode_answer(REPLY, 1, b"you")),  # replies come under a caller's key alone
        (REPLY_TO, encode_answer(9, 1)),
        (b"work", encode(Announcement(CALLER, 8, []))),
        (b"files", FILE[:20]),
        (b"", b""),
    ],
)
def test_whatever_is_laid_out_otherwise_is_shown_as_it_is(key: bytes, payload: bytes) -> None:
    assert payload_text(Message(key, payload)) == "".join(
        chr(byte) if 32 <= byte < 127 else {9: "\\t", 10: "\\n", 13: "\\r"}.get(byte, f"\\x{byte:02x}")
        for byte in payload
    )


def test_no_more_is_shown_than_asked_for() -> None:
    assert payload_text(Message(b"bob", request(b"x" * 100)), 3) == "(request, reply to !/cred/100/1000/7) xxx"
