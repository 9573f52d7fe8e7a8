"""The state of a hub as one record, for a process that takes the hub over.

Descriptors are not in it, and neither are credentials: the new process gets these from the kernel. The record of a hub
of another version can be read as long as :data:`VERSION` is the same: fields are only added, with a default, and a
field that is not known is ignored. So a process says which it knows, and a hub with clients that would lose something
by that is not handed over (:func:`lost_fields`). Each part of a hub makes its own record and takes it up again:
:class:`~.outbox.Outbox`,
:class:`~.connection.Connection`, :class:`~.clients.Clients`, :class:`Counts`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct, field

from ..errors import StateError
from ..malformed import MALFORMED
from ..wire.modes import Hard, Order, Soft

if TYPE_CHECKING:
    from mmap import mmap

VERSION: Final = 1
"""Goes up when a record means something else than before."""

USERS_REMEMBERED: Final = 1_024
"""Most users whose totals are kept after their clients have left. Then the oldest is forgotten."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Totals(Struct, array_like=True):
    """Message counts of one client, or of several together."""

    received: Count = 0
    """From them."""
    routed: Count = 0
    """To them, as the next two."""
    delivered: Count = 0
    lost: dict[str, Count] = {}
    """By cause."""

    def add(self, other: Totals) -> None:
        self.received += other.received
        self.routed += other.routed
        self.delivered += other.delivered
        for cause, count in other.lost.items():
            self.lost[cause] = self.lost.get(cause, 0) + count


class OutboxRecord(Struct, omit_defaults=True):
    """The queue of a client, oldest first, and its modes."""

    soft: Soft
    hard: Hard
    order: Order
    peak: Count
    packets: list[bytes]
    runs: list[tuple[Count | None, Count]]
    """Of which user, one after another, how many of the packets are; ``None``: answers."""
    batches: list[Count] = []
    """The places of the batches among the packets."""
    urgent: list[bytes] = []
    """Answers that go before all of them."""
    lost: dict[str, Count] = {}
    unreported: dict[str, tuple[Count, float]] = {}


class ClientRecord(Struct, omit_defaults=True):
    """One client that is connected."""

    number: Count
    patterns: dict[bytes, Count] = {}
    """And how many times it subscribed to each."""
    echo: bool = True
    senders: bool = False
    batches: bool = False
    notices: bool = False
    monitor: bool = False
    grown: bool = False
    """Whether its connection has the full send buffer."""
    guarded: bool = False
    """Whether descriptors may come over its connection."""
    published: Count = 0
    commands: Count = 0
    routed: Count = 0
    delivered: Count = 0
    backlog: list[bytes] = []
    """Packets that were received from it and not acted on yet."""
    violation: str = ""
    """Its violation after these, if it is to be disconnected."""
    outbox: OutboxRecord | None = None
    holds: dict[Count, float] = {}
    """The numbers of the clients that it holds back, and since when, by the clock that all processes share."""


class PresenceRecord(Struct, omit_defaults=True):
    """One presence, of a client or beyond a link."""

    number: Count
    key: bytes
    info: bytes = b""
    client: Count = 0
    """The number of the client; else 0, and what follows."""
    hub: tuple[int, bytes] | None = None
    """The instance of the hub that is beyond the link: its user, and its own id."""
    hub_id: bytes = b""
    """Of the process that numbered it."""
    name: Count = 0
    """Its number in its name."""
    home: bytes = b""
    """The hub in its name; empty: that of ``hub_id``, for which an older hub knew the number."""
    forbidden: bool = False
    """Whether the rules forbid it for now."""
    user: Count = 0
    """The user to whom it is charged."""
    trusted: bool = True
    ids: tuple[Count, Count, Count] = (0, 0, 0)
    """The credentials of the link: group, user, process."""
    rest: bytes = b""
    """The part that the hub beyond it adds to these."""


