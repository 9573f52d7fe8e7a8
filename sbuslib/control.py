"""What control messages say: their keys, and the layout of each answer.

``CMSG`` packets pass between one client and its hub and are never forwarded. The C daemon knows
``!/cred/whoami`` and the flood and echo modes, and ignores the rest, as this library ignores (and
counts) what it does not know; so every extension here is asked for before it is used. ``docs/protocol.md``
tells the same for readers who write a client in another language.
"""

from __future__ import annotations

import msgspec

from .errors import PacketError
from .packets import encode_control

__all__ = [
    "ECHO_OFF",
    "ECHO_ON",
    "FEATURES",
    "FROM",
    "SENDERS_OFF",
    "SENDERS_ON",
    "SUPPORTED",
    "SYNC",
    "WHOAMI",
    "Features",
    "encode_sync",
    "unwrap_from",
    "wrapper_from",
]

WHOAMI = b"!/cred/whoami"
ECHO_ON = b"echo/on"
ECHO_OFF = b"echo/off"
FEATURES = b"hub/features"
SYNC = b"hub/sync"
SENDERS_ON = b"senders/on"
SENDERS_OFF = b"senders/off"
FROM = b"from"

SUPPORTED = (b"echo/off", b"hub/features", b"hub/sync", b"senders/on")


class Features(msgspec.Struct, frozen=True):
    """The answer to ``hub/features``: one line of words separated by spaces.

    ``words`` are the extensions the hub supports, ``hub_id`` its identity (hexadecimal digits), ``path``
    the ids from this hub up to the root of its tree, its own first.
    """

    words: frozenset[bytes]
    hub_id: bytes
    path: tuple[bytes, ...]

    def encode(self) -> bytes:
        """The line: the words in order, then ``id=<id>`` and ``path=<id>,<id>,…``."""
        words = [*sorted(self.words), b"id=" + self.hub_id, b"path=" + b",".join(self.path)]
        return b" ".join(words)

    @classmethod
    def decode(cls, line: bytes) -> Features:
        """Read an answer; words that are not known are kept, so that a newer hub can be talked to."""
        words: set[bytes] = set()
        hub_id, path = b"", tuple[bytes, ...]()
        for word in line.split():
            if word.startswith(b"id="):
                hub_id = word[3:]
            elif word.startswith(b"path="):
                path = tuple(filter(None, word[5:].split(b",")))
            else:
                words.add(word)
        return cls(frozenset(words), hub_id, path)


def encode_sync(token: bytes, scope: bytes) -> bytes:
    """The packet that answers a ``hub/sync``: ``scope`` is ``local``, ``tree`` or ``partial``."""
    return encode_control(SYNC, token + b"\0" + scope)


def wrapper_from(sender: bytes) -> bytes:
    """What comes before a packet that is delivered with its sender: ``CMSG from NUL <sender> NUL``."""
    return b"CMSG from\0%b\0" % sender


def unwrap_from(payload: bytes) -> tuple[bytes, bytes]:
    """Sender and inner packet of a ``from``'s payload. Raises :exc:`~sbuslib.errors.PacketError`."""
    sender, nul, packet = payload.partition(b"\0")
    if not nul:
        raise PacketError("wrapper without packet")
    return sender, packet
