"""Wire format of offers, and of what is exchanged with a descriptor store."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.errors import DescriptorError
from sbuslib.wire.offers import (
    ASK,
    FAILED,
    HAVE,
    MAGIC,
    META_BYTES,
    MOST_TOKENS,
    Offer,
    Saying,
    decode_offer,
    decode_saying,
    encode_offer,
)

# -- The messages that name descriptor stores, and what is said there: what anybody may send

NAME, TOKEN = bytes(range(16)), bytes(range(16, 32))


def payload(*fields: object, rest: bytes = b"") -> bytes:
    head = msgspec.msgpack.encode(fields)
    return MAGIC + len(head).to_bytes(2, "little") + head + rest


def test_an_offer_comes_as_it_was_made() -> None:
    offer = Offer("file", 2**40, b"name", NAME, TOKEN, True)
    assert decode_offer(encode_offer(offer)) == (offer, memoryview(b""))
    assert decode_offer(encode_offer(Offer("frame", 2, b"meta"), b"ab")) == (
        Offer("frame", 2, b"meta"),
        memoryview(b"ab"),
    )


def test_the_payload_of_any_other_message_is_no_offer() -> None:
    assert decode_offer(b"") is None
    assert decode_offer(MAGIC[1:]) is None


@pytest.mark.parametrize(
    "wrong",
    [
        MAGIC,
        payload(),
        payload("frame"),
        payload("frame", -1, b"", NAME, TOKEN),
        payload("frame", 2**60, b"", NAME, TOKEN),
        payload("frame", 1, bytes(META_BYTES + 1), NAME, TOKEN),
        payload("frame", 1, b"", NAME[1:], TOKEN),
        payload("frame", 1, b"", NAME, TOKEN + b"x"),
        payload("other", 1, b"", NAME, TOKEN),
        payload("file", 1, b"", None, TOKEN),
        payload("frame", 3, b"", None, TOKEN, rest=b"ab"),
        payload("frame", 1, "text", NAME, TOKEN),
        payload("frame", 1.5, b"", NAME, TOKEN),
        payload(*[[]] * 1_000),
    ],
)
def test_what_is_malformed_is_an_error(wrong: bytes) -> None:
    with pytest.raises(DescriptorError, match="malformed"):
        decode_offer(wrong)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_offer_or_an_error(data: bytes) -> None:
    with suppress(DescriptorError):
        decode_offer(MAGIC + data)
    decode_saying(data)


def test_what_is_said_at_a_store() -> None:
    assert decode_saying(ASK + NAME + TOKEN) == Saying(ASK, [NAME, TOKEN])
    assert decode_saying(HAVE + TOKEN) == Saying(HAVE, [TOKEN])
    assert decode_saying(FAILED + TOKEN + b"no room\xff") == Saying(FAILED, [TOKEN], "no room\ufffd")
    for wrong in (b"", ASK, ASK + b"short", b"\0xxx" + TOKEN, ASK + TOKEN * (MOST_TOKENS + 1), ASK + TOKEN + b"x"):
        assert decode_saying(wrong) is None
