"""Presences: keys that clients hold for as long as they are connected, known in the whole tree.

Each hub has a table of all presences: of its own clients, and of those beyond each link, its *origins*. It gives each a
number that it never uses again, for its clients. In the tree a presence has a *name*, that of its own hub's process and
the number there. Each hub announces to every link those that did not come over it, and to every client those that it
watches. Changes are sent to links in turns of the user who caused them, and to clients in turns of their own user, as
fast as they read; a presence that came and went meanwhile is not announced at all.

**The owner of a presence** is known to the hub of its client from the kernel, and each link on the way names it as it
names a sender (:mod:`.remote_senders`). A presence counts as one pattern of its user, with the bytes of its
information; one beyond a link as one of the user of the link. A user who is not trusted has names of its own: nobody
can take those of another.

**When a link ends,** the presences beyond it are uncertain for :data:`GIVEN_UP` seconds. They stay in the table, and
lists are ``partial``. If the same process of a hub joins again, it announces its presences, and only differences are
reported. If another process comes in its place, only the presences of its own clients have gone with the former: it is
the way to all others, which have the rest of that time to come again; then those that did not are gone. A hub that
moves may be known over two links meanwhile: the later one is in *reserve* until the first is gone.

**Presences that the rules forbid** are in no list, and stay noted: they are there again as soon as the rules allow it.

Source: the liveliness tokens of Zenoh, which a session declares, and which are gone when it is; and
``NameOwnerChanged`` of D-Bus.
"""

from __future__ import annotations

import re
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
    PRESENCE_ON,
    REFUSED,
    UNREACHABLE,
    Added,
    Removed,
    encode_complete,
)
from .presence_entries import UNKNOWN, PresenceCursor, PresenceEntry, PresenceOrigin
from .remote_senders import RemoteSender

GIVEN_UP: Final = 5.0
"""Seconds after which a link that has ended is given up: a hub that was only replaced or disturbed is back by then."""

GONE_A_STEP: Final = 128
"""Presences of somebody who left that go in one step."""

_ID = re.compile(rb"[0-9A-Za-z._-]{1,64}")
"""Id of a hub's process, as in a name."""

PARENT: Final = "parent"
"""Stands for the parent among those beyond links."""


class _PresenceWatcher(ClientFeed):
    """A client that watches, which is sent what has changed.

    :param is_whole: whether all of the tree is known.
    """

    def __init__(
        self, context: Context, client: Outbound, table: dict[int, PresenceEntry], is_whole: Callable[[], bool]
    ) -> None:
        super().__init__(context, client)
        self.patterns: dict[bytes, Pattern] = {}  # the patterns that it watches
        self.forbidden: dict[bytes, Pattern] = {}  # those that the rules forbid for now
        self.index: Subscriptions[None] = Subscriptions(context.router.namespace.separator)  # the first, by key
        index = self.index
        # What it was sent, and is to be sent.
        self.cursor = PresenceCursor(
            table,
            wants=lambda entry: bool(index.subscribers(entry.key)),
            ending=lambda raw: encode_complete(is_whole(), raw),
            home=b"",
        )

    def take(self, most: int) -> tuple[list[bytes], bool]:
        return self.cursor.take(most)


