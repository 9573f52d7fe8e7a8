"""Presences: keys that clients hold for as long as they are connected, known in the whole tree.

Each hub has a table of all presences: of its own clients, and of those beyond each link, its *origins*. It gives each a
number that it never uses again, and announces to every link those that did not come over it, and to every client those
that it watches. Changes are sent to links in turns of the user who caused them, and to clients in turns of their own
user, as fast as they read; a presence that came and went meanwhile is not announced at all.

**The owner of a presence** is known to the hub of its client from the kernel, and each link on the way names it as it
names a sender (:mod:`.remote_senders`). A presence counts as one pattern of its user, with the bytes of its
information; one beyond a link as one of the user of the link.

**When a link ends,** the presences beyond it are uncertain for a while. They stay in the table for :data:`GIVEN_UP`
seconds, and lists are marked ``partial``. If the same process of a hub joins again, it announces its presences, and
only differences are reported. Else all of them have gone, as ``unreachable``.

Source: the liveliness tokens of Zenoh, which a session declares, and which are gone when it is; and
``NameOwnerChanged`` of D-Bus.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Final

from msgspec.structs import astuple

from ..core.client_feed import ClientFeed
from ..core.context import Context
from ..core.outbound import Outbound
from ..core.protocols import Receiver
from ..core.quotas import Account
from ..core.records import PresenceRecord
from ..errors import PacketError
from ..matcher import Pattern, Subscriptions
from ..reasons import Reason
from ..secrets import Credentials
from ..wire.packets import encode_control
from ..wire.presence import (
    CLOSED,
    ENDED,
    INFO_BYTES,
    KICKED,
    PRESENCE_BEGIN,
    PRESENCE_COMPLETE,
    REFUSED,
    UNREACHABLE,
    Added,
    Removed,
)
from .presence_entries import UNKNOWN, PresenceCursor, PresenceEntry, PresenceOrigin
from .remote_senders import RemoteSender

GIVEN_UP: Final = 5.0
"""Seconds after which a link that has ended is given up: a hub that was only replaced or disturbed is back by then."""

GONE_A_STEP: Final = 128
"""Presences of somebody who left that go in one step."""

_ID_BYTES: Final = 64
"""Bytes of the id of a hub that are looked at."""

PARENT: Final = "parent"
"""Stands for the parent among those beyond links."""


class _PresenceWatcher(ClientFeed):
    """A client that watches, which is sent what has changed."""

    def __init__(self, context: Context, client: Outbound, table: dict[int, PresenceEntry]) -> None:
        super().__init__(context, client)
        self.patterns: dict[bytes, Pattern] = {}  # the patterns that it watches
        self.index: Subscriptions[None] = Subscriptions(context.router.namespace.separator)  # the same, by key
        index = self.index
        # What it was sent, and is to be sent.
        self.cursor = PresenceCursor(table, lambda entry: bool(index.subscribers(entry.key)))

    def take(self, most: int) -> tuple[list[bytes], bool]:
        return self.cursor.take(most)


class Presences:
    """The presences that one hub knows.

    :param mark: has changes sent to links, in turns of the user who caused them.
    :param is_whole: whether the tree is known but for presences.
    """

    def __init__(
        self,
        context: Context,
        hub_id: Callable[[], bytes],
        mark: Callable[[Iterable[Hashable], int], None],
        is_whole: Callable[[], bool],
    ) -> None:
        self._context = context
        self._hub_id = hub_id
        self._mark = mark
        self._is_whole = is_whole
        self._last = 0  # number
        self._entries: dict[int, PresenceEntry] = {}  # by number
        self._origins: dict[Hashable, PresenceOrigin] = {}  # by client, or by what stands for another hub
        self._links: dict[Receiver, tuple[PresenceOrigin, PresenceCursor]] = {}  # by what routes hold
        self._watchers: dict[Outbound, _PresenceWatcher] = {}  # by client
        #: Those who watch, by pattern.
        self._watching: Subscriptions[_PresenceWatcher] = Subscriptions(context.router.namespace.separator)

    # -- what clients say ---------------------------------------------------------------------------

    def add(self, client: Outbound, key: bytes, info: bytes) -> Reason | None:
        """A client is present under a key from now on, or says something else of itself. Returns why it may not be."""
        context = self._context
        if len(info) > INFO_BYTES or b"\0" in key or context.router.namespace.uses_reserved(key):
            return Reason.MALFORMED_PRESENCE
        try:
            pattern = context.router.cut(key)
        except PacketError as error:
            return error.reason
        if not context.authorization.allows(client.account, client.credentials, "publish", key):
            return Reason.PUBLISHING_REFUSED

        origin = self._origins.get(client)
        if origin is None:
            origin = self._origins[client] = PresenceOrigin(client, client.account)
        who = RemoteSender(client.credentials, b"", context.router.namespace)
        return None if self._put(origin, key, pattern, info, who) else Reason.TOO_MANY_PATTERNS

    def remove(self, client: Outbound, key: bytes) -> bool:
        """A client is no longer present under a key. Returns whether it was."""
        origin = self._origins.get(client)
        return origin is not None and self._take_out(origin, key, CLOSED)

    def watch(self, client: Outbound, raw: bytes) -> None:
        """Tell a client who is present under keys of a pattern, and from then on who comes and goes; or why not.

        Where it may not, its connection stays: it would come back, and ask for the same again.
        """
        try:
            watcher = self._watcher(client, raw)
        except PacketError as error:
            shown = raw[: self._context.limits.pattern_bytes]  # the answer is no longer than a pattern may be
            client.answer(encode_control(PRESENCE_COMPLETE, error.reason.encode() + b"\0" + shown))
            return
        client.answer(encode_control(PRESENCE_BEGIN, raw))
        watcher.cursor.look_at_all(raw, lambda: encode_control(PRESENCE_COMPLETE, self._scope + b"\0" + raw))
        watcher.wake()

    def _watcher(self, client: Outbound, raw: bytes) -> _PresenceWatcher:
        """Return the watcher of a client, for one more pattern. Raises :exc:`~sbuslib.errors.PacketError` where it may
        not.
        """
        context, watcher = self._context, self._watchers.get(client)
        pattern = context.router.cut(raw)
        allowed = context.authorization.allows(client.account, client.credentials, "subscribe", raw)
        if not allowed or context.router.namespace.uses_reserved(raw):
            raise PacketError(Reason.SUBSCRIPTION_REFUSED)
        if watcher is not None and raw in watcher.patterns:
            return watcher
        if not context.quotas.take_pattern(client.account, pattern):
            raise PacketError(Reason.TOO_MANY_PATTERNS)

        if watcher is None:
            watcher = self._watchers[client] = _PresenceWatcher(context, client, self._entries)
        watcher.patterns[raw] = pattern
        watcher.index.add(pattern, None)
        self._watching.add(pattern, watcher)
        return watcher

    def unwatch(self, client: Outbound, raw: bytes) -> bool:
        """Tell a client no more of a pattern. Returns whether it watched that."""
        watcher = self._watchers.get(client)
        pattern = watcher.patterns.pop(raw, None) if watcher is not None else None
        if watcher is None or pattern is None:
            return False
        self._watching.withdraw(pattern, watcher)
        watcher.index.withdraw(pattern, None)
        self._context.quotas.give_pattern(client.account, pattern)
        watcher.cursor.drop_ending(raw)
        watcher.cursor.look_at_all()  # what no other pattern matches is forgotten
        watcher.wake()
        return True

    def review(self, client: Outbound) -> Iterator[None]:
        """The rules have changed: take away what a client may no longer hold and watch."""
        allows = self._context.authorization.allows
        for key in self.held(client):
            yield
            if not allows(client.account, client.credentials, "publish", key) and client in self._origins:
                self._take_out(self._origins[client], key, REFUSED)
        for raw in self.watched(client):
            yield
            if not allows(client.account, client.credentials, "subscribe", raw):
                self.unwatch(client, raw)

    def forget(self, client: Outbound) -> None:
        """A client has left."""
        origin = self._origins.pop(client, None)
        if origin is not None:
            self._retire(origin, KICKED if client.kicked else ENDED)
        watcher = self._watchers.pop(client, None)
        if watcher is not None:
            for pattern in watcher.patterns.values():
                self._watching.withdraw(pattern, watcher)
                self._context.quotas.give_pattern(client.account, pattern)

    def held(self, client: Outbound) -> dict[bytes, bytes]:
        """Return the keys under which a client is present, with its info."""
        origin = self._origins.get(client)
        return {entry.key: entry.info for entry in origin.entries.values()} if origin is not None else {}

    def watched(self, client: Outbound) -> list[bytes]:
        """Return the patterns that a client watches."""
        watcher = self._watchers.get(client)
        return list(watcher.patterns) if watcher is not None else []

    # -- what other hubs say ------------------------------------------------------------------------

    def begin_link(
        self,
        link: Receiver,
        hub: Hashable,
        account: Account,
        may_know: Callable[[bytes], bool],
        *,
        trusted: bool = True,
    ) -> PresenceCursor:
        """Begin a link. Returns its cursor.

        :param hub: stands for that hub, over several links.
        :param may_know: whether it may know of a key.
        """
        origin = self._origins.get(hub)
        if origin is None:
            origin = self._origins[hub] = PresenceOrigin(hub, account, trusted=trusted)
        if origin.timer is not None:
            self._context.running.cancel(origin.timer)
            origin.timer = None
        origin.is_complete = origin.has_refused = False
        origin.stale = set(origin.entries)

        def wants(entry: PresenceEntry) -> bool:
            return entry.origin is not origin and may_know(entry.key)

        listener = PresenceCursor(self._entries, wants)
        listener.look_at_all(ending=lambda: encode_control(PRESENCE_COMPLETE))
        self._links[link] = origin, listener
        return listener

    @property
    def greeting(self) -> bytes:
        """First packet over a link: it names the process that gives the numbers."""
        return encode_control(PRESENCE_BEGIN, self._hub_id())

    def end_link(self, link: Receiver, *, for_good: bool = False) -> None:
        """End a link. The presences beyond it are uncertain from here on, and gone in the end."""
        origin, _ = self._links.pop(link, (None, None))
        if origin is None:
            return
        origin.is_complete = False
        if for_good or not origin.entries:
            self._give_up(origin)
        else:
            origin.timer = self._context.running.after(GIVEN_UP, partial(self._give_up, origin))

    def give_up(self, hub: Hashable) -> None:
        """A hub will not be joined any more."""
        if (origin := self._origins.get(hub)) is not None:
            self._give_up(origin)

    def _give_up(self, origin: PresenceOrigin) -> None:
        del self._origins[origin.holder]
        if origin.timer is not None:
            self._context.running.cancel(origin.timer)
        self._retire(origin, UNREACHABLE)

    def take_begin(self, link: Receiver, hub_id: bytes) -> None:
        """Begin the other hub's list. Numbers of another process of it mean nothing any more."""
        origin, _ = self._links[link]
        hub_id = hub_id[:_ID_BYTES]
        if hub_id != origin.hub_id:
            self._retire_some(origin, set(origin.entries), UNREACHABLE)
            origin.stale.clear()
            origin.hub_id = hub_id

    def take_added(self, link: Receiver, said: Added, who: RemoteSender) -> None:
        """Somebody is there beyond a link, as ``who``. Raises :exc:`~sbuslib.errors.PacketError`."""
        origin, _ = self._links[link]
        known = origin.entries.get(said.number)
        is_other = known is not None and known.key != said.key
        if is_other or self._context.router.namespace.uses_reserved(said.key):
            raise PacketError(Reason.MALFORMED_PRESENCE)
        origin.stale.discard(said.number)
        pattern = self._context.router.cut(said.key)
        if not self._put(origin, said.number, pattern, said.info, who):
            origin.has_refused = True
            self._take_out(origin, said.number, REFUSED)  # what is known of it is no longer so
            raise PacketError(Reason.TOO_MANY_PATTERNS)

    def take_removed(self, link: Receiver, said: Removed) -> None:
        """Somebody beyond a link has gone."""
        origin, _ = self._links[link]
        origin.stale.discard(said.number)
        self._take_out(origin, said.number, said.cause)

    def take_complete(self, link: Receiver) -> None:
        """End the other hub's list: presences that are not in it have gone meanwhile."""
        origin, _ = self._links[link]
        stale, origin.stale = origin.stale, set()
        self._retire_some(origin, stale, UNKNOWN)
        origin.is_complete = True

    def review_link(self, link: Receiver, may_hold: Callable[[bytes], bool]) -> Iterator[None]:
        """The rules have changed: take away what the user of a link may no longer hold, and know."""
        origin, listener = self._links.get(link, (None, None))
        if origin is None or listener is None:
            return  # it has ended meanwhile
        for name, entry in list(origin.entries.items()):
            yield
            if not may_hold(entry.key):
                self._take_out(origin, name, REFUSED)
        listener.look_at_all()

    def look_at_link(self, link: Receiver) -> None:
        """Other keys may be known beyond a link."""
        if link in self._links:
            self._links[link][1].look_at_all()
            self._mark([link], self._own_user)

    def names_changed(self) -> None:
        """The credential keys of clients here, and beyond links from below, are others now."""
        for _, listener in self._links.values():
            listener.look_at_all()
        for watcher in self._watchers.values():
            watcher.cursor.look_at_all()
            watcher.wake()
        self._mark(self._links, self._own_user)

    # -- the table ----------------------------------------------------------------------------------

    @property
    def _own_user(self) -> int:
        return self._context.running.credentials.uid

    @property
    def _scope(self) -> bytes:
        """How much of the tree is known."""
        hubs = (origin for origin in self._origins.values() if origin.trusted)
        known = all(origin.is_complete and not origin.has_refused for origin in hubs)
        return b"tree" if known and self._is_whole() else b"partial"

    def _put(self, origin: PresenceOrigin, name: int | bytes, pattern: Pattern, info: bytes, who: RemoteSender) -> bool:
        """Put in an entry, or change it. Returns whether there was room."""
        # 1. Room for it, or for what it says more of itself.
        entry = origin.entries.get(name)
        if entry is not None:
            if (entry.info, entry.who.key) == (info, who.key):
                return True
            if not self._context.quotas.take_bytes(origin.account, len(info) - len(entry.info)):
                return False
            entry.info, entry.who = info, who
        elif self._context.quotas.take_pattern(origin.account, pattern, len(info)):
            self._last += 1
            entry = self._entries[self._last] = origin.entries[name] = PresenceEntry(
                self._last, origin, pattern, info, who
            )
        else:
            return False

        # 2. Others learn of it.
        self._changed(entry, b"")
        return True

    def _take_out(self, origin: PresenceOrigin, name: int | bytes, cause: bytes) -> bool:
        entry = origin.entries.pop(name, None)
        if entry is None:
            return False
        del self._entries[entry.number]
        self._context.quotas.give_pattern(origin.account, entry.pattern, len(entry.info))
        self._changed(entry, cause)
        return True

    def _retire(self, origin: PresenceOrigin, cause: bytes) -> None:
        """All of an origin has gone: there may be many, so they go in turns of its user.

        The first at once: so they are announced before those that come in their place.
        """
        work = self._context.running.work
        work.empty(origin.account.uid, origin.entries, lambda name: self._take_out(origin, name, cause), GONE_A_STEP)

    def _retire_some(self, origin: PresenceOrigin, names: Iterable[int | bytes], cause: bytes) -> None:
        """Remove some of an origin: the same numbers stand for others from here on."""
        former = PresenceOrigin(origin.holder, origin.account)
        former.entries = {name: origin.entries.pop(name) for name in names if name in origin.entries}
        self._retire(former, cause)

    def _changed(self, entry: PresenceEntry, cause: bytes) -> None:
        """Tell of a presence that came or changed, or has gone for this cause."""
        links: list[Receiver] = []
        for link, (origin, listener) in self._links.items():
            if origin is not entry.origin:
                listener.look_at(entry.number, cause)
                links.append(link)
        if links:
            self._mark(links, entry.origin.account.uid)
        for watcher in self._watching.subscribers(entry.key):
            watcher.cursor.look_at(entry.number, cause)
            watcher.wake()

    def __len__(self) -> int:
        """How many presences are known."""
        return len(self._entries)

    # -- for a hub that takes over, and at the end --------------------------------------------------

    def record(self, numbers: dict[Outbound, int]) -> list[PresenceRecord]:
        """All entries. ``numbers`` are those of the clients."""
        records = []
        for holder, origin in self._origins.items():
            for name, entry in origin.entries.items():
                record = PresenceRecord(number=entry.number, key=entry.key, info=entry.info)
                if isinstance(holder, tuple):
                    record.hub, record.hub_id, record.name = holder, origin.hub_id, int(name)
                    record.user, record.trusted = origin.account.uid, origin.trusted
                    record.ids, record.rest = astuple(entry.who.credentials), entry.who.rest
                elif holder in numbers:
                    record.client = numbers[holder]
                else:
                    continue
                records.append(record)
        return records

    def restore(self, last: int, records: list[PresenceRecord], clients: dict[int, Outbound]) -> None:
        """Go on from what another process knew. Hubs beyond links have some time to come back."""
        context, self._last = self._context, last
        for record in records:
            # 1. Who held it.
            client = clients[record.client] if record.hub is None else None
            holder: Hashable = record.hub if client is None else client
            account = context.quotas.account(record.user) if client is None else client.account
            origin = self._origins.get(holder)
            if origin is None:
                origin = self._origins[holder] = PresenceOrigin(holder, account, trusted=record.trusted)
                if client is None:
                    origin.hub_id, origin.is_complete = record.hub_id, False
                    origin.timer = context.running.after(GIVEN_UP, partial(self._give_up, origin))

            # 2. The entry.
            pattern = Pattern(record.key, context.router.namespace.separator)
            context.quotas.force_pattern(account, pattern, len(record.info))
            credentials = Credentials(*record.ids) if client is None else client.credentials
            who = RemoteSender(credentials, record.rest, context.router.namespace)
            entry = PresenceEntry(record.number, origin, pattern, record.info, who)
            name = record.name if client is None else record.key
            self._entries[record.number] = origin.entries[name] = entry

    @property
    def last(self) -> int:
        """The last number that was given."""
        return self._last

    def clear(self) -> None:
        """The hub stops: send nothing more."""
        self._links.clear()
        self._watching = Subscriptions(self._context.router.namespace.separator)
        for origin in list(self._origins.values()):
            if not isinstance(origin.holder, Outbound):
                self._give_up(origin)
