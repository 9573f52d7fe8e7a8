"""Membership of gateways and bridges on one bus: heartbeats, spares, and echo suppression. Pure.

**Echoes.** A message that one gateway imports reaches every other gateway and bridge of the bus as a subscriber. None
of them may export it again, or it would go round for ever. So before one publishes, it announces on the bus, under
:data:`~sbuslib.keys.own_keys.CONTROL`, the digests of the messages that it is about to publish. That key never crosses.
As the bus keeps the order of one publisher, each of them hears the announcement before it sees the message. For each
announcement, it leaves out one message with that digest from that sender. One that is alone on its bus announces
nothing. Its own messages do not come back to it: its client asks for that.

**Spares.** Bridges with the same configuration are each other's spares. The heartbeat of each carries its id and a
digest of its configuration, so they agree on the one that sends: the one whose id sorts first. Ids begin with the
time, so it is the oldest.

**Two paths.** Two gateways, or bridges with different configurations, may join the bus to the same other one. Then each
message comes twice. No gateway can detect that from its own bus.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ..keys.own_keys import CONTROL
from ..malformed import MALFORMED
from ..secrets import user_of
from ..wire.packets import Message
from .import_export import DropReason

_IMPORT: Final = b"import "
"""Prefix of an announcement; the digests follow."""
ASK: Final = b"who is here"
"""Asks all bridges for a heartbeat."""
HEARTBEAT: Final = b"here "
"""Prefix of a heartbeat."""

_DIGEST_BYTES: Final = 16

HEARTBEAT_SECONDS: Final = 1.0
"""Interval of heartbeats while there are other gateways. One that misses three is gone."""
SETTLE_SECONDS: Final = 0.25
"""Time from a new one's first heartbeat until it subscribes to its exports: the others have to know it before."""
_EXPECTED_SECONDS: Final = 10.0
"""How long an announced message is waited for."""

# Any client of the bus may publish under CONTROL, so all that is remembered of it is bounded: a few megabytes.
MEMBERS_MOST = 64
"""Gateways of one bus that are remembered; heartbeats of further ones are ignored."""
USERS_MOST = 64
"""Users whose announcements are counted apart; further users are counted as one."""
COUNT_MOST = 2**53 - 1
"""The highest number in a heartbeat."""
USER_MOST = 4_096
"""Messages that one user announced and that were not seen yet; then the oldest is forgotten. Announcements and messages
keep their order, so few are waited for at a time."""
_HEARTBEAT_BYTES: Final = 65_536
"""Longest heartbeat."""

_Announced: TypeAlias = tuple[bytes | None, bytes]
"""The sender and the digest of a message that was announced."""
_FURTHER_USERS = b"further users"


def digest(key: bytes, payload: bytes) -> bytes:
    """Digest of a message, by which gateways recognize it."""
    value = blake2b(key, digest_size=_DIGEST_BYTES)
    value.update(b"\0")
    value.update(payload)
    return value.digest()


