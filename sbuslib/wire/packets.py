"""Wire format of packets: bytes to values and back.

This module has the form of a single packet, and nothing of its effects. One packet of the Unix-domain sequenced-packet
socket is one message::

    SUB <pattern>[NUL ignored]      UNSUB <pattern>[NUL ignored]
    MSG <key>NUL<payload>           CMSG <key>[NUL<payload>]

Keys and patterns are bytes without NUL; either may be empty. Source: the protocol section of sbus's
README, and ``docs/protocol.md`` here, which has this library's extensions, too.

The hub's hot path compares the header of a ``MSG`` (everything up to and with its first NUL) as bytes
and comes here only for a header that it has not seen, so :data:`MSG` is shared rather than repeated.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ..errors import KeyFormatError, PacketError, PayloadError
from ..limits import CONTROL_EXTRA, PACKET_BYTES
from ..reasons import Reason
from .text import printable

MSG = b"MSG "
SUB = b"SUB "
UNSUB = b"UNSUB "
CMSG = b"CMSG "

Key: TypeAlias = bytes | str
"""A key, a pattern or the name of a queue, as programs give it. Text stands for its bytes in UTF-8."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A published message: routing ``key``, ``payload``, and ``sender`` if the client asked for senders.

    ``sender`` is the credential key that the hub vouches for (``!/cred/<gid>/<uid>/<pid>``), or ``None``.
    """

    key: bytes
    payload: bytes
    sender: bytes | None = None


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """The client subscribes to ``pattern``."""

    pattern: bytes


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    """The client withdraws one earlier :class:`Subscribe`."""

    pattern: bytes


class Control(msgspec.Struct, frozen=True, gc=False):
    """Control message between one client and its hub; ``payload`` is ``None`` if the packet ended at the key."""

    key: bytes
    payload: bytes | None = None


Packet: TypeAlias = Message | Subscribe | Unsubscribe | Control


def parse(packet: bytes) -> Packet:
    """Parse a packet.

    Raises :exc:`~sbuslib.errors.PacketError` for an empty packet, one longer than a hub's longest
    control packet, an unknown verb, and a ``MSG`` without NUL. Nothing else is ever raised.
    """
    # 1. Check its length: an answer of a hub may be longer than other packets.
    if not packet:
        raise PacketError(Reason.EMPTY_PACKET)
    head, nul, payload = packet.partition(b"\0")
    if len(packet) > PACKET_BYTES and not (head.startswith(CMSG) and len(packet) <= PACKET_BYTES + CONTROL_EXTRA):
        raise PacketError(Reason.PACKET_TOO_LONG)

    # 2. By its verb.
    if head.startswith(MSG):
        if not nul:
            raise PacketError(Reason.NO_NUL)
        return Message(head[4:], payload)
    if head.startswith(SUB):
        return Subscribe(head[4:])
    if head.startswith(UNSUB):
        return Unsubscribe(head[6:])
    if head.startswith(CMSG):
        return Control(head[5:], payload if nul else None)
    raise PacketError(Reason.UNKNOWN_VERB)


def as_key(key: Key, what: str = "key") -> bytes:
    """Convert a key of a program to bytes: text is encoded. Raises :exc:`~sbuslib.errors.KeyFormatError`."""
    if isinstance(key, str):
        try:
            key = key.encode()
        except UnicodeEncodeError as error:
            raise KeyFormatError(f"a {what} is text that UTF-8 can encode: {error.reason}") from None
    check_key(key, what)
    return key


def check_key(key: bytes, what: str = "key") -> None:
    """Raise :exc:`~sbuslib.errors.KeyFormatError` unless ``key`` may stand in a packet; ``what`` names it."""
    if not isinstance(key, bytes):
        raise KeyFormatError(f"a {what} is bytes or str, not {type(key).__name__}")
    if b"\0" in key:
        raise KeyFormatError(f"a {what} cannot hold a NUL byte: {printable(key[:80])}")


def check_payload(payload: bytes) -> None:
    """Raise :exc:`~sbuslib.errors.PayloadError` unless a payload is bytes."""
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise PayloadError(f"a payload is bytes, not {type(payload).__name__}")


def message_header(key: bytes) -> bytes:
    """Encode ``MSG <key>NUL``, the part before the payload. Raises :exc:`~sbuslib.errors.KeyFormatError`."""
    check_key(key)
    return b"MSG %b\0" % key


def encode_message(key: bytes, payload: bytes) -> bytes:
    """Encode the packet that publishes ``payload`` under ``key``.

    Raises :exc:`~sbuslib.errors.KeyFormatError` for a key with NUL, and
    :exc:`~sbuslib.errors.PayloadError` when both do not fit one packet of 409,600 bytes.
    """
    check_key(key)
    try:
        packet = b"MSG %b\0%b" % (key, payload)
    except TypeError:
        raise PayloadError(f"a payload is bytes, not {type(payload).__name__}") from None
    if len(packet) > PACKET_BYTES:
        raise PayloadError(
            f"a message of {len(packet):,} bytes (key and payload) does not fit a packet of {PACKET_BYTES:,}"
        )
    return packet


def encode_subscribe(pattern: bytes) -> bytes:
    """Encode a subscription to ``pattern``. Raises :exc:`~sbuslib.errors.KeyFormatError`."""
    return _about_pattern(SUB, pattern)


def encode_unsubscribe(pattern: bytes) -> bytes:
    """Encode the end of one subscription. Raises :exc:`~sbuslib.errors.KeyFormatError`."""
    return _about_pattern(UNSUB, pattern)


def _about_pattern(verb: bytes, pattern: bytes) -> bytes:
    check_key(pattern, "pattern")
    packet = verb + pattern
    if len(packet) > PACKET_BYTES:
        raise KeyFormatError(f"a pattern of {len(pattern):,} bytes does not fit a packet of {PACKET_BYTES:,}")
    return packet


def encode_control(key: bytes, payload: bytes = b"") -> bytes:
    """Encode a control packet, always with its NUL. Raises :exc:`~sbuslib.errors.KeyFormatError`."""
    check_key(key, "control key")
    return b"CMSG %b\0%b" % (key, payload)
