"""Wire format of control messages: their keys, and the layout of each answer.

``CMSG`` packets pass between one client and its hub and are never forwarded. The C daemon knows ``!/cred/whoami`` and
the flood and echo modes, and ignores the rest, as this library ignores (and counts) unknown keys. So every extension is
negotiated before it is used. ``docs/protocol.md`` describes the same for authors of clients in other languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from ..errors import PacketError
from ..matcher import SEPARATOR, check_separator
from ..reasons import Reason
from . import presence
from .events import NOTICE_EVENT, HubEvent
from .packets import encode_control

WHOAMI = b"!/cred/whoami"
ECHO_ON = b"echo/on"
ECHO_OFF = b"echo/off"
FEATURES = b"hub/features"
SYNC = b"hub/sync"
WANTED = b"hub/wanted"
SENDERS_ON = b"senders/on"
SENDERS_OFF = b"senders/off"
FROM = b"from"
WRAPPER = b"CMSG from\0"
"""Start of a packet that is delivered with its sender."""
BATCH_ON = b"batch/on"
BATCH_OFF = b"batch/off"
MONITOR_ON = b"monitor/on"

# Between a hub and the relays of its children: docs/relay.md.
INTEREST_ON = b"interest/on"
INTEREST_ADD = b"interest/add"
INTEREST_REMOVE = b"interest/remove"
INTEREST_COMPLETE = b"interest/complete"
INTEREST_PRUNE = b"interest/prune"
INTEREST_GRAFT = b"interest/graft"
INTEREST_LINKS = b"interest/links"
INTEREST_WIDEN = b"interest/widen"
INTEREST_SYNC = b"interest/sync"
INTEREST_ADDRESS = b"interest/address"
INTEREST_LEAVE = b"interest/leave"
INTEREST_LOST = b"interest/lost"
INTEREST_PRESUMED = b"interest/presumed"
"""No packet, but a word of two hubs: patterns may bear the mark of what is presumed."""

SCOPE_TREE = b"tree"
"""A scope of a ``hub/sync``: all hubs up to the root, and those below them."""
SCOPE_TRUSTED = b"tree\0trusted"
"""The same in an answer, but without hubs of users that their parent hub does not trust."""

RELOAD = b"hub/reload"
TAKE_OVER = b"hub/take-over"
STATISTICS = b"hub/statistics"
CLIENTS = b"hub/clients"
LINKS = b"hub/links"
PATTERNS = b"hub/patterns"
WHY = b"hub/why"
NOTICES_ON = b"notices/on"
NOTICES_OFF = b"notices/off"
NOTICE_LOST = b"notice/lost"
NOTICE_KICKED = b"notice/kicked"
NOTICE_CREDENTIALS = b"notice/credentials"
NOTICE_WITHDRAWN = b"notice/withdrawn"
NOTICE_AWAY = b"notice/away"
SOFT = b"blocking/soft/"
HARD = b"blocking/hard/"
ORDER = b"order/"

UNCERTAIN: Final = "uncertain"
UP_CAUSES: Final = ("upstream", "unwanted", UNCERTAIN)
"""Causes of a :class:`Lost` for messages on their way up between two hubs: lost while the parent was away or slow, kept
for it but without a subscriber when it was back, and sent to it but never acknowledged."""

DOWNSTREAM: Final = "downstream"
"""Cause of a :class:`Lost` for messages on their way down: the child hub was too slow."""

MOST_LOST: Final = 10**15 - 1
"""The largest count in a ``notice/lost``, which stands for more, too. It fits every column of a journal."""

_LOST = re.compile(rb"([a-z]{1,32}) ([0-9]{1,15}) ([0-9]{1,10}(?:\.[0-9]{1,9})?)")
_AWAY = re.compile(rb"([0-9]{1,10}(?:\.[0-9]{1,9})?) ([0-9]{1,10}(?:\.[0-9]{1,9})?)")
_LATEST: Final = 2**33
"""No time from elsewhere is later than this, in seconds since the epoch: its nanoseconds fit 64 bits."""

_CHANGES_BYTES: Final = 8_192
"""Bytes of patterns in one ``interest/add``, unless one alone is longer: it fits the smallest send buffer."""

_REPORTS: Final = 64
"""Reports in one ``interest/lost``: some 6 KB."""

_ID = re.compile(rb"[0-9A-Za-z._-]{1,64}")
_REPORT = re.compile(
    rb"([0-9A-Za-z._-]{1,64}) ([a-z]{1,32}) ([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,10}(?:\.[0-9]{1,9})?)"
)
_PATH_MOST: Final = 256
"""Most ids in a path: no tree of hubs is that deep."""
_CREDENTIALS_MOST: Final = 64 * _PATH_MOST
"""Bytes of a credential key in a notice: each hub on the path adds some 40."""
_REASON_MOST: Final = 1_024
"""Bytes of the reason in a ``notice/kicked``; the rest is cut off."""

SUPPORTED = (
    b"batch/on",
    b"echo/off",
    b"hub/clients",
    b"hub/features",
    b"hub/links",
    b"hub/patterns",
    b"hub/reload",
    b"hub/statistics",
    b"hub/sync",
    b"hub/wanted",
    b"hub/why",
    b"interest/on",
    INTEREST_PRESUMED,
    b"interest/watch",
    b"monitor/on",
    b"notices/on",
    presence.PRESENCE_NAMED,
    b"presence/on",
    b"senders/on",
)


BETWEEN_HUBS: Final = frozenset({INTEREST_PRESUMED, presence.PRESENCE_NAMED})
"""Those of them that a child has to know, too, before its parent makes use of them. It names them in its hello."""


class Features(msgspec.Struct, frozen=True):
    """The answer to ``hub/features``: one line of words separated by spaces.

    ``words`` are the extensions the hub supports, ``hub_id`` its identity (hexadecimal digits), ``path``
    the ids from this hub up to the root of its tree, its own first, and ``separator`` the byte between the
    segments of its keys.
    """

    words: frozenset[bytes]
    hub_id: bytes
    path: tuple[bytes, ...]
    separator: bytes = SEPARATOR

    def encode(self) -> bytes:
        """The line: the words in order, then ``id=<id>`` and ``path=<id>,<id>,…``.

        A separator other than the usual one is written as ``separator=<two hexadecimal digits>``.
        """
        words = [*sorted(self.words), b"id=" + self.hub_id, b"path=" + b",".join(self.path)]
        if self.separator != SEPARATOR:
            words.append(b"separator=" + self.separator.hex().encode())
        return b" ".join(words)

    @classmethod
    def decode(cls, line: bytes) -> Features:
        """Read an answer; words that are not known are kept, so that a newer hub can be talked to.

        Raises :exc:`~sbuslib.errors.PacketError` for a separator or an id that cannot be one, and a path too long.
        """
        words: set[bytes] = set()

        # The usual separator is left out, and the path outside a tree.
        hub_id, path, separator = b"", tuple[bytes, ...](), SEPARATOR
        for word in line.split():
            if word.startswith(b"id="):
                hub_id = word[3:]
                if hub_id and not _ID.fullmatch(hub_id):
                    raise PacketError(Reason.MALFORMED_ID)
            elif word.startswith(b"path="):
                path = tuple(filter(None, word[5:].split(b",")))
                if len(path) > _PATH_MOST:
                    raise PacketError(Reason.PATH_TOO_LONG)
                if not all(map(_ID.fullmatch, path)):
                    raise PacketError(Reason.MALFORMED_PATH)
            elif word.startswith(b"separator="):
                try:
                    separator = check_separator(bytes.fromhex(word[10:].decode("ascii", "replace")))
                except ValueError:
                    raise PacketError(Reason.MALFORMED_SEPARATOR) from None
            else:
                words.add(word)
        return cls(frozenset(words), hub_id, path, separator)


class Lost(msgspec.Struct, frozen=True):
    """``notice/lost``: ``count`` messages for this client were lost since ``since`` (seconds since the epoch).

    ``cause`` is a word of :data:`sbuslib.core.losses.CAUSES`; a newer hub may have others.
    """

    cause: str
    count: int
    since: float

    def encode(self) -> bytes:
        """The packet: cause, count (at most :data:`MOST_LOST`) and time, separated by spaces."""
        return encode_control(NOTICE_LOST, f"{self.cause} {min(self.count, MOST_LOST)} {self.since:.6f}".encode())


class LossReport(msgspec.Struct, frozen=True):
    """Loss report in an ``interest/lost``: total of messages that hub ``hub`` lost on their way up, for one cause.

    The other end certainly knows the first ``acknowledged`` of them. It may know the first ``reported_before``, which
    were reported over an earlier link. ``since`` is the time of the first loss that is not acknowledged.
    """

    hub: bytes
    cause: str
    acknowledged: int
    reported_before: int
    total: int
    since: float

    @property
    def certain(self) -> int:
        """Losses that the other end cannot know yet."""
        return self.total - self.reported_before

    @property
    def uncertain(self) -> int:
        """Losses that it may know."""
        return self.reported_before - self.acknowledged

    def encode(self) -> bytes:
        """The words of the report, separated by spaces."""
        numbers = f"{self.acknowledged} {self.reported_before} {self.total} {self.since:.6f}"
        return b"%b %b %b" % (self.hub, self.cause.encode(), numbers.encode())

    @classmethod
    def decode(cls, words: bytes) -> LossReport:
        """Decode a report. Raises :exc:`~sbuslib.errors.PacketError`, also for numbers that contradict each other."""
        match = _REPORT.fullmatch(words)
        if match is None:
            raise PacketError(Reason.STRANGE_NOTICE)
        report = cls(match[1], match[2].decode(), int(match[3]), int(match[4]), int(match[5]), float(match[6]))
        in_order = report.acknowledged <= report.reported_before <= report.total
        if not in_order or report.cause not in UP_CAUSES or report.since >= _LATEST:
            raise PacketError(Reason.STRANGE_NOTICE)
        return report

    def joined_by(self, later: LossReport) -> LossReport:
        """Merge this report with a later one of the same hub and cause."""
        return msgspec.structs.replace(self, total=later.total)


class Away(msgspec.Struct, frozen=True):
    """``notice/away``: a parent was away from ``since`` to ``until`` (seconds since the epoch).

    Messages that were published above it meanwhile did not come down. Their number is unknown.
    """

    since: float
    until: float

    def encode(self) -> bytes:
        """The packet: both times, separated by a space."""
        return encode_control(NOTICE_AWAY, f"{self.since:.6f} {self.until:.6f}".encode())


class Kicked(msgspec.Struct, frozen=True):
    """``notice/kicked``: the hub is about to close the connection, for ``reason``."""

    reason: str

    def encode(self) -> bytes:
        """The packet: the reason in words."""
        return encode_control(NOTICE_KICKED, self.reason.encode())


class NewCredentials(msgspec.Struct, frozen=True):
    """``notice/credentials``: this client's credential key is now ``credentials``."""

    credentials: bytes

    def encode(self) -> bytes:
        """The packet: the credential key."""
        return encode_control(NOTICE_CREDENTIALS, self.credentials)