def announcement_of(messages: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode the announcement of messages, pairs of key and payload, for :data:`~sbuslib.keys.own_keys.CONTROL`."""
    return _IMPORT + b"".join([digest(key, payload) for key, payload in messages])


def _digests(announcement: bytes) -> list[bytes]:
    """The digests in an announcement."""
    starts = range(len(_IMPORT), len(announcement) - _DIGEST_BYTES + 1, _DIGEST_BYTES)
    return [announcement[start : start + _DIGEST_BYTES] for start in starts]


class EchoFilter:
    """Announced imports of other gateways, kept until the message is seen or time has passed.

    Each user has a bounded table: a user that announces messages and never sends them pushes out only its own.
    """

    def __init__(self) -> None:
        # By user: how often each message was announced, and until when it is waited for.
        self._users: dict[bytes, OrderedDict[_Announced, tuple[int, float]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._users.values()))

    def expect(self, sender: bytes | None, announcement: bytes, now: float, user: bytes = b"") -> None:
        """Note that ``sender``, a process of ``user``, is about to publish messages with these digests."""
        if user not in self._users and len(self._users) >= USERS_MOST:
            user = _FURTHER_USERS
        waiting = self._users.setdefault(user, OrderedDict())
        for value in _digests(announcement):
            count, _ = waiting.pop((sender, value), (0, 0.0))
            waiting[sender, value] = count + 1, now + _EXPECTED_SECONDS
            if len(waiting) > USER_MOST:
                waiting.popitem(last=False)

    def take(self, sender: bytes | None, value: bytes, user: bytes = b"") -> bool:
        """Whether a message that was received, with this digest, was announced. Uses up one announcement."""
        for table in (user, _FURTHER_USERS):
            waiting = self._users.get(table, OrderedDict())
            count, until = waiting.get((sender, value), (0, 0.0))
            if count > 1:
                waiting[sender, value] = count - 1, until
            elif count:
                del waiting[sender, value]
            if count:
                return True
        return False

    def expire(self, now: float) -> None:
        """Forget messages that did not come in time."""
        for user, waiting in list(self._users.items()):
            while waiting and next(iter(waiting.values()))[1] <= now:
                waiting.popitem(last=False)
            if not waiting:
                del self._users[user]


_Id = Annotated[str, Meta(pattern="^[0-9A-Za-z._-]{1,64}\\Z")]
_Count = Annotated[int, Meta(ge=0, le=COUNT_MOST)]


class BridgeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a bridge or gateway, in messages, since it was made."""

    exported: _Count = 0
    """Messages that the other side has: the broker confirmed them."""
    imported: _Count = 0
    """Messages that were published on the bus."""
    kept: _Count = 0
    """Messages that wait."""
    lost: dict[Literal["outage", "uncertain", "bus", "unread", "too_long"], _Count] = {}
    """``outage``: the queue was full, or the bridge was closed. ``uncertain``: not confirmed, and not sent again.
    ``bus``: the hub dropped them for this client. ``unread``: dropped by the client of the broker. ``too_long``: the
    broker or the bus cannot hold the key or the payload; ``refused`` has which."""
    connected: bool = True
    """Whether the other side is connected."""
    spares: _Count = 0
    """Other bridges of the bus with the same configuration."""
    refused: dict[str, _Count] = {}
    """Messages that may not cross, or cannot, by :class:`~.import_export.DropReason`."""


class Heartbeat(msgspec.Struct, frozen=True, tag="here"):
    """Heartbeat of a gateway or bridge on its bus.

    ``group`` is the same for bridges with the same configuration. The last heartbeat of a gateway has ``leaving`` set.
    ``text`` is for operators, in one line, and ``counts`` for metrics.
    """

    gateway: _Id
    group: _Id
    leaving: bool = False
    text: Annotated[str, Meta(max_length=300)] = ""
    counts: BridgeStatistics | None = None


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Encode a heartbeat for :data:`~sbuslib.keys.own_keys.CONTROL`."""
    return HEARTBEAT + msgspec.json.encode(heartbeat)


def decode_heartbeat(payload: bytes) -> Heartbeat | None:
    """Decode a heartbeat; ``None`` for any other payload, and for a malformed one."""
    if not payload.startswith(HEARTBEAT):
        return None
    try:
        return msgspec.json.decode(payload[len(HEARTBEAT) : _HEARTBEAT_BYTES], type=Heartbeat)
    except MALFORMED:
        return None


class Membership:
    """The other gateways and bridges of a bus, as one of them knows them. Its caller publishes what methods return.

    :param me: id of this one. Among spares, the one whose id sorts first sends.
    :param group: the same for all spares of this one.
    :param name: its name for operators.
    :param own: its credential key on the bus.
    :param separator: separator of the bus.
    :param refused: counts heartbeats that are ignored, by reason.
    """

    def __init__(self, me: str, group: str, name: str, own: bytes, separator: bytes, refused: Counter[str]) -> None:
        self._me = me
        self._group = group
        self._name = name
        self._own = own
        self._separator = separator
        self._refused = refused
        self._echoes = EchoFilter()  # imports that others announced
        self._known: dict[str, tuple[Heartbeat, float]] = {}  # last heartbeat by id, own included, and when it came
        self._checked: float | None = None  # when is_due() was called last
        self.is_asked = False
        """Whether a client or a new gateway waits for a heartbeat of this one."""
        self.leads = True
        """Whether this one, and not one of its spares, sends."""

    @property
    def others(self) -> int:
        """Number of other gateways and bridges."""
        return len(self._known) - (self._me in self._known)

    @property
    def spares(self) -> int:
        """Number of others with the same configuration."""
        others = (heartbeat for me, (heartbeat, _) in self._known.items() if me != self._me)
        return sum(heartbeat.group == self._group for heartbeat in others)

    def _elect(self) -> None:
        self.leads = all(self._me <= me for me, (heartbeat, _) in self._known.items() if heartbeat.group == self._group)

    # -- messages that come to the bus --------------------------------------------------------------

    def announced(self, messages: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Put the announcement before messages that this one imports, pairs of key and payload, if there are others."""
        if not self.others:
            return messages
        return [(CONTROL, announcement_of(messages)), *messages]

    def has_brought(self, message: Message) -> bool:
        """Whether another one imported this message."""
        if not self._echoes:
            return False
        user = user_of(message.sender, self._own, self._separator)
        return self._echoes.take(message.sender, digest(message.key, message.payload), user)

    # -- heartbeats ---------------------------------------------------------------------------------

    def hear(self, message: Message, now: float) -> None:
        """Take a message under :data:`~sbuslib.keys.own_keys.CONTROL`: an announcement, a question or a heartbeat."""
        payload = message.payload
        if payload.startswith(_IMPORT):
            self._echoes.expect(message.sender, payload, now, user_of(message.sender, self._own, self._separator))
            return
        if payload == ASK:
            self.is_asked = True

        heartbeat = decode_heartbeat(payload)
        if heartbeat is None:
            self._refused[DropReason.BAD_HEARTBEAT] += payload.startswith(HEARTBEAT)
        elif heartbeat.gateway == self._me:  # the client has no echo: this is not our own
            self._refused[DropReason.FORGED_HEARTBEAT] += 1
        elif heartbeat.leaving:
            self._known.pop(heartbeat.gateway, None)
        elif heartbeat.gateway not in self._known and len(self._known) >= MEMBERS_MOST:
            self._refused[DropReason.TOO_MANY_GATEWAYS] += 1
        else:
            self.is_asked |= heartbeat.gateway not in self._known  # so that the new one knows this one
            self._known[heartbeat.gateway] = heartbeat, now
        self._elect()

    def heartbeat(self, counts: BridgeStatistics, now: float) -> tuple[bytes, bytes]:
        """Make the heartbeat of this one: key and payload."""
        text = f"{self._name}: {'connected' if counts.connected else 'away'}, {counts.exported:,} out, "
        text += f"{counts.imported:,} in, {counts.kept:,} kept, {sum(counts.lost.values()):,} lost"
        heartbeat = Heartbeat(self._me, self._group, text=text[:300], counts=counts)
        self._known[self._me] = heartbeat, now
        self.is_asked = False
        return CONTROL, encode_heartbeat(heartbeat)

    def farewell(self) -> tuple[bytes, bytes]:
        """Make the last heartbeat. Messages that this one received before are still exported."""
        return CONTROL, encode_heartbeat(Heartbeat(self._me, self._group, leaving=True))

    def is_due(self, now: float) -> bool:
        """Forget gateways that are gone; to be called every :data:`HEARTBEAT_SECONDS`. Returns whether to send one."""
        seconds = 3 * HEARTBEAT_SECONDS
        if self._checked is not None and now - self._checked > seconds * 2 / 3:
            # This process did not run meanwhile, and read no heartbeat: all count as received now.
            self._known = {gateway: (heartbeat, now) for gateway, (heartbeat, _) in self._known.items()}
        self._checked = now
        self._known = {
            gateway: (heartbeat, heard)
            for gateway, (heartbeat, heard) in self._known.items()
            if now - heard <= seconds or gateway == self._me
        }
        self._elect()
        self._echoes.expire(now)
        return self.others > 0 or self.is_asked
