"""State of presences on a hub: entries, the origins that hold them, and cursors of those who are sent changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Any, Final

from ..core.quotas import Account
from ..matcher import Pattern
from ..wire.presence import REFUSED, Added, Removed
from .remote_senders import RemoteSender

LOOKED_AT: Final = 4
"""Presences that are looked at for each packet that may be sent, before the next step."""

UNKNOWN: Final = b"unknown"
"""Cause for a presence that another hub no longer announces: it went while the link was away."""


class PresenceEntry:
    """One presence."""

    __slots__ = ("info", "key", "number", "origin", "pattern", "who")

    def __init__(self, number: int, origin: PresenceOrigin, key: Pattern, info: bytes, who: RemoteSender) -> None:
        self.number = number
        self.origin = origin  # over which it is known
        self.key = key.raw
        self.pattern = key  # as which it is charged
        self.info = info
        self.who = who  # whose it is

    def encode(self) -> bytes:
        """Encode the packet that announces it."""
        return Added(self.number, self.who.key, self.key, self.info).encode()


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
        self.entries: dict[int | bytes, PresenceEntry] = {}  # by the number that the other hub gave; of a client by key
        self.hub_id = b""  # of the process that gave the numbers
        self.stale: set[int | bytes] = set()  # not yet announced again over the present link
        self.is_complete = True  # whether all is known
        self.has_refused = False  # whether there was no room for some
        self.timer: Any = None  # runs from the end of a link until it is given up


class PresenceCursor:
    """A link or client that is sent presences: the numbers that it knows, and those that it has still to be sent.

    :param wants: whether it may know of an entry, and wants to.
    """

    def __init__(self, table: dict[int, PresenceEntry], wants: Callable[[PresenceEntry], bool]) -> None:
        self._table = table
        self._wants = wants
        self._sent: set[int] = set()  # the numbers that the other end knows
        self.is_level = True
        """Whether the other end knows all that it may and wants to."""
        self._dirty: dict[int, bytes] = {}  # to be looked at, in order; and why it has gone, if it has
        self._scan: Iterator[int] = iter(())  # numbers to be looked at first
        self._endings: dict[bytes, Callable[[], bytes]] = {}  # packets to send when it is up to date, by name

    def look_at(self, number: int, cause: bytes) -> None:
        """Somebody came or changed, or has gone for this cause."""
        if cause and number not in self._sent:
            self._dirty.pop(number, None)  # else a list of all that came and went grows for one that does not read
            return
        self.is_level = False
        self._dirty[number] = cause

    def look_at_all(self, name: bytes = b"", ending: Callable[[], bytes] | None = None) -> None:
        """Look at all entries; then send this packet, once for each name."""
        self.is_level = False
        self._scan = iter(list(self._table))
        self._dirty |= dict.fromkeys(self._sent - self._table.keys() - self._dirty.keys(), UNKNOWN)
        if ending is not None:
            self._endings[name] = ending

    def drop_ending(self, name: bytes) -> None:
        """Do not send the packet for this name."""
        self._endings.pop(name, None)

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
                self._sent.add(number)
                packets.append(entry.encode())
            elif number in self._sent:
                self._sent.discard(number)
                packets.append(Removed(number, cause or REFUSED).encode())
        if self._dirty or len(scanned) == looks:
            return packets, True

        # 3. That this is all.
        names = list(islice(self._endings, most - len(packets)))
        packets += [self._endings.pop(name)() for name in names]
        self.is_level = not self._endings
        return packets, not self.is_level
