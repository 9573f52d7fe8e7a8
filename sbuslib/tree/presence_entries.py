"""State of presences on a hub: entries, the origins that hold them, and cursors of those who are sent changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from ..core.quotas import Account
from ..matcher import Pattern
from ..wire.presence import REFUSED, Added, Removed
from .remote_senders import RemoteSender

LOOKED_AT: Final = 4
"""Presences that are looked at for each packet that may be sent, before the next step."""

ROOMLESS_NAMES: Final = 1_024
"""Names beyond a link for which there was no room, and which are known one by one."""

UNKNOWN: Final = b"unknown"
"""Cause for a presence that another hub no longer announces: it went while the link was away."""


class PresenceEntry:
    """One presence, as one origin holds it."""

    __slots__ = ("info", "key", "name", "number", "origin", "pattern", "reserve", "who")

    def __init__(self, origin: PresenceOrigin, name: bytes, key: Pattern, info: bytes, who: RemoteSender) -> None:
        self.number = 0  # here; of several that one name stands for it is the same, and 0 is none
        self.origin = origin
        self.name = name  # in the whole tree; empty: that of a client here, which has this hub's number
        self.key = key.raw
        self.pattern = key  # as which it is charged
        self.info = info
        self.who = who  # whose it is
        #: The same presence, known over another link as well: its hub has moved, or a link is held that has ended.
        self.reserve: PresenceEntry | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is known from before the link over which it came has ended."""
        return not self.origin.is_linked or self.name in self.origin.stale


class PresenceOrigin:
    """Where presences are held: by one client, or beyond a link to another hub.

    :param holder: the client, or what stands for that hub over several links.
    :param account: is charged for them.
    :param trusted: whether others wait for it, and believe that it is known whole.
    """

    def __init__(self, holder: Hashable, account: Account, *, trusted: bool = True) -> None:
        self.holder = holder
        self.account = account
        self.trusted = trusted
        self.entries: dict[bytes, PresenceEntry] = {}  # by name; of a client by key
        self.forbidden: dict[bytes, PresenceEntry] = {}  # the same, those that the rules forbid for now
        self.hub_id = b""  # of the process at the other end of the link, or of the last link
        self.place: Hashable = None  # where that process is
        self.has_moved = False  # whether the last link led elsewhere
        self.stranger: int | None = None  # its user, who is not trusted to name presences
        self.is_linked = False  # whether there is a link
        self.has_begun = False  # whether the other hub has begun its list over it
        self.stale: set[bytes] = set()  # not yet announced again over the present link
        self.is_complete = True  # whether the other hub says that this is all
        self.roomless: set[bytes] = set()  # for which there was no room; empty stands for more than are counted
        self.timer: Any = None  # runs from the end of a link until what came over it, and did not come again, is gone

    @property
    def is_whole(self) -> bool:
        """Whether all is known."""
        return self.is_complete and not self.stale and not self.roomless

    def name_of(self, said: bytes) -> bytes:
        """The name of what the other hub calls so. A hub that is not trusted has names of its own user only, which no
        other user can make.
        """
        number, _, home = said.partition(b"@")
        return b"%b@%b" % (number, self._home_of(home or self.hub_id))

    def _home_of(self, hub_id: bytes) -> bytes:
        if self.stranger is None:
            return hub_id
        return blake2b(b"%d %b" % (self.stranger, hub_id), digest_size=16).hexdigest().encode()

    def begin_list(self, hub_id: bytes) -> list[bytes]:
        """Begin the list of a process of the other hub. Returns the names of presences that the one before had there:
        they have gone with it.
        """
        if self.has_moved or hub_id == self.hub_id:
            gone = []  # that process may live on
        else:
            end = b"@" + self._home_of(self.hub_id)
            gone = [name for name in (*self.entries, *self.forbidden) if name.endswith(end)]
        self.hub_id = hub_id
        self.stale.difference_update(gone)
        return gone

    def note_roomless(self, name: bytes) -> None:
        """There was no room for one."""
        self.roomless.add(name if len(self.roomless) < ROOMLESS_NAMES else b"")


class PresenceCursor:
    """A link or client that is sent presences: those that it knows, and those that it has still to be sent.

    :param wants: whether it may know of an entry, and wants to.
    :param ending: the packet to send when it is up to date, for each name.
    :param home: the id of this hub's process, where the other end knows presences by name; empty: by number.
    """

    def __init__(
        self,
        table: dict[int, PresenceEntry],
        wants: Callable[[PresenceEntry], bool],
        ending: Callable[[bytes], bytes],
        home: bytes,
    ) -> None:
        self._table = table
        self._wants = wants
        self._ending = ending
        self._home = home
        self._sent: dict[int, bytes] = {}  # what the other end knows: by number, the name that it was sent
        self.is_level = True
        """Whether the other end knows all that it may and wants to."""
        self._dirty: dict[int, bytes] = {}  # to be looked at, in order; and why it has gone, if it has
        self._scan: Iterator[int] = iter(())  # numbers to be looked at first
        self._endings: dict[bytes, None] = {}  # names of packets to send when it is up to date

    def look_at(self, number: int, cause: bytes) -> None:
        """Somebody came or changed, or has gone for this cause."""
        if cause and number not in self._sent:
            self._dirty.pop(number, None)  # else a list of all that came and went grows for one that does not read
            return
        self.is_level = False
        self._dirty[number] = cause

    def look_at_all(self) -> None:
        """Look at all entries."""
        self.is_level = False
        self._scan = iter(list(self._table))
        self._dirty |= dict.fromkeys(self._sent.keys() - self._table.keys() - self._dirty.keys(), UNKNOWN)

    def end_with(self, *names: bytes) -> None:
        """Send these packets when the other end is up to date: each once, as it is then."""
        self.is_level = False
        self._endings |= dict.fromkeys(names)

    def drop_ending(self, name: bytes) -> None:
        """Do not send the packet of this name."""
        self._endings.pop(name, None)

    def _name(self, entry: PresenceEntry) -> bytes:
        if not self._home:
            return b"%d" % entry.number
        return entry.name or b"%d@%b" % (entry.number, self._home)

    def take(self, most: int) -> tuple[list[bytes], bool]:
        """Up to so many packets, and whether there is more: only so many entries are looked at."""
        packets: list[bytes] = []

        # 1. Some of those that were there when all had to be looked at.
        looks = LOOKED_AT * most
        scanned = list(islice(self._scan, looks))
        for number in scanned:
            self._dirty.setdefault(number, b"")

        # 2. What is true now, of as many as there is room for.
        for number in list(islice(self._dirty, looks)):
            if len(packets) >= most:
                break
            cause = self._dirty.pop(number)
            entry = self._table.get(number)
            if entry is not None and self._wants(entry):
                name = self._sent[number] = self._name(entry)
                packets.append(Added(name, entry.who.key, entry.key, entry.info).encode())
            elif number in self._sent:
                packets.append(Removed(self._sent.pop(number), cause or REFUSED).encode())
        if self._dirty or len(scanned) == looks:
            return packets, True

        # 3. That this is all.
        names = list(islice(self._endings, most - len(packets)))
        for name in names:
            del self._endings[name]
        packets += map(self._ending, names)
        self.is_level = not self._endings
        return packets, not self.is_level
