"""How the gateways and bridges of one bus keep out of each other's way. Pure.

**Circles.** A message that was brought to the bus appears there, where every gateway and bridge of the bus sees it, the
one that brought it included. None of them may take it out again. So before one publishes, it announces on the bus,
under :data:`sbuslib.border.keys.CONTROL`, the digests of what it is about to publish. That key never crosses. As the
bus keeps the order of one publisher, each of them hears the announcement before it sees the message. For each
announcement, it leaves out one message with that digest from that sender. One that is alone on its bus announces
nothing.

**Spares.** Several that join the bus to the same place are each other's spares. Each says on the bus who it is, how it
is set up, and to what it is connected. All of them hear that in the order of the bus. So for each message, those that
are set up alike agree on the one that sends it: of those connected to the other place, the one whose id sorts first.

**Two paths.** Those that are not set up alike may join the bus to the same other one all the same, such as a gateway
beside a bridge. Then each message comes twice. Nobody can tell that beforehand, but it shows: what one announces,
another has just brought. So each compares, and says so, see :class:`Doubled`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

__all__ = [
    "ASK",
    "COUNT_MOST",
    "HERE",
    "MEMBERS_MOST",
    "REMOTES_MOST",
    "TWO_PATHS",
    "USERS_MOST",
    "Counts",
    "Doubled",
    "Expected",
    "Here",
    "Members",
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

# Any client of the bus may publish under CONTROL. What a gateway remembers of that is a few megabytes at most.
MEMBERS_MOST = 64
"""Gateways of one bus that are remembered; further ones are not heard."""
USERS_MOST = 64
"""Users whose announcements are counted apart; further users are counted as one."""
REMOTES_MOST = 256
"""Groups of gateways of other buses that one gateway may say it is connected to."""
COUNT_MOST = 2**53 - 1
"""The highest number in what a bridge says of itself."""
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
        if said.startswith(_IMPORT):
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

    def hear(self, sender: bytes | None, said: bytes, now: float, user: bytes = b"") -> bool:
        """Take what was said under :data:`sbuslib.border.keys.CONTROL`. Returns whether it was an announcement."""
        if not said.startswith(_IMPORT):
            return False
        for what in _digests(said):
            self.announce(sender, what, now, user)
        return True

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


class Counts(msgspec.Struct, frozen=True):
    """Messages that a bridge carried, keeps, and lost by cause: see ``BridgeStatistics``."""

    exported: _Count = 0
    imported: _Count = 0
    kept: _Count = 0
    lost: dict[Literal["outage", "uncertain", "bus", "unread", "too_long"], _Count] = {}


class Here(msgspec.Struct, frozen=True, tag="here"):
    """What a gateway says of itself on its bus: its id, how it is set up, and which other buses it is connected to.

    ``group`` is the same for gateways that are set up alike. Each of ``remotes`` is another bus and the group of the
    gateways there. A gateway that leaves says so with ``leaving``. ``word`` is random and new each time: by it a
    gateway recognizes its own message, which it hears before any client can have copied it. ``told`` is what operators
    are told of it, in one line, and ``counts`` what metrics are. ``doubled`` says that another one brings the same.
    """

    gateway: _Id
    group: _Id
    remotes: Annotated[tuple[_Remote, ...], Meta(max_length=REMOTES_MOST)] = ()
    leaving: bool = False
    word: Annotated[str, Meta(max_length=64)] = ""
    told: Annotated[str, Meta(max_length=300)] = ""
    doubled: bool = False
    counts: Counts | None = None


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


class Members:
    """The gateways of one bus, this one included, with what each said on the bus."""

    def __init__(self, me: str, group: str, seconds: float) -> None:
        self._me = me
        self._group = group
        self._seconds = seconds
        self._members: dict[str, tuple[Here, float]] = {}

    @property
    def others(self) -> int:
        """How many gateways there are besides this one."""
        return len(self._members) - (self._me in self._members)

    @property
    def spares(self) -> int:
        """How many of them are set up like this one."""
        return sum(here.group == self._group for here, _ in self._members.values()) - (self._me in self._members)

    def is_new(self, gateway: str) -> bool:
        """Whether this is another gateway that was not known."""
        return gateway not in self._members and gateway != self._me

    def has_room_for(self, here: Here) -> bool:
        """Whether what a gateway says can be noted: always for a known gateway, else while there are few."""
        return here.leaving or not self.is_new(here.gateway) or len(self._members) < MEMBERS_MOST

    def hear(self, here: Here, now: float) -> bool:
        """Note what a gateway says. Returns whether it is new."""
        if here.leaving:
            return self._members.pop(here.gateway, None) is not None
        known = self._members.get(here.gateway)
        self._members[here.gateway] = here, now
        return known is None or (known[0].group, known[0].remotes) != (here.group, here.remotes)

    def expire(self, before: float, now: float) -> bool:
        """Forget gateways that have said nothing for a while. Returns whether there were any.

        :param before: when this was called last. If that is too long ago, this process did not run meanwhile and heard
            none of them: then all count as heard now.
        """
        if now - before > self._seconds * 2 / 3:
            self._members = {gateway: (here, now) for gateway, (here, _) in self._members.items()}
        gone = [
            gateway
            for gateway, (_, heard) in self._members.items()
            if now - heard > self._seconds and gateway != self._me
        ]
        for gateway in gone:
            del self._members[gateway]
        return bool(gone)

    def is_ours(self, remote: str) -> bool:
        """Whether this gateway, and not one of its spares, sends to ``remote``."""
        connected = [
            gateway
            for gateway, (here, _) in self._members.items()
            if here.group == self._group and remote in here.remotes
        ]
        return not connected or min(connected) == self._me
