"""How the gateways and bridges of one bus keep out of each other's way. Pure.

**Circles.** A message that was brought to the bus appears there, where every other gateway and bridge of the bus sees
it. None of them may take it out again. So before one publishes, it announces on the bus, under
:data:`.import_export.CONTROL`, the digests of what it is about to publish. That key never crosses. As the bus
keeps the order of one publisher, each of them hears the announcement before it sees the message. For each announcement,
it leaves out one message with that digest from that sender. One that is alone on its bus announces nothing. Its own
messages do not come back to it: its client asks for that.

**Spares.** Bridges that are set up alike are each other's spares. Each says on the bus who it is and how it is set up,
so they agree on the one that sends: the one whose id sorts first. Ids begin with the time, so it is the oldest.

**Two paths.** Two gateways, or bridges that are not set up alike, may join the bus to the same other one. Then each
message comes twice. Nobody here can tell that.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ..secrets import user_of
from ..wire.packets import Message
from .import_export import CONTROL, DropReason

_IMPORT: Final = b"import "
"""Before the digests of what is about to be published."""
ASK: Final = b"who is here"
"""What has the bridges say so."""
HERE: Final = b"here "
"""Before what one of them says of itself."""

_DIGEST_BYTES: Final = 16

BEAT_SECONDS: Final = 1.0
"""Seconds between two words of one that is not alone. After three missed, it is gone."""
SETTLE_SECONDS: Final = 0.25
"""How long the others have to hear of a new one, before it subscribes to what it takes out."""
_EXPECTED_SECONDS: Final = 10.0
"""How long a message that was announced is waited for."""

# Any client of the bus may publish under CONTROL. What a gateway remembers of that is a few megabytes at most.
MEMBERS_MOST = 64
"""Gateways of one bus that are remembered; further ones are not heard."""
USERS_MOST = 64
"""Users whose announcements are counted apart; further users are counted as one."""
COUNT_MOST = 2**53 - 1
"""The highest number in what a bridge says of itself."""
USER_MOST = 4_096
"""Messages that one user announced and that were not seen yet; then the oldest is forgotten. Announcements and messages
keep their order, so few are waited for at a time."""
_HERE_BYTES: Final = 65_536
"""Longest message in which a gateway says who it is."""

_Announced: TypeAlias = tuple[bytes | None, bytes]
"""The sender and the digest of a message that was announced."""
_FURTHER_USERS = b"further users"


def digest(key: bytes, payload: bytes) -> bytes:
    """A digest of a message, by which gateways recognize it."""
    value = blake2b(key, digest_size=_DIGEST_BYTES)
    value.update(b"\0")
    value.update(payload)
    return value.digest()


def announcement_of(messages: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What to publish under :data:`.import_export.CONTROL` before messages, given as pairs of key and payload."""
    return _IMPORT + b"".join([digest(key, payload) for key, payload in messages])


def _digests(said: bytes) -> list[bytes]:
    """The digests in an announcement."""
    starts = range(len(_IMPORT), len(said) - _DIGEST_BYTES + 1, _DIGEST_BYTES)
    return [said[start : start + _DIGEST_BYTES] for start in starts]


class Expected:
    """Messages that others have announced on the bus, until they are seen there, or time has passed.

    Each user has a table of its own, with a bound: one that announces what never comes pushes out its own alone.
    """

    def __init__(self) -> None:
        # By user: how often each message was announced, and until when it is waited for.
        self._users: dict[bytes, OrderedDict[_Announced, tuple[int, float]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._users.values()))

    def hear(self, sender: bytes | None, said: bytes, now: float, user: bytes = b"") -> None:
        """``sender``, a process of ``user``, is about to publish what has these digests."""
        if user not in self._users and len(self._users) >= USERS_MOST:
            user = _FURTHER_USERS
        waiting = self._users.setdefault(user, OrderedDict())
        for what in _digests(said):
            count, _ = waiting.pop((sender, what), (0, 0.0))
            waiting[sender, what] = count + 1, now + _EXPECTED_SECONDS
            if len(waiting) > USER_MOST:
                waiting.popitem(last=False)

    def take(self, sender: bytes | None, what: bytes, user: bytes = b"") -> bool:
        """Whether a message that is seen was announced. Each announcement answers for one message."""
        for table in (user, _FURTHER_USERS):
            waiting = self._users.get(table, OrderedDict())
            count, until = waiting.get((sender, what), (0, 0.0))
            if count > 1:
                waiting[sender, what] = count - 1, until
            elif count:
                del waiting[sender, what]
            if count:
                return True
        return False

    def expire(self, now: float) -> None:
        """Forget what should have been seen long ago."""
        for user, waiting in list(self._users.items()):
            while waiting and next(iter(waiting.values()))[1] <= now:
                waiting.popitem(last=False)
            if not waiting:
                del self._users[user]


_Id = Annotated[str, Meta(pattern="^[0-9A-Za-z._-]{1,64}\\Z")]
_Count = Annotated[int, Meta(ge=0, le=COUNT_MOST)]


class BridgeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a bridge or gateway carried, in messages, since it was made."""

    exported: _Count = 0
    """Those that the other side has: the broker confirmed them."""
    imported: _Count = 0
    """Those that were published on the bus."""
    kept: _Count = 0
    """Those that wait."""
    lost: dict[Literal["outage", "uncertain", "bus", "unread", "too_long"], _Count] = {}
    """``outage``: the queue was full, or the bridge was closed. ``uncertain``: not confirmed, and not sent again.
    ``bus``: the hub dropped them for this client. ``unread``: dropped by the client of the broker. ``too_long``: the
    broker or the bus cannot hold the key or the payload; what was refused says which."""
    connected: bool = True
    """Whether the other side is there."""
    spares: _Count = 0
    """Other bridges of the bus that are set up alike."""
    refused: dict[str, _Count] = {}
    """Messages that may not cross, or cannot, by reason."""


class Here(msgspec.Struct, frozen=True, tag="here"):
    """What a gateway or bridge says of itself on its bus.

    ``group`` is the same for bridges that are set up alike. One that leaves says so with ``leaving``. ``text`` is for
    operators, in one line, and ``counts`` for metrics.
    """

    gateway: _Id
    group: _Id
    leaving: bool = False
    text: Annotated[str, Meta(max_length=300)] = ""
    counts: BridgeStatistics | None = None


def encode_here(here: Here) -> bytes:
    """What a gateway publishes under :data:`.import_export.CONTROL`."""
    return HERE + msgspec.json.encode(here)


def decode_here(said: bytes) -> Here | None:
    """What a gateway says of itself; ``None`` if it says something else, or is none."""
    if not said.startswith(HERE):
        return None
    try:
        return msgspec.json.decode(said[len(HERE) : _HERE_BYTES], type=Here)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Fellows:
    """The other gateways and bridges of a bus, as one of them knows them. It says what these methods return.

    :param me: its id. Of those that are set up alike, the one whose id sorts first sends.
    :param group: the same for those that are set up alike.
    :param name: what operators know it by.
    :param own: its credential key on the bus.
    :param separator: that of the bus.
    :param refused: counts what is not heard, by reason.
    """

    def __init__(self, me: str, group: str, name: str, own: bytes, separator: bytes, refused: Counter[str]) -> None:
        self._me = me
        self._group = group
        self._name = name
        self._own = own
        self._separator = separator
        self._refused = refused
        self._expected = Expected()  # what others have said they would publish
        self._known: dict[str, tuple[Here, float]] = {}  # what each said last and when, this one included, by id
        self._beaten: float | None = None  # when beat() was called last
        self.is_asked = False
        """Whether somebody waits for a word of this one."""
        self.leads = True
        """Whether this one, and not one of its spares, sends."""

    @property
    def others(self) -> int:
        """How many there are besides this one."""
        return len(self._known) - (self._me in self._known)

    @property
    def spares(self) -> int:
        """How many of them are set up like this one."""
        return sum(here.group == self._group and here.gateway != self._me for here, _ in self._known.values())

    def _settle(self) -> None:
        self.leads = all(self._me <= me for me, (here, _) in self._known.items() if here.group == self._group)

    # -- messages that come to the bus --------------------------------------------------------------

    def announced(self, messages: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Messages that this one brings, pairs of key and payload; before them what the others have to know of them."""
        if not self.others:
            return messages
        return [(CONTROL, announcement_of(messages)), *messages]

    def has_brought(self, message: Message) -> bool:
        """Whether another one has brought this message to the bus."""
        if not self._expected:
            return False
        user = user_of(message.sender, self._own, self._separator)
        return self._expected.take(message.sender, digest(message.key, message.payload), user)

    # -- words of the others ------------------------------------------------------------------------

    def hear(self, message: Message, now: float) -> None:
        """Take a message under :data:`.import_export.CONTROL`."""
        said = message.payload
        if said.startswith(_IMPORT):
            self._expected.hear(message.sender, said, now, user_of(message.sender, self._own, self._separator))
            return
        if said == ASK:
            self.is_asked = True

        here = decode_here(said)
        if here is None:
            self._refused[DropReason.UNKNOWN_WORD] += said.startswith(HERE)
        elif here.gateway == self._me:  # our own do not come back
            self._refused[DropReason.FORGED_WORD] += 1
        elif here.leaving:
            self._known.pop(here.gateway, None)
        elif here.gateway not in self._known and len(self._known) >= MEMBERS_MOST:
            self._refused[DropReason.TOO_MANY_GATEWAYS] += 1
        else:
            self.is_asked |= here.gateway not in self._known  # so that the new one hears of this one
            self._known[here.gateway] = here, now
        self._settle()

    def say_here(self, counts: BridgeStatistics, now: float) -> tuple[bytes, bytes]:
        """The message that tells the others of this one, and operators what it did."""
        text = f"{self._name}: {'connected' if counts.connected else 'away'}, {counts.exported:,} out, "
        text += f"{counts.imported:,} in, {counts.kept:,} kept, {sum(counts.lost.values()):,} lost"
        here = Here(self._me, self._group, text=text[:300], counts=counts)
        self._known[self._me] = here, now
        self.is_asked = False
        return CONTROL, encode_here(here)

    def say_leaving(self) -> tuple[bytes, bytes]:
        """The message that tells the others that this one goes. It still takes out what it was sent before."""
        return CONTROL, encode_here(Here(self._me, self._group, leaving=True))

    def beat(self, now: float) -> bool:
        """Forget what is over; to be called every :data:`BEAT_SECONDS`. Returns whether to say that one is here."""
        seconds = 3 * BEAT_SECONDS
        if self._beaten is not None and now - self._beaten > seconds * 2 / 3:
            # This process did not run meanwhile, and heard none of them: all count as heard now.
            self._known = {gateway: (here, now) for gateway, (here, _) in self._known.items()}
        self._beaten = now
        self._known = {
            gateway: (here, heard)
            for gateway, (here, heard) in self._known.items()
            if now - heard <= seconds or gateway == self._me
        }
        self._settle()
        self._expected.expire(now)
        return self.others > 0 or self.is_asked
