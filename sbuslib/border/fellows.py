"""How the gateways and bridges of one bus keep out of each other's way. Pure.

**Circles.** A message that was brought to the bus appears there, where every other gateway and bridge of the bus sees
it. None of them may take it out again. So before one publishes, it announces on the bus, under
:data:`sbuslib.border.keys.CONTROL`, the digests of what it is about to publish. That key never crosses. As the bus
keeps the order of one publisher, each of them hears the announcement before it sees the message. For each announcement,
it leaves out one message with that digest from that sender. One that is alone on its bus announces nothing. Its own
messages do not come back to it: its client asks for that.

**Spares.** Several that join the bus to the same place are each other's spares. Each says on the bus who it is, how it
is set up, and to what it is connected. So those that are set up alike agree on the one that sends: of those connected
to the other place, the one whose id sorts first. Ids begin with the time, so it is the oldest. What comes while it says
that it is connected again may be sent by two.

**Two paths.** Those that are not set up alike may join the bus to the same other one all the same, such as a gateway
beside a bridge. Then each message comes twice. Nobody can tell that beforehand, but it shows: what one announces,
another has just brought. So each compares, and says so, see :class:`Doubled`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ..wire.packets import Message
from .keys import CONTROL, Excluded, user_of

__all__ = [
    "ASK",
    "BEAT_SECONDS",
    "COUNT_MOST",
    "EXPECTED_MOST",
    "MEMBERS_MOST",
    "REMOTES_MOST",
    "SETTLE_SECONDS",
    "TWO_PATHS",
    "USERS_MOST",
    "BridgeCounts",
    "Doubled",
    "Expected",
    "Fellows",
    "Here",
    "announcement_of",
    "decode_here",
    "digest",
    "encode_here",
]

_IMPORT: Final = b"import "
"""Before the digests of what is about to be published."""
ASK: Final = b"who is here"
"""What has the bridges say so."""
HERE: Final = b"here "
"""Before what one of them says of itself."""

TWO_PATHS: Final = "most messages come twice: another bridge or gateway joins this bus to the same other one"
"""What is logged, once, when :class:`Doubled` says so."""

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
REMOTES_MOST = 256
"""Groups of gateways of other buses that one gateway may say it is connected to."""
COUNT_MOST = 2**53 - 1
"""The highest number in what a bridge says of itself."""
EXPECTED_MOST = 65_536
"""Messages that were announced and not seen yet; then the oldest of the user with most of them is forgotten."""
_COMPARED: Final = 16_384
"""Messages that a gateway brought, and messages that others announced, which are compared."""
_TWICE_SECONDS: Final = 2.0
"""Seconds between two messages that are taken for one that came over two paths."""
_ENOUGH: Final = 16
"""Messages before it is said that they come twice."""
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
    """What to publish under :data:`sbuslib.border.keys.CONTROL` before messages, given as pairs of key and payload."""
    return _IMPORT + b"".join([digest(key, payload) for key, payload in messages])


def _digests(said: bytes) -> list[bytes]:
    """The digests in an announcement."""
    starts = range(len(_IMPORT), len(said) - _DIGEST_BYTES + 1, _DIGEST_BYTES)
    return [said[start : start + _DIGEST_BYTES] for start in starts]


class Doubled:
    """Whether most of what a gateway brings is brought by another one of its bus as well, within two seconds.

    It is a guess: equal messages under the same key may come from two places. Each of two tables has the newest
    messages alone, some two megabytes.
    """

    def __init__(self) -> None:
        self._brought: OrderedDict[bytes, float] = OrderedDict()  # when, by digest
        self._announced: OrderedDict[bytes, float] = OrderedDict()  # by others, likewise
        self._total = self._twice = 0  # of what was brought since the last look
        self.is_so = False
        """Whether it was so at the last look."""

    def bring(self, said: bytes, now: float) -> None:
        """This gateway announces messages."""
        for one in _digests(said):
            self._total += 1
            self._note(one, now, self._brought, self._announced)

    def hear(self, said: bytes, now: float) -> None:
        """Another gateway has announced messages."""
        for one in _digests(said):
            self._note(one, now, self._announced, self._brought)

    def _note(self, one: bytes, now: float, here: OrderedDict[bytes, float], there: OrderedDict[bytes, float]) -> None:
        before = there.pop(one, None)
        if before is not None and now - before <= _TWICE_SECONDS:
            self._twice += 1
            return
        here[one] = now
        here.move_to_end(one)
        if len(here) > _COMPARED:
            here.popitem(last=False)

    def look(self) -> bool:
        """Look again; whether it has become so."""
        if self._total < _ENOUGH:
            return False
        before, self.is_so = self.is_so, 2 * self._twice >= self._total
        self._total = self._twice = 0
        return self.is_so and not before


class Expected:
    """Messages that gateways have announced on the bus, until they are seen there, or time has passed.

    No more than ``most`` are remembered. When there are more, the oldest of the user who announced most of them is
    forgotten: a user that announces what never comes pushes out its own announcements, and not those of a gateway.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._waiting: OrderedDict[_Announced, tuple[int, float, bytes]] = OrderedDict()  # count, deadline, user
        self._of_users: dict[bytes, OrderedDict[_Announced, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def announce(self, sender: bytes | None, what: bytes, now: float, user: bytes = b"") -> None:
        """``sender``, a process of ``user``, is about to publish what has this digest."""
        announced = sender, what
        count = self._waiting[announced][0] if announced in self._waiting else 0
        self._forget(announced)
        if user not in self._of_users and len(self._of_users) >= USERS_MOST:
            user = _FURTHER_USERS
        self._waiting[announced] = count + 1, now + self._seconds, user
        self._of_users.setdefault(user, OrderedDict())[announced] = None
        if len(self._waiting) > self._most:
            busiest = max(self._of_users, key=lambda user: len(self._of_users[user]))
            self._forget(next(iter(self._of_users[busiest])))

    def hear(self, sender: bytes | None, said: bytes, now: float, user: bytes = b"") -> None:
        """Take an announcement."""
        for what in _digests(said):
            self.announce(sender, what, now, user)

    def take(self, sender: bytes | None, what: bytes) -> bool:
        """Whether a message that is seen was announced. Each announcement answers for one message."""
        entry = self._waiting.get((sender, what))
        if entry is None:
            return False
        count, deadline, user = entry
        if count > 1:
            self._waiting[sender, what] = count - 1, deadline, user
        else:
            self._forget((sender, what))
        return True

    def expire(self, now: float) -> None:
        """Forget what should have been seen long ago."""
        while self._waiting:
            announced, (_, deadline, _) = next(iter(self._waiting.items()))
            if deadline > now:
                return
            self._forget(announced)

    def _forget(self, announced: _Announced) -> None:
        entry = self._waiting.pop(announced, None)
        if entry is not None:
            of_user = self._of_users[entry[2]]
            del of_user[announced]
            if not of_user:
                del self._of_users[entry[2]]


_Id = Annotated[str, Meta(pattern="^[0-9A-Za-z._-]{1,64}\\Z")]
_Remote = Annotated[str, Meta(pattern="^[0-9A-Za-z._-]{1,130}\\Z")]


_Count = Annotated[int, Meta(ge=0, le=COUNT_MOST)]


class BridgeCounts(msgspec.Struct, frozen=True):
    """Messages that a bridge carried, keeps, and lost by cause: see ``BridgeStatistics``; whether it is connected."""

    exported: _Count = 0
    imported: _Count = 0
    kept: _Count = 0
    lost: dict[Literal["outage", "uncertain", "bus", "unread", "too_long"], _Count] = {}
    connected: bool = True


class Here(msgspec.Struct, frozen=True, tag="here"):
    """What a gateway or bridge says of itself on its bus: its id, how it is set up, and to what it is connected.

    ``group`` is the same for those that are set up alike. Each of ``remotes`` is another bus and the group of the
    gateways there, or a server. One that leaves says so with ``leaving``. ``text`` is for operators, in one line, and
    ``counts`` for metrics. ``doubled`` says that another one brings the same.
    """

    gateway: _Id
    group: _Id
    remotes: Annotated[tuple[_Remote, ...], Meta(max_length=REMOTES_MOST)] = ()
    leaving: bool = False
    text: Annotated[str, Meta(max_length=300)] = ""
    doubled: bool = False
    counts: BridgeCounts | None = None


def encode_here(here: Here) -> bytes:
    """What a gateway publishes under :data:`sbuslib.border.keys.CONTROL`."""
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

    :param me: its id. Of those that are set up alike and connected, the one whose id sorts first sends.
    :param group: the same for those that are set up alike.
    :param separator: that of the bus.
    :param refused: counts what is not heard, by reason.
    :param warn: logs what goes wrong.
    """

    def __init__(
        self, me: str, group: str, separator: bytes, refused: Counter[str], warn: Callable[[str], object]
    ) -> None:
        self._me = me
        self._group = group
        self._separator = separator
        self._refused = refused
        self._warn = warn
        self._expected = Expected(EXPECTED_MOST, _EXPECTED_SECONDS)  # what others have said they would publish
        self._doubled = Doubled()  # whether others bring the same
        self._known: dict[str, tuple[Here, float]] = {}  # what each said last and when, this one included, by id
        self._beaten: float | None = None  # when beat() was called last
        self.is_asked = False
        """Whether somebody waits for a word of this one."""

    @property
    def others(self) -> int:
        """How many there are besides this one."""
        return len(self._known) - (self._me in self._known)

    @property
    def spares(self) -> int:
        """How many of them are set up like this one."""
        return sum(here.group == self._group and here.gateway != self._me for here, _ in self._known.values())

    def leads_to(self, remote: str) -> bool:
        """Whether this one, and not one of its spares, sends to ``remote``."""
        connected = [
            gateway
            for gateway, (here, _) in self._known.items()
            if here.group == self._group and remote in here.remotes
        ]
        return not connected or min(connected) == self._me

    # -- messages that come to the bus --------------------------------------------------------------

    def announcement(self, messages: Sequence[tuple[bytes, bytes]], now: float) -> list[tuple[bytes, bytes]]:
        """What to publish before messages that this one brings, given as pairs of key and payload."""
        if not self.others:
            return []
        said = announcement_of(messages)
        self._doubled.bring(said, now)
        return [(CONTROL, said)]

    def has_brought(self, message: Message) -> bool:
        """Whether another one has brought this message to the bus."""
        return bool(self._expected) and self._expected.take(message.sender, digest(message.key, message.payload))

    # -- words of the others ------------------------------------------------------------------------

    def hear(self, message: Message, own: bytes, now: float) -> bool:
        """Take a message under :data:`~sbuslib.border.keys.CONTROL`. Returns whether another one may lead now.

        :param own: the credential key of this one.
        """
        said = message.payload
        if said.startswith(_IMPORT):
            self._expected.hear(message.sender, said, now, user_of(message.sender, own, self._separator))
            self._doubled.hear(said, now)
            return False
        if said == ASK:
            self.is_asked = True

        here = decode_here(said)
        if here is None:
            self._refused[Excluded.UNKNOWN_WORD] += said.startswith(HERE)
        elif here.gateway == self._me:  # our own do not come back
            self._refused[Excluded.FORGED_WORD] += 1
        elif here.leaving:
            return self._known.pop(here.gateway, None) is not None
        elif here.gateway not in self._known and len(self._known) >= MEMBERS_MOST:
            self._refused[Excluded.TOO_MANY_GATEWAYS] += 1
        else:
            self.is_asked |= here.gateway not in self._known  # so that the new one hears of this one
            self._known[here.gateway] = here, now
            return True
        return False

    def say_here(self, remotes: Iterable[str], text: str, counts: BridgeCounts, now: float) -> tuple[bytes, bytes]:
        """The message that tells the others of this one, and to what it is connected now."""
        places = tuple(sorted(set(remotes))[:REMOTES_MOST])
        here = Here(self._me, self._group, places, text=text[:300], counts=counts, doubled=self._doubled.is_so)
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
        self._expected.expire(now)
        if self._doubled.look():
            self._warn(TWO_PATHS)
        return self.others > 0 or self.is_asked
