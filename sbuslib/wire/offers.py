"""What a message says of something that is handed out at a descriptor store, and what is said at a descriptor store.
Pure.

The message is an ordinary one. Its payload is :data:`MAGIC`, the length of an :class:`Offer` in two bytes, the offer
in msgpack and, of a frame that fits into the packet, the frame itself.

At a descriptor store, a packet of the one who asks is a word and one or more tokens; the answer is one byte for each
token, with the descriptors of those that are :data:`GIVEN`. Of a file, the receiver says on the same connection how it
goes on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from ..errors import DescriptorError

MAGIC: Final = b"\0sbus-fds1\0"
"""How the payload of an offer begins. No text and no JSON begins like this."""
TOKEN_BYTES: Final = 16
"""Random bytes that nobody guesses: of a token, and of a descriptor store's name."""
META_BYTES: Final = 4_096
"""Longest metadata. What is longer belongs into the frame."""
MOST_TOKENS: Final = 4
"""Tokens of one request. So many descriptors at most are under way to one who does not read."""

# Words of those who ask. None of them is a packet of the bus, wherever it arrives.
ASK: Final = b"\0ask"
HAVE: Final = b"\0got"  # the file is whole
FAILED: Final = b"\0bad"  # there will be no file; why follows
COPYING: Final = b"\0yet"  # the file is being copied
_WORDS: Final = frozenset({ASK, HAVE, FAILED, COPYING})

GIVEN, GONE, BUSY = 0, 1, 2
"""The bytes of an answer. After the last, ask again a moment later."""

Kind = Literal["frame", "file", "descriptor"]
Random = Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """What is handed out. ``size`` is in bytes; ``meta`` is the sender's, of a file its name.

    ``descriptor store`` is the random part of the descriptor store's name, in the abstract namespace or, with
    ``in_folder``, in a folder that both ends were given: a message cannot send its receivers to any other socket. A
    frame without ``descriptor store`` follows.
    """

    kind: Kind
    size: Annotated[int, Meta(ge=0, le=2**53)]
    meta: Annotated[bytes, Meta(max_length=META_BYTES)] = b""
    store: Random | None = None
    token: Random = bytes(TOKEN_BYTES)
    in_folder: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Offer)
_HEAD: Final = len(MAGIC) + 2


def encode_offer(offer: Offer, frame: memoryview | bytes = b"") -> bytes:
    """The payload of the message."""
    head = _encoder.encode(offer)
    return b"".join((MAGIC, len(head).to_bytes(2, "little"), head, frame))


def decode_offer(payload: bytes) -> tuple[Offer, memoryview] | None:
    """The offer and the frame behind it; ``None`` for the payload of any other message.

    Raises :exc:`~sbuslib.errors.DescriptorError`.
    """
    if not payload.startswith(MAGIC):
        return None
    at = _HEAD + int.from_bytes(payload[len(MAGIC) : _HEAD], "little")
    rest = memoryview(payload)
    try:
        offer = _decoder.decode(rest[_HEAD:at])
    except (ValueError, RecursionError):  # of msgspec, and of text that is none
        raise DescriptorError("malformed") from None
    if offer.store is None and (offer.kind != "frame" or len(rest) - at != offer.size):
        raise DescriptorError("malformed")
    return offer, rest[at:]


def needs_descriptor_store(payload: bytes) -> Offer | None:
    """The kind of what has to be fetched at a descriptor store. Such a message is of no use on another machine, or
    later.
    """
    with suppress(DescriptorError):
        decoded = decode_offer(payload)
        if decoded is not None and decoded[0].store is not None:
            return decoded[0]
    return None


class Saying(NamedTuple):
    """What somebody says at a descriptor store: one of the words above, about what, and for :data:`FAILED` why."""

    word: bytes
    tokens: list[bytes]
    text: str = ""


def decode_saying(packet: bytes) -> Saying | None:
    """What a visitor says; ``None`` for anything else."""
    word, rest = packet[: len(ASK)], packet[len(ASK) :]
    if word not in _WORDS or len(rest) < TOKEN_BYTES:
        return None
    if word != ASK:
        return Saying(word, [rest[:TOKEN_BYTES]], rest[TOKEN_BYTES:].decode(errors="replace"))
    if len(rest) % TOKEN_BYTES or len(rest) > TOKEN_BYTES * MOST_TOKENS:
        return None
    return Saying(word, [rest[at : at + TOKEN_BYTES] for at in range(0, len(rest), TOKEN_BYTES)])
