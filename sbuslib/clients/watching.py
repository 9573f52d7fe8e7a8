"""Presences and interest that one client watches: state without input or output.

A hub sends the present state when a client begins to watch, anew over each connection, and then changes. So an event is
a difference from the state that this client knew, and no event comes twice over a reconnection.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Generic, TypeVar

import msgspec

from ..errors import PacketError
from ..matcher import matches
from ..reasons import Reason
from ..wire.packets import encode_control
from ..wire.presence import (
    INTEREST_UNWATCH,
    INTEREST_WATCH,
    NOTICE_INTEREST,
    PRESENCE_ADD,
    PRESENCE_BEGIN,
    PRESENCE_COMPLETE,
    PRESENCE_OFF,
    PRESENCE_ON,
    PRESENCE_REMOVE,
    PRESENCE_UNWATCH,
    PRESENCE_WATCH,
    Added,
    Removed,
)
from ..wire.text import printable

T = TypeVar("T")

MOST_EVENTS: Final = 65_536
"""Events that wait for the application. Of more, the oldest are dropped, and counted as ``missed``."""


class Present(msgspec.Struct, frozen=True):
    """A client that is present under a key.

    ``sender`` is a credential key for which the kernel and the hubs on the way vouch: see
    ``client.hub.credentials_of``. ``info`` is that client's description of itself.
    """

    key: bytes
    info: bytes
    sender: bytes


class PresenceEvent(msgspec.Struct, frozen=True):
    """A client came, or went."""

    member: Present
    came: bool
    cause: str = ""
    """Reason for which it went: ``closed`` by itself; ``ended``, its process or its connection ended; ``kicked`` by its
    hub; ``refused`` by the rules; ``unreachable``, a link on the way was given up; ``unknown``, while its hub was
    away."""


class Watch(Generic[T]):
    """One watch of a client, and its events that nobody took yet.

    :param pattern: of keys.
    """

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.events: deque[T] = deque()
        """The oldest first."""
        self.missed = 0
        """Number of events that were dropped, since nobody took them."""
        self.is_known = False
        """Whether the hub has sent the present state."""
        self.closed = False  # nothing more comes

    def note(self, event: T) -> None:
        """Note a change."""
        if len(self.events) >= MOST_EVENTS:
            self.events.popleft()
            self.missed += 1
        self.events.append(event)

    def is_ready(self) -> bool:
        """Return whether there is an event to take, or nothing to wait for."""
        return self.closed or bool(self.events)

    @property
    def opening(self) -> bytes:
        """Return the packet that begins it."""
        raise NotImplementedError

    @property
    def ending(self) -> bytes:
        """Return the packet that ends it."""
        raise NotImplementedError


class InterestWatch(Watch["bool | None"]):
    """Whether a key, or any key of a pattern, has addressees."""

    state: bool | None = None
    """*None* where the hub does not know."""

    @property
    def opening(self) -> bytes:
        return encode_control(INTEREST_WATCH, self.pattern)

    @property
    def ending(self) -> bytes:
        return encode_control(INTEREST_UNWATCH, self.pattern)

    def take(self, state: bool | None) -> None:
        """Take the present state."""
        if self.is_known and state is not self.state:
            self.note(state)
        self.state, self.is_known = state, True


class PresenceWatch(Watch[PresenceEvent]):
    """Presences under the keys of a pattern."""

    def __init__(self, pattern: bytes) -> None:
        super().__init__(pattern)
        self.members: dict[tuple[bytes, bytes], Present] = {}
        """By the id of the hub's process, and the number that this gave."""
        self.is_whole = False
        """Whether the hub knows its whole tree, as it said last."""
        self.refused = ""
        """Reason for which the hub reports nothing; empty: it does."""
        self._stale: set[tuple[bytes, bytes]] = set()  # not listed again since the hub began to list all
        self._listed: dict[tuple[bytes, bytes], None] | None = None  # while it lists all: those that are new

    @property
    def opening(self) -> bytes:
        return encode_control(PRESENCE_WATCH, self.pattern)

    @property
    def ending(self) -> bytes:
        return encode_control(PRESENCE_UNWATCH, self.pattern)

    def await_list(self) -> None:
        """Expect a new list: those that it has, and other lists of this connection, have not come before it ends."""
        self._listed = self._listed or {}  # a list that was cut off told the application nothing

    def begin(self, hub_id: bytes) -> None:
        """Begin a new list of the hub. The numbers of an earlier process of it mean nothing any more."""
        for number in [number for number in self.members if number[0] != hub_id]:
            self.remove(number, "unknown")
        self._stale = set(self.members)
        self.await_list()

    def add(self, number: tuple[bytes, bytes], member: Present) -> None:
        """Add a presence."""
        self._stale.discard(number)
        is_new = number not in self.members
        self.members[number] = member
        if is_new and self._listed is not None:
            self._listed[number] = None  # first those go that are not listed: a client that reconnected is both
        elif is_new and self.is_known:
            self.note(PresenceEvent(member, came=True))

    def remove(self, number: tuple[bytes, bytes], cause: str) -> None:
        """Remove a presence."""
        self._stale.discard(number)
        member = self.members.pop(number, None)
        if self._listed is not None and number in self._listed:
            del self._listed[number]
        elif member is not None and self.is_known:
            self.note(PresenceEvent(member, came=False, cause=cause))

    def complete(self, scope: bytes) -> None:
        """End a list of the hub, of ``tree`` or of a ``partial`` one; or take that it is the one or the other from here
        on, or the reason for which there is none.
        """
        is_listed = scope in (b"tree", b"partial")
        if is_listed and self._listed is None and not self.is_known:
            return  # that of another watch of this pattern, which began before
        self.refused = "" if is_listed else printable(scope)
        for number in [number for number in self.members if number in self._stale or not is_listed]:
            self.remove(number, "unknown" if is_listed else "refused")
        listed, self._listed = self._listed or {}, None
        for number in listed if self.is_known else ():
            self.note(PresenceEvent(self.members[number], came=True))
        self.is_known, self.is_whole = True, scope == b"tree"