class Withdrawn(msgspec.Struct, frozen=True):
    """``notice/withdrawn``: this client may no longer subscribe to ``patterns``, and the hub took all its subscriptions
    to them back."""

    patterns: tuple[bytes, ...]

    def encode(self) -> bytes:
        """The packet: the patterns, separated by NUL."""
        return encode_control(NOTICE_WITHDRAWN, b"\0".join(self.patterns))


Notice: TypeAlias = Lost | Away | Kicked | NewCredentials | Withdrawn | HubEvent


def decode_notice(key: bytes, payload: bytes) -> Notice | None:
    """The notice under a control key; ``None`` for another key.

    Raises :exc:`~sbuslib.errors.PacketError`, also for a count beyond :data:`MOST_LOST`, for a time beyond the year
    2242 and for credentials that are too long. So the caller can count and keep a notice without a check of its own.
    """
    # 1. Notices of text, which is cut, or of keys.
    if key == NOTICE_KICKED:
        return Kicked(payload[:_REASON_MOST].decode(errors="replace"))
    if key == NOTICE_CREDENTIALS:
        if len(payload) > _CREDENTIALS_MOST:
            raise PacketError(Reason.MALFORMED_NOTICE)
        return NewCredentials(payload)
    if key == NOTICE_WITHDRAWN:
        return Withdrawn(tuple(payload.split(b"\0")))
    if key == NOTICE_EVENT:
        return HubEvent.decode(payload)

    # 2. Notices of times and counts.
    if key == NOTICE_AWAY:
        match = _AWAY.fullmatch(payload)
        if match is None or max(times := (float(match[1]), float(match[2]))) >= _LATEST:
            raise PacketError(Reason.MALFORMED_NOTICE)
        return Away(*times)
    if key != NOTICE_LOST:
        return None
    match = _LOST.fullmatch(payload)
    if match is None or (since := float(match[3])) >= _LATEST:
        raise PacketError(Reason.MALFORMED_NOTICE)
    return Lost(match[1].decode(), int(match[2]), since)