class Presences:
    """The presences that one hub knows.

    :param mark: has changes sent to links, in turns of the user who caused them.
    :param is_whole: whether the tree is known but for presences; with the parent, or without.
    """

    def __init__(
        self,
        context: Context,
        hub_id: Callable[[], bytes],
        mark: Callable[[Iterable[Hashable], int], None],
        is_whole: Callable[[bool], bool],
    ) -> None:
        self._context = context
        self._hub_id = hub_id
        self._mark = mark
        self._is_whole = is_whole
        self._last = 0  # number
        self._entries: dict[int, PresenceEntry] = {}  # by number
        self._named: dict[bytes, PresenceEntry] = {}  # those beyond links, by name
        self._origins: dict[Hashable, PresenceOrigin] = {}  # by client
        self._hubs: dict[Hashable, PresenceOrigin] = {}  # by what stands for another hub
        self._links: dict[Receiver, tuple[PresenceOrigin, PresenceCursor]] = {}  # by what routes hold
        self._watchers: dict[Outbound, _PresenceWatcher] = {}  # by client
        #: Those who watch, by pattern.
        self._watching: Subscriptions[_PresenceWatcher] = Subscriptions(context.router.namespace.separator)
        self._said: dict[Hashable, bool] = {None: False}  # whether all was known last: by link, and here

    # -- what clients say ---------------------------------------------------------------------------

    def add(self, client: Outbound, key: bytes, info: bytes, *, asks: bool) -> Reason | None:
        """A client is present under a key from now on, or says something else of itself. Returns why it may not be.

        :param asks: whether it waits for the answer. Else the presence stays noted where the rules forbid it.
        """
        context = self._context
        if len(info) > INFO_BYTES or b"\0" in key or context.router.namespace.uses_reserved(key):
            return Reason.MALFORMED_PRESENCE
        try:
            pattern = context.router.cut(key)
        except PacketError as error:
            return error.reason
        is_allowed = context.authorization.allows(client.account, client.credentials, "publish", key)
        if asks and not is_allowed:
            return Reason.PUBLISHING_REFUSED

        origin = self._origins.get(client)
        if origin is None:
            origin = self._origins[client] = PresenceOrigin(client, client.account)
        who = RemoteSender(client.credentials, b"", context.router.namespace)
        if not self._put(origin, key, PresenceEntry(origin, b"", pattern, info, who), is_allowed):
            return Reason.TOO_MANY_PATTERNS
        return None if is_allowed else Reason.PUBLISHING_REFUSED

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
        if raw in watcher.forbidden:
            self._refuse(client, raw)
        else:
            self._list(client, watcher, raw)

    @staticmethod
    def _list(client: Outbound, watcher: _PresenceWatcher, raw: bytes) -> None:
        client.answer(encode_control(PRESENCE_BEGIN, raw))
        watcher.cursor.look_at_all()
        watcher.cursor.end_with(raw)
        watcher.wake()

    @staticmethod
    def _refuse(client: Outbound, raw: bytes) -> None:
        client.answer(encode_control(PRESENCE_COMPLETE, Reason.SUBSCRIPTION_REFUSED.encode() + b"\0" + raw))

    def _watcher(self, client: Outbound, raw: bytes) -> _PresenceWatcher:
        """Return the watcher of a client, for one more pattern, which the rules may forbid for now. Raises
        :exc:`~sbuslib.errors.PacketError` where it may not be watched at all.
        """
        context, watcher = self._context, self._watchers.get(client)
        pattern = context.router.cut(raw)
        if context.router.namespace.uses_reserved(raw):
            raise PacketError(Reason.SUBSCRIPTION_REFUSED)
        is_known = watcher is not None and (raw in watcher.patterns or raw in watcher.forbidden)
        if not is_known and not context.quotas.take_pattern(client.account, pattern):
            raise PacketError(Reason.TOO_MANY_PATTERNS)

        if watcher is None:
            watcher = _PresenceWatcher(context, client, self._entries, lambda: self._said[None])
            self._watchers[client] = watcher
        if not is_known:
            watcher.forbidden[raw] = pattern
        self._set_watched(client, watcher, raw)
        return watcher

    def _set_watched(self, client: Outbound, watcher: _PresenceWatcher, raw: bytes) -> bool:
        """Have a pattern watched, or not, as the rules say. Returns whether that has changed."""
        is_allowed = self._context.authorization.allows(client.account, client.credentials, "subscribe", raw)
        if is_allowed and raw in watcher.forbidden:
            pattern = watcher.patterns[raw] = watcher.forbidden.pop(raw)
            watcher.index.add(pattern, None)
            self._watching.add(pattern, watcher)
            return True
        if not is_allowed and raw in watcher.patterns:
            watcher.forbidden[raw] = self._stop_watching(watcher, raw)
            return True
        return False

    def _stop_watching(self, watcher: _PresenceWatcher, raw: bytes) -> Pattern:
        pattern = watcher.patterns.pop(raw)
        self._watching.withdraw(pattern, watcher)
        watcher.index.withdraw(pattern, None)
        watcher.cursor.drop_ending(raw)
        watcher.cursor.look_at_all()  # what no other pattern matches is forgotten
        watcher.wake()
        return pattern

    def unwatch(self, client: Outbound, raw: bytes) -> bool:
        """Tell a client no more of a pattern. Returns whether it watched that."""
        watcher = self._watchers.get(client)
        if watcher is None or not (raw in watcher.patterns or raw in watcher.forbidden):
            return False
        pattern = watcher.forbidden.pop(raw) if raw in watcher.forbidden else self._stop_watching(watcher, raw)
        self._context.quotas.give_pattern(client.account, pattern)
        return True

    def review(self, client: Outbound) -> Iterator[None]:
        """The rules have changed: take away what a client may no longer hold and watch, and give back what it may
        again. It gets the packets that it gets where it asks for these.
        """
        allows, origin, watcher = (
            self._context.authorization.allows,
            self._origins.get(client),
            self._watchers.get(client),
        )

        # 1. Its presences.
        for key in [*origin.entries, *origin.forbidden] if origin is not None else ():
            yield
            is_allowed = allows(client.account, client.credentials, "publish", key)
            if origin is not None and not client.closed and self._set_allowed(origin, key, is_allowed):
                reason = b"" if is_allowed else Reason.PUBLISHING_REFUSED.encode()
                client.answer(encode_control(PRESENCE_ON, b"\0".join((b"", reason, key))))

        # 2. What it watches.
        for raw in self.watched(client):
            yield
            if watcher is None or client.closed or not self._set_watched(client, watcher, raw):
                continue
            if raw in watcher.patterns:
                self._list(client, watcher, raw)
            else:
                self._refuse(client, raw)

    def forget(self, client: Outbound) -> None:
        """A client has left."""
        origin = self._origins.pop(client, None)
        if origin is not None:
            self._retire(origin, KICKED if client.kicked else ENDED)
        watcher = self._watchers.pop(client, None)
        if watcher is not None:
            for pattern in watcher.patterns.values():
                self._watching.withdraw(pattern, watcher)
            for pattern in (*watcher.patterns.values(), *watcher.forbidden.values()):
                self._context.quotas.give_pattern(client.account, pattern)

    def watched(self, client: Outbound) -> list[bytes]:
        """Return the patterns that a client watches, or would if the rules allowed it."""
        watcher = self._watchers.get(client)
        return [*watcher.patterns, *watcher.forbidden] if watcher is not None else []

    # -- what other hubs say ------------------------------------------------------------------------

    def begin_link(
        self,
        link: Receiver,
        hub: Hashable,
        place: Hashable,
        account: Account,
        user: int,
        may_know: Callable[[bytes], bool],
        *,
        named: bool,
        trusted: bool = True,
    ) -> PresenceCursor:
        """Begin a link. Returns its cursor.

        :param hub: stands for that hub, over several links.
        :param place: where it is: a process that is there has replaced the one before.
        :param user: of the process at the other end.
        :param may_know: whether it may know of a key.
        :param named: whether it knows presences by name.
        """
        origin = self._hubs.get(hub)
        if origin is None:
            origin = self._hubs[hub] = PresenceOrigin(hub, account, trusted=trusted)
        origin.stranger = None if user in self._context.trusted else user
        origin.is_linked, origin.has_begun, origin.is_complete = True, False, False
        origin.has_moved, origin.place = place != origin.place, place
        origin.roomless.clear()
        origin.stale = {*origin.entries, *origin.forbidden}

        def wants(entry: PresenceEntry) -> bool:
            return entry.origin is not origin and may_know(entry.key)

        listener = PresenceCursor(
            self._entries,
            wants,
            ending=lambda _: encode_complete(self._said.get(link, False)),
            home=self._hub_id() if named else b"",
        )
        self._links[link] = origin, listener
        listener.look_at_all()
        listener.end_with(b"")
        self.note_scope()
        return listener

    @property
    def greeting(self) -> bytes:
        """First packet over a link: it names the process that gives the numbers."""
        return encode_control(PRESENCE_BEGIN, self._hub_id())

    def end_link(self, link: Receiver, *, for_good: bool = False) -> None:
        """End a link. The presences beyond it are uncertain from here on, and gone in the end."""
        origin, _ = self._links.pop(link, (None, None))
        self._said.pop(link, None)
        if origin is None:
            return
        origin.is_linked = origin.is_complete = False
        if for_good or not (origin.entries or origin.forbidden):
            self._give_up(origin)
        else:
            self._hold(origin)
            self.note_scope()

    def _hold(self, origin: PresenceOrigin) -> None:
        """Hold what is known over a link that has ended."""
        self._let_go(origin)
        origin.timer = self._context.running.after(GIVEN_UP, partial(self._end_hold, origin))

    def _let_go(self, origin: PresenceOrigin) -> None:
        if origin.timer is not None:
            self._context.running.cancel(origin.timer)
            origin.timer = None

    def _end_hold(self, origin: PresenceOrigin) -> None:
        origin.timer = None
        if origin.is_linked:
            self._retire_stale(origin)
        else:
            self._give_up(origin)

    def give_up(self, hub: Hashable) -> None:
        """A hub will not be joined any more."""
        if (origin := self._hubs.get(hub)) is not None:
            self._give_up(origin)

    def _give_up(self, origin: PresenceOrigin) -> None:
        del self._hubs[origin.holder]
        self._let_go(origin)
        self._retire(origin, UNREACHABLE)
        self.note_scope()

    def take_begin(self, link: Receiver, hub_id: bytes) -> None:
        """Begin the other hub's list. Its earlier process, if this is another, was the way to presences of other hubs:
        they may come again. Raises :exc:`~sbuslib.errors.PacketError`.
        """
        origin, _ = self._links[link]
        if not _ID.fullmatch(hub_id) or origin.has_begun:
            raise PacketError(Reason.MALFORMED_ID)
        origin.has_begun = True
        if hub_id == origin.hub_id:
            self._let_go(origin)  # its list says what has gone
        self._retire_some(origin, origin.begin_list(hub_id), UNREACHABLE)

    def take_added(self, link: Receiver, said: Added, who: RemoteSender, *, is_allowed: bool) -> None:
        """Somebody is there beyond a link, as ``who``. Raises :exc:`~sbuslib.errors.PacketError`.

        :param is_allowed: whether the rules allow that.
        """
        # 1. What a hub that has moved hears of its own clients is old.
        origin, _ = self._links[link]
        if said.name.endswith(b"@" + self._hub_id()):
            return
        name = origin.name_of(said.name)
        known = origin.entries.get(name) or origin.forbidden.get(name)
        is_other = known is not None and known.key != said.key
        if is_other or not origin.hub_id or self._context.router.namespace.uses_reserved(said.key):
            raise PacketError(Reason.MALFORMED_PRESENCE)

        # 2. It is there, if there is room.
        was_whole = origin.is_whole
        origin.stale.discard(name)
        pattern = self._context.router.cut(said.key)
        has_room = self._put(origin, name, PresenceEntry(origin, name, pattern, said.info, who), is_allowed)
        if not has_room:
            origin.note_roomless(name)
            self._take_out(origin, name, REFUSED)  # what is known of it is no longer so
        if origin.is_whole is not was_whole:
            self.note_scope()
        if not has_room:
            raise PacketError(Reason.TOO_MANY_PATTERNS)
        if not is_allowed:
            raise PacketError(Reason.PUBLISHING_REFUSED)

    def take_removed(self, link: Receiver, said: Removed) -> None:
        """Somebody beyond a link has gone."""
        origin, _ = self._links[link]
        was_whole, name = origin.is_whole, origin.name_of(said.name)
        origin.stale.discard(name)
        origin.roomless.discard(name)
        self._take_out(origin, name, said.cause)
        if origin.is_whole is not was_whole:
            self.note_scope()

    def take_complete(self, link: Receiver, scope: bytes) -> None:
        """End the other hub's list. If the same process sent the one before, presences that are not in it have gone
        meanwhile; else they have some more time to come again. Or that hub knows more, or less, of its tree now.
        """
        origin, _ = self._links[link]
        origin.is_complete = scope != b"partial"  # an older hub does not say
        if origin.timer is None:
            self._retire_stale(origin)
        else:
            self.note_scope()

    def _retire_stale(self, origin: PresenceOrigin) -> None:
        stale, origin.stale = origin.stale, set()
        self._retire_some(origin, stale, UNKNOWN)
        self.note_scope()

    def review_link(self, link: Receiver, may_hold: Callable[[bytes], bool]) -> Iterator[None]:
        """The rules have changed: take away what the user of a link may no longer hold, and know, and give back what it
        may again.
        """
        origin, listener = self._links.get(link, (None, None))
        if origin is None or listener is None:
            return  # it has ended meanwhile
        for name, entry in [*origin.entries.items(), *origin.forbidden.items()]:
            yield
            self._set_allowed(origin, name, may_hold(entry.key))
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

    def note_scope(self) -> None:
        """More of the tree may be known than before, or less: say so to clients that watch and to links, if it is so.

        To a link that is said of the part that lies on this side of it.
        """
        lacking = [origin for origin in self._hubs.values() if origin.trusted and not origin.is_whole]
        knows_rest, knows_parent = self._is_whole(False), self._is_whole(True)

        is_whole = knows_parent and not lacking
        if is_whole is not self._said[None]:
            self._said[None] = is_whole
            for watcher in self._watchers.values():
                watcher.cursor.end_with(*watcher.patterns)
                watcher.wake()

        changed: list[Receiver] = []
        for link, (origin, listener) in self._links.items():
            is_known = (knows_rest if origin.holder is PARENT else knows_parent) and lacking in ([], [origin])
            if is_known is not self._said.get(link):
                self._said[link] = is_known
                listener.end_with(b"")
                changed.append(link)
        if changed:
            self._mark(changed, self._own_user)

    def _put(self, origin: PresenceOrigin, name: bytes, entry: PresenceEntry, is_allowed: bool) -> bool:
        """Put in an entry, or change the one of this name. Returns whether there was room."""
        # 1. Room for it, or for what it says more of itself.
        quotas, known = self._context.quotas, origin.entries.get(name) or origin.forbidden.get(name)
        if known is None:
            if not quotas.take_pattern(origin.account, entry.pattern, len(entry.info)):
                return False
            origin.forbidden[name] = entry
        elif (known.info, known.who.key) != (entry.info, entry.who.key):
            if not quotas.take_bytes(origin.account, len(entry.info) - len(known.info)):
                return False
            known.info, known.who = entry.info, entry.who
            if self._entries.get(known.number) is known:
                self._changed(known, b"")

        # 2. Others learn of it, where the rules allow that.
        self._set_allowed(origin, name, is_allowed)
        return True

    def _take_out(self, origin: PresenceOrigin, name: bytes, cause: bytes) -> bool:
        """Take out an entry. Returns whether there was one."""
        self._set_allowed(origin, name, False, cause)
        entry = origin.forbidden.pop(name, None)
        if entry is None:
            return False
        self._context.quotas.give_pattern(origin.account, entry.pattern, len(entry.info))
        return True

    def _set_allowed(self, origin: PresenceOrigin, name: bytes, is_allowed: bool, cause: bytes = REFUSED) -> bool:
        """Show an entry from now on, or hide it. Returns whether that has changed."""
        if is_allowed and name in origin.forbidden:
            entry = origin.entries[name] = origin.forbidden.pop(name)
            self._show(entry)
            return True
        if not is_allowed and name in origin.entries:
            entry = origin.forbidden[name] = origin.entries.pop(name)
            self._hide(entry, cause)
            return True
        return False

    def _show(self, entry: PresenceEntry) -> None:
        """Put an entry into the table. If its name is there, one of both is in reserve."""
        first = self._named.get(entry.name)
        if first is None:
            self._last += 1
            entry.number = self._last
            self._set_first(entry)
            self._changed(entry, b"")
            return

        # Those below are nearer. Of two hubs that learn of one from each other, at least one goes on to say it so.
        entry.number = first.number
        if first.is_held or entry.origin.holder is not PARENT:
            entry.reserve = first
            self._set_first(entry)
            self._changed(entry, b"", before=first.origin)
        else:
            entry.reserve, first.reserve = first.reserve, entry

    def _set_first(self, entry: PresenceEntry) -> None:
        self._entries[entry.number] = entry
        if entry.name:
            self._named[entry.name] = entry

    def _hide(self, entry: PresenceEntry, cause: bytes) -> None:
        """Take an entry out of the table. One that is in reserve comes in its place, and nobody has gone."""
        first, following = self._entries[entry.number], entry.reserve
        entry.reserve = None
        if first is not entry:
            while first.reserve is not entry:
                assert first.reserve is not None
                first = first.reserve
            first.reserve = following
        elif following is not None:
            self._set_first(following)
            self._changed(following, b"", before=entry.origin)
        else:
            del self._entries[entry.number]
            self._named.pop(entry.name, None)
            self._changed(entry, cause)

    def _retire(self, origin: PresenceOrigin, cause: bytes) -> None:
        """All of an origin has gone: there may be many, so they go in turns of its user.

        The first at once: so they are announced before those that come in their place.
        """
        for rest in (origin.entries, origin.forbidden):
            work, uid = self._context.running.work, origin.account.uid
            work.empty(uid, rest, lambda name: self._take_out(origin, name, cause), GONE_A_STEP)

    def _retire_some(self, origin: PresenceOrigin, names: Iterable[bytes], cause: bytes) -> None:
        """Remove some of an origin: the same names may come again from here on."""
        former = PresenceOrigin(origin.holder, origin.account)
        former.entries = {name: origin.entries.pop(name) for name in names if name in origin.entries}
        former.forbidden = {name: origin.forbidden.pop(name) for name in names if name in origin.forbidden}
        self._retire(former, cause)

    def _changed(self, entry: PresenceEntry, cause: bytes, *, before: PresenceOrigin | None = None) -> None:
        """Tell of a presence that came or changed, or has gone for this cause.

        :param before: the origin over which it was known until now.
        """
        links: list[Receiver] = []
        for link, (origin, listener) in self._links.items():
            if origin is not entry.origin or before is not None:
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
        for origin in (*self._origins.values(), *self._hubs.values()):
            holder = origin.holder
            for entry in (*origin.entries.values(), *origin.forbidden.values()):
                is_forbidden = entry.key in origin.forbidden or entry.name in origin.forbidden
                record = PresenceRecord(number=entry.number, key=entry.key, info=entry.info, forbidden=is_forbidden)

                # Whose it is.
                if isinstance(holder, tuple):
                    number, _, record.home = entry.name.partition(b"@")
                    record.hub, record.hub_id, record.name = holder, origin.hub_id, int(number)
                    record.user, record.trusted = origin.account.uid, origin.trusted
                    record.ids, record.rest = astuple(entry.who.credentials), entry.who.rest
                elif isinstance(holder, Outbound) and holder in numbers:
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
            account = context.quotas.account(record.user) if client is None else client.account
            origin = self._origins.get(client) if client is not None else self._hubs.get(record.hub)
            if origin is None and client is not None:
                origin = self._origins[client] = PresenceOrigin(client, account)
            elif origin is None:
                origin = self._hubs[record.hub] = PresenceOrigin(record.hub, account, trusted=record.trusted)
                origin.hub_id, origin.place, origin.is_complete = record.hub_id, record.hub, False
                self._hold(origin)

            # 2. The entry. An older hub had no names.
            pattern = Pattern(record.key, context.router.namespace.separator)
            context.quotas.force_pattern(account, pattern, len(record.info))
            credentials = Credentials(*record.ids) if client is None else client.credentials
            who = RemoteSender(credentials, record.rest, context.router.namespace)
            name = b"%d@%b" % (record.name, record.home or record.hub_id) if client is None else b""
            entry = PresenceEntry(origin, name, pattern, record.info, who)
            entry.number = record.number
            self._restore(entry, name or record.key, record.forbidden)
        self.note_scope()

    def _restore(self, entry: PresenceEntry, name: bytes, is_forbidden: bool) -> None:
        (entry.origin.forbidden if is_forbidden else entry.origin.entries)[name] = entry
        first = self._entries.get(entry.number)
        if is_forbidden:
            return
        if first is None:
            self._set_first(entry)
            return
        while first.reserve is not None:
            first = first.reserve
        first.reserve = entry

    @property
    def last(self) -> int:
        """The last number that was given."""
        return self._last

    def clear(self) -> None:
        """The hub stops: send nothing more."""
        self._links.clear()
        self._watching = Subscriptions(self._context.router.namespace.separator)
        self._said = {None: False}
        for origin in list(self._hubs.values()):
            self._give_up(origin)
