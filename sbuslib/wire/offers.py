"""Wire format of offers (in messages) and of requests to a descriptor store. Pure.

The message is an ordinary one. Its payload is :data:`MAGIC`, the length of an :class:`Offer` in two bytes, the offer
in msgpack and, for a frame that fits into the packet, the frame itself.

A request to a descriptor store is a word and one or more tokens; the answer is one byte for each token, with the
descriptors of those that are :data:`GIVEN`. The receiver of a file reports its progress on the same connection.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from ..errors import DescriptorError
from ..malformed import MALFORMED

MAGIC: Final = b"\0sbus-fds1\0"
"""Start of an offer's payload. No text and no JSON begins like this."""
TOKEN_BYTES: Final = 16
"""Random bytes of a token, and of a descriptor store's name: too many to guess."""
META_BYTES: Final = 4_096
"""Longest metadata. More belongs into the frame."""
MOST_TOKENS: Final = 4
"""Most tokens of one request, and so most descriptors in flight to a receiver that does not read."""

# Words of requests. None of them is a packet of the bus, wherever it arrives.
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
    """Offer of a frame, file or descriptor. ``size`` is in bytes; ``meta`` is the sender's, for a file its name.

    ``store`` is the random part of the descriptor store's name, in the abstract namespace or, with ``in_folder``, in a
    folder that both ends were given: a message cannot direct its receivers to any other socket. Without ``store``, the
    frame follows the offer.
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
    """Encode the payload of the message."""
    head = _encoder.encode(offer)
    return b"".join((MAGIC, len(head).to_bytes(2, "little"), head, frame))


def decode_offer(payload: bytes) -> tuple[Offer, memoryview] | None:
    """Decode an offer and the frame behind it; ``None`` for the payload of any other message.

    Raises :exc:`~sbuslib.errors.DescriptorError`.
    """
    if not payload.startswith(MAGIC):
        return None
    at = _HEAD + int.from_bytes(payload[len(MAGIC) : _HEAD], "little")
    rest = memoryview(payload)
    try:
        offer = _decoder.decode(rest[_HEAD:at])
    except MALFORMED:
        raise DescriptorError("malformed") from None
    if offer.store is None and (offer.kind != "frame" or len(rest) - at != offer.size):
        raise DescriptorError("malformed")
    return offer, rest[at:]


def needs_descriptor_store(payload: bytes) -> Offer | None:
    """The offer, if it has to be fetched at a descriptor store: of no use on another machine, or later."""
    with suppress(DescriptorError):
        decoded = decode_offer(payload)
        if decoded is not None and decoded[0].store is not None:
            return decoded[0]
    return None


class Saying(NamedTuple):
    """Request to a descriptor store: one of the words above, its tokens, and for :data:`FAILED` the reason."""

    word: bytes
    tokens: list[bytes]
    text: str = ""


def decode_saying(packet: bytes) -> Saying | None:
    """Decode a request; ``None`` for anything else."""
    word, rest = packet[: len(ASK)], packet[len(ASK) :]
    if word not in _WORDS or len(rest) < TOKEN_BYTES:
        return None
    if word != ASK:
        return Saying(word, [rest[:TOKEN_BYTES]], rest[TOKEN_BYTES:].decode(errors="replace"))
    if len(rest) % TOKEN_BYTES or len(rest) > TOKEN_BYTES * MOST_TOKENS:
        return None
    return Saying(word, [rest[at : at + TOKEN_BYTES] for at in range(0, len(rest), TOKEN_BYTES)])