class Counts(Struct):
    """All that a hub has counted, but for what those did who are connected."""

    total: Count = 0
    """How many clients there were, ever."""
    peak: Count = 0
    """Most clients at a time."""
    published: Count = 0
    """Messages of the embedder."""
    ignored: Count = 0
    """Control messages and unsubscriptions that had no meaning."""
    departed: Totals = field(default_factory=Totals)
    """Counts of clients and inboxes that have left."""
    departed_by_user: dict[int, Totals] = {}
    """The same by user."""
    violations: dict[str, Count] = field(default_factory=Counter)
    """By reason."""

    def add(self, uid: int, totals: Totals) -> None:
        """Add what a client of this user, who has left, did."""
        self.departed.add(totals)
        if uid not in self.departed_by_user:
            if len(self.departed_by_user) >= USERS_REMEMBERED:
                del self.departed_by_user[next(iter(self.departed_by_user))]
            self.departed_by_user[uid] = Totals()
        self.departed_by_user[uid].add(totals)

    def restore(self, record: Counts) -> None:
        """Go on from what another hub has counted. The violations stay one object."""
        for name in Counts.__struct_fields__:
            if name != "violations":
                setattr(self, name, getattr(record, name))
        self.violations.update(record.violations)


class HubRecord(Counts, kw_only=True):
    """A hub with all of its clients, which stand in the order in which their descriptors come."""

    version: int
    hub_id: bytes
    separator: bytes
    owns_file: bool
    """Whether the hub removes the file of its socket when it stops."""
    clients: list[ClientRecord]
    last_presence: Count = 0
    """The last number that was given to one."""
    presences: list[PresenceRecord] = []
    presence_watches: list[tuple[Count, bytes]] = []
    """Number of the client, and pattern; as the next ones."""
    interest_watches: list[tuple[Count, bytes]] = []
    handed_on: dict[str, str] = {}
    """Values that the program that serves the hub hands on to the next."""


_decoder = msgspec.msgpack.Decoder(HubRecord)

_STRUCTS: Final = (HubRecord, ClientRecord, OutboxRecord, PresenceRecord)

_LIST_BYTES: Final = 16_384
"""Longest list of fields that is read: ten times as long as that of today."""

_UNSAID: Final = frozenset(
    {
        b"ClientRecord.monitor",
        b"HubRecord.interest_watches",
        b"HubRecord.last_presence",
        b"HubRecord.presence_watches",
        b"HubRecord.presences",
    }
)
"""Fields that a process may not know which does not say what it knows: it may be older than they."""


def known_fields() -> bytes:
    """The fields that this process can restore, for the hub that it takes over."""
    return b",".join(sorted(_fields()))


def _fields() -> set[bytes]:
    return {f"{struct.__name__}.{name}".encode() for struct in _STRUCTS for name in struct.__struct_fields__}


def lost_fields(record: HubRecord, said: bytes) -> list[str]:
    """The fields of a record that say something, and that a process would lose that said what it knows.

    :param said: the payload of its question: a version, and its :func:`known_fields`, if it names any.
    """
    named = said[:_LIST_BYTES].partition(b" ")[2]
    known = set(named.split(b",")) if named else _fields() - _UNSAID

    outboxes = [client.outbox for client in record.clients if client.outbox is not None]
    parts: list[Struct] = [record, *record.clients, *outboxes, *record.presences]
    return [
        about.name
        for struct in _STRUCTS
        for about in msgspec.structs.fields(struct)
        if f"{struct.__name__}.{about.name}".encode() not in known
        and any(_is_used(part, about) for part in parts if type(part) is struct)
    ]


def _is_used(part: Struct, about: msgspec.structs.FieldInfo) -> bool:
    is_made = about.default_factory is not msgspec.NODEFAULT
    return bool(getattr(part, about.name) != (about.default_factory() if is_made else about.default))


def encode_record(record: HubRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode_record(data: bytes | mmap) -> HubRecord:
    """Decode a record. Raises :exc:`~sbuslib.errors.StateError` for other data, and for another version."""
    try:
        record = _decoder.decode(data)
    except MALFORMED as error:
        raise StateError(f"the hub handed over a record that cannot be read: {error}") from None
    if record.version != VERSION:
        raise StateError(f"the hub handed over a record of version {record.version}, and this one reads {VERSION}")
    return record