class Watching:
    """The watches of one client, and its own presences.

    One caller reads the hub's packets while others begin and end watches: so the lists are replaced as a whole.
    """

    def __init__(self) -> None:
        self.present: dict[bytes, bytes] = {}
        """Its descriptions of itself, by key."""
        self.interest: list[InterestWatch] = []  # in keys
        self.presences: list[PresenceWatch] = []  # in presences

    def restore(self) -> list[bytes]:
        """Return the packets that restore all of that over a new connection."""
        for presences in self.presences:
            presences.await_list()
        packets = [encode_present(b"", key, info) for key, info in self.present.items()]
        watches: list[Watch[Any]] = [*self.interest, *self.presences]
        return packets + list(dict.fromkeys(watch.opening for watch in watches))

    def forget(self) -> list[bytes]:
        """Know nothing of interest any more, below a hub that knows no watches. Returns the packets to send: none."""
        for watch in self.interest:
            watch.take(None)
        return []

    def begin(self, watch: Watch[T]) -> list[bytes]:
        """Begin a watch. Returns the packets to send."""
        if isinstance(watch, InterestWatch):
            self.interest = [*self.interest, watch]
        elif isinstance(watch, PresenceWatch):
            self.presences = [*self.presences, watch]
        return [watch.opening]

    def end(self, watch: Watch[T]) -> list[bytes]:
        """End a watch. Returns the packets to send: none while another watches the same."""
        watch.closed = True
        self.interest = [other for other in self.interest if other is not watch]
        self.presences = [other for other in self.presences if other is not watch]
        others: list[Watch[Any]] = [*self.interest, *self.presences]
        return [] if any(other.ending == watch.ending for other in others) else [watch.ending]

    def appear(self, key: bytes, info: bytes) -> None:
        """Be present under a key."""
        self.present[key] = info

    def leave(self, key: bytes) -> list[bytes]:
        """End a presence. Returns the packets to send."""
        return [encode_control(PRESENCE_OFF, key)] if self.present.pop(key, None) is not None else []

    # -- packets of the hub -------------------------------------------------------------------------

    def take(self, key: bytes, payload: bytes, hub_id: bytes, separator: bytes) -> bool:
        """Take a control packet of the hub. Returns whether it was about any of this.

        Raises :exc:`~sbuslib.errors.PacketError`.
        """
        match key:
            case k if k == NOTICE_INTEREST:
                state, nul, pattern = payload.partition(b"\0")
                if not nul:
                    raise PacketError(Reason.MALFORMED_NOTICE)
                for interest in self.interest:
                    if interest.pattern == pattern:
                        interest.take({b"yes": True, b"no": False}.get(state))

            # Presences: a number means something only together with the process that gave it.
            case k if k == PRESENCE_BEGIN:
                for watch in self._watches_of(payload):
                    watch.begin(hub_id)
            case k if k == PRESENCE_ADD:
                said = Added.decode(payload)
                member = Present(said.key, said.info, said.sender)
                for watch in self.presences:
                    if matches(watch.pattern, said.key, separator):
                        watch.add((hub_id, said.name), member)
            case k if k == PRESENCE_REMOVE:
                gone = Removed.decode(payload)
                for watch in self.presences:
                    watch.remove((hub_id, gone.name), gone.cause.decode())
            case k if k == PRESENCE_COMPLETE:
                scope, _, pattern = payload.partition(b"\0")
                for watch in self._watches_of(pattern):
                    watch.complete(scope)
            case _:
                return False
        return True

    def _watches_of(self, pattern: bytes) -> list[PresenceWatch]:
        return [watch for watch in self.presences if watch.pattern == pattern]


def encode_present(token: bytes, key: bytes, info: bytes) -> bytes:
    """Return the packet by which a client is present from now on."""
    return encode_control(PRESENCE_ON, b"%b\0%b\0%b" % (token, key, info))