def encode_loss_reports(reports: Sequence[bytes]) -> list[bytes]:
    """Encode packets with encoded reports of losses, in this order."""
    parts = [reports[start : start + _REPORTS] for start in range(0, len(reports), _REPORTS)]
    return [encode_control(INTEREST_LOST, b"\0".join(part)) for part in parts]


def decode_loss_reports(payload: bytes) -> list[LossReport]:
    """Decode the reports of an ``interest/lost``. Raises :exc:`~sbuslib.errors.PacketError`."""
    if payload.count(b"\0") >= _REPORTS:
        raise PacketError(Reason.TOO_MANY_IN_ONE)
    return [LossReport.decode(words) for words in payload.split(b"\0")]


def encode_sync(token: bytes, scope: bytes) -> bytes:
    """Encode the answer to a ``hub/sync``: ``scope`` is ``local``, ``partial`` or one of the scopes above."""
    return encode_control(SYNC, token + b"\0" + scope)


def encode_reloaded(done: bool, text: str) -> bytes:
    """Encode the answer to a ``hub/reload``: success, and a text. Clients without the right to it get no answer."""
    return encode_control(RELOAD, (b"done\0" if done else b"failed\0") + text.encode(errors="replace")[:_REASON_MOST])


def wrapper_from(sender: bytes) -> bytes:
    """Encode the start of a packet that is delivered with its sender: ``CMSG from NUL <sender> NUL``."""
    return b"%b%b\0" % (WRAPPER, sender)


