"""Wire format of presences and of interest: who is there under a key, and whether a key has addressees.

A hub numbers the presences that it knows, for the clients that watch. Between hubs a presence has a *name*, the same in
the whole tree: its number at the hub of its client, ``@``, and the id of that hub's process. Hubs that do not know
:data:`PRESENCE_NAMED` send, and are sent, their neighbour's own number in its place.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ..errors import PacketError
from ..reasons import Reason
from .packets import encode_control

# Requests of clients.
PRESENCE_ON = b"presence/on"
PRESENCE_OFF = b"presence/off"
PRESENCE_WATCH = b"presence/watch"
PRESENCE_UNWATCH = b"presence/unwatch"
INTEREST_WATCH = b"interest/watch"
INTEREST_UNWATCH = b"interest/unwatch"

# Packets of hubs.
PRESENCE_BEGIN = b"presence/begin"
PRESENCE_ADD = b"presence/add"
PRESENCE_REMOVE = b"presence/remove"
PRESENCE_COMPLETE = b"presence/complete"
NOTICE_INTEREST = b"notice/interest"

PRESENCE_NAMED = b"presence/named"
"""No packet, but a word of two hubs: presences have names, and lists a scope."""

INFO_BYTES: Final = 1_024
"""Most bytes of a presence's information. More belongs into a message."""
SENDER_BYTES: Final = 4_096
"""Bytes of a credential key: some 100 hubs on the way."""

CLOSED: Final = b"closed"
ENDED: Final = b"ended"
KICKED: Final = b"kicked"
UNREACHABLE: Final = b"unreachable"
REFUSED: Final = b"refused"

_NAME = rb"([0-9]{1,18}(?:@[0-9A-Za-z._-]{1,64})?)"
_ADDED = re.compile(_NAME + rb" ([^\0]*)\0([^\0]*)\0", re.DOTALL)
_REMOVED = re.compile(_NAME + rb" ([a-z]{1,32})")


class Added(msgspec.Struct, frozen=True):
    """``presence/add``: a new presence, or one with other information or another credential key than before."""

    name: bytes
    """Name of the presence, or its number, unique to the hub that sends it. Neither is ever used again."""
    sender: bytes
    """The credential key of the process that is present."""
    key: bytes
    info: bytes

    def encode(self) -> bytes:
        """The packet: name or number, and credential key; key; information."""
        return encode_control(PRESENCE_ADD, b"%b %b\0%b\0%b" % (self.name, self.sender, self.key, self.info))

    @classmethod
    def decode(cls, payload: bytes) -> Added:
        """Raises :exc:`~sbuslib.errors.PacketError`."""
        match = _ADDED.match(payload)
        if match is None or len(match[2]) > SENDER_BYTES or len(payload) - match.end() > INFO_BYTES:
            raise PacketError(Reason.MALFORMED_PRESENCE)
        return cls(match[1], match[2], match[3], payload[match.end() :])


class Removed(msgspec.Struct, frozen=True):
    """``presence/remove``: a presence has ended."""

    name: bytes
    cause: bytes
    """:data:`CLOSED`: by itself; :data:`ENDED`: its connection ended, which the kernel says when the process ends;
    :data:`KICKED`: by its hub; :data:`UNREACHABLE`: the link to its hub was given up; :data:`REFUSED`: by the rules."""

    def encode(self) -> bytes:
        """The packet: name or number, and cause."""
        return encode_control(PRESENCE_REMOVE, b"%b %b" % (self.name, self.cause))

    @classmethod
    def decode(cls, payload: bytes) -> Removed:
        """Raises :exc:`~sbuslib.errors.PacketError`."""
        match = _REMOVED.fullmatch(payload)
        if match is None:
            raise PacketError(Reason.MALFORMED_PRESENCE)
        return cls(match[1], match[2])


def encode_complete(is_whole: bool, pattern: bytes | None = None) -> bytes:
    """Encode the end of a list, for a hub, or of a client's ``pattern``; or that the list is whole now, or no more."""
    scope = b"tree" if is_whole else b"partial"
    return encode_control(PRESENCE_COMPLETE, scope if pattern is None else scope + b"\0" + pattern)


def encode_interest(state: bytes, pattern: bytes) -> bytes:
    """Encode whether a key, or any key of a pattern, has addressees: ``yes``, ``no`` or ``unknown``."""
    return encode_control(NOTICE_INTEREST, state + b"\0" + pattern)