def unwrap_from(payload: bytes) -> tuple[bytes, bytes]:
    """Decode sender and inner packet of a ``from``'s payload. Raises :exc:`~sbuslib.errors.PacketError`."""
    sender, nul, packet = payload.partition(b"\0")
    if not nul:
        raise PacketError(Reason.NOTHING_INSIDE)
    return sender, packet


def encode_changes(changes: Iterable[tuple[bool, bytes]]) -> list[bytes]:
    """Encode interest changes as control packets for a link: patterns added (``True``) or removed, in order."""
    packets: list[bytes] = []
    patterns: list[bytes] = []
    size, kind = 0, True
    for added, pattern in changes:
        if patterns and (added is not kind or size + len(pattern) >= _CHANGES_BYTES):
            packets.append(_encode_change(kind, patterns))
            patterns, size = [], 0
        kind = added
        patterns.append(pattern)
        size += len(pattern) + 1
    if patterns:
        packets.append(_encode_change(kind, patterns))
    return packets


def _encode_change(added: bool, patterns: list[bytes]) -> bytes:
    return encode_control(INTEREST_ADD if added else INTEREST_REMOVE, b"\0".join(patterns))


def decode_patterns(payload: bytes) -> list[bytes]:
    """Decode the patterns of an ``interest/add`` or ``interest/remove``. Raises :exc:`~sbuslib.errors.PacketError`."""
    if payload.count(b"\0") >= _CHANGES_BYTES:
        raise PacketError(Reason.TOO_MANY_IN_ONE)
    return payload.split(b"\0")
