"""Interest as events: clients that watch whether a key has addressees, or whether any key of a pattern has.

A client gets the state once, and again after each change. Changes are coalesced: it gets the state at the time of its
turn. Source: ``XPUB`` of ZeroMQ, which passes subscriptions to the publisher.

A change of interest marks the watches that it may concern, in turns of the user who made it; each watch is looked at in
turns of the user who watches. So neither pays for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from ..errors import ReservedKeyError
from ..keys.covering import overlap
from ..matcher import Pattern
from ..wire.presence import encode_interest
from .client_feed import ClientFeed
from .context import Context
from .outbound import Outbound
from .quotas import Account
from .router import why_too_large

COMPARED_A_STEP: Final = 256
"""Patterns that one that is watched is compared with in one step: about half a millisecond."""

MARKED_A_STEP: Final = 256
"""Watches that one step marks, and changed keys that are noted one by one."""


class _InterestWatcher:
    """One client that watches."""

    def __init__(self, client: Outbound) -> None:
        self.client = client
        self.feed: ClientFeed  # sends it what has changed
        self.patterns: dict[bytes, Pattern] = {}  # the patterns that it watches
        self.sent: dict[Pattern, bytes] = {}  # the state that it was sent last, of each; empty: none yet
        self.dirty: dict[Pattern, None] = {}  # to be looked at
        self.scans: dict[Pattern, Iterator[bytes]] = {}  # what one is still to be compared with
        self.witnesses: dict[Pattern, bytes] = {}  # by a watched pattern, one that was held and has keys in common

    def mark(self, pattern: Pattern) -> None:
        """Look at a pattern, again from the beginning."""
        if pattern in self.sent:
            self.scans.pop(pattern, None)
            self.dirty[pattern] = None
            self.feed.wake()


class InterestWatches:
    """All watches of interest of one hub.

    :param has_settled: whether the hub has the interest of its tree.
    """

    def __init__(self, context: Context, has_settled: Callable[[], bool]) -> None:
        self._context = context
        self._has_settled = has_settled
        self._watchers: dict[Outbound, _InterestWatcher] = {}  # by client
        self._by_key: dict[bytes, dict[_InterestWatcher, Pattern]] = {}  # who watches just a key
        self._wide: dict[Pattern, _InterestWatcher] = {}  # patterns for several keys
        self._changed_keys: dict[bytes, None] = {}  # to be marked
        self._changed_all = False  # any key may have changed
        self._is_marking = False  # whether somebody's turn marks what has changed

    # -- what clients ask ---------------------------------------------------------------------------

    def add(self, client: Outbound, raw: bytes) -> None:
        """A client watches a key or pattern from now on; one that it watches already is sent anew.

        Beyond the limits it is sent ``unknown`` once: a client that only waits for an answer is not kicked for that.
        """
        context = self._context
        watcher = self._watchers.get(client)
        pattern = watcher.patterns.get(raw) if watcher is not None else None
        if pattern is None:
            pattern = Pattern(raw, context.router.namespace.separator)
            is_large = why_too_large(raw, context.limits, pattern.separator) is not None
            if is_large or not context.quotas.take_pattern(client.account, pattern):
                client.answer(encode_interest(b"unknown", raw[: context.limits.pattern_bytes]))
                return

        if watcher is None:
            watcher = self._watchers[client] = _InterestWatcher(client)
            watcher.feed = ClientFeed(context, client, partial(self._take, watcher))
            context.router.on_interest = self.note
        watcher.patterns[raw] = pattern
        if pattern.is_literal:
            self._by_key.setdefault(raw, {})[watcher] = pattern
        else:
            self._wide[pattern] = watcher
        watcher.sent[pattern] = b""
        watcher.mark(pattern)

    def remove(self, client: Outbound, raw: bytes) -> bool:
        """A client watches one no more. Returns whether it did."""
        watcher = self._watchers.get(client)
        pattern = watcher.patterns.pop(raw, None) if watcher is not None else None
        if watcher is None or pattern is None:
            return False
        for each in (watcher.sent, watcher.dirty, watcher.scans, watcher.witnesses, self._wide):
            each.pop(pattern, None)
        if pattern.is_literal:
            watchers = self._by_key[raw]
            del watchers[watcher]
            if not watchers:
                del self._by_key[raw]
        self._context.quotas.give_pattern(client.account, pattern)
        return True

    def forget(self, client: Outbound) -> None:
        """A client has left."""
        if client in self._watchers:
            for raw in self.watched(client):
                self.remove(client, raw)
            del self._watchers[client]
            if not self._watchers:
                self._context.router.on_interest = None

    def review(self, client: Outbound) -> None:
        """The rules have changed: a client may see less, or more, of the keys that it watches."""
        watcher = self._watchers.get(client)
        if watcher is not None:
            for pattern in watcher.patterns.values():
                watcher.mark(pattern)

    def watched(self, client: Outbound) -> list[bytes]:
        """Return the patterns that a client watches."""
        watcher = self._watchers.get(client)
        return list(watcher.patterns) if watcher is not None else []

    def state(self, client: Outbound, key: bytes) -> bytes:
        """Return whether a client's messages under a key have addressees: ``yes``, ``no``, or ``unknown``.

        The client itself is none without echo. Keys that it may not publish to are ``unknown``.
        Raises :exc:`~sbuslib.errors.ReservedKeyError`.
        """
        context = self._context
        if not context.authorization.allows(client.account, client.credentials, "publish", key):
            return b"unknown"
        wanted = context.router.is_wanted(key, None if client.has_echo else client)
        if wanted:
            return b"yes"
        return b"no" if wanted is False and self._has_settled() else b"unknown"

    # -- changes ------------------------------------------------------------------------------------

    def note(self, pattern: Pattern | None, account: Account | None) -> None:
        """The addressees of keys that a pattern matches may be others; ``None``: those of any key.

        :param account: of who changed that; ``None``: the hub itself.
        """
        if pattern is not None and pattern.is_literal and len(self._changed_keys) < MARKED_A_STEP:
            self._changed_keys[pattern.raw] = None
        else:
            self._changed_all = True
        self._mark_later(self._context.running.credentials.uid if account is None else account.uid)

    def _mark_later(self, user: int) -> None:
        if not self._is_marking and self._context.is_serving:
            self._is_marking = True
            self._context.running.work.add(user, self._marks(), lambda: self._on_end(user))

    def _marks(self) -> Iterator[None]:
        keys, self._changed_keys = self._changed_keys, {}
        is_all, self._changed_all = self._changed_all, False
        found = [(watcher, pattern) for pattern, watcher in self._wide.items()]
        for key in list(self._by_key) if is_all else keys:
            found += self._by_key.get(key, {}).items()
        for number, (watcher, pattern) in enumerate(found, 1):
            watcher.mark(pattern)
            if not number % MARKED_A_STEP:
                yield

    def _on_end(self, user: int) -> None:
        self._is_marking = False
        if (self._changed_keys or self._changed_all) and self._watchers:
            self._mark_later(user)

    # -- what clients are sent ----------------------------------------------------------------------

    def _take(self, watcher: _InterestWatcher, most: int) -> tuple[list[bytes], bool]:
        packets: list[bytes] = []
        for pattern in list(islice(watcher.dirty, most)):
            del watcher.dirty[pattern]
            state = self._look_at(watcher, pattern)
            if state is None:  # there is more to compare it with
                watcher.dirty[pattern] = None
                state = watcher.sent[pattern] or b"unknown"
            if state != watcher.sent[pattern]:
                watcher.sent[pattern] = state
                packets.append(encode_interest(state, pattern.raw))
        return packets, bool(watcher.dirty)

    def _look_at(self, watcher: _InterestWatcher, pattern: Pattern) -> bytes | None:
        """How things are; ``None``: not all was looked at yet."""
        client, router = watcher.client, self._context.router
        if pattern.is_literal:
            try:
                return self.state(client, pattern.raw)
            except ReservedKeyError:
                return b"unknown"
        may_know = self._context.authorization.allows(client.account, client.credentials, "publish", pattern.raw)
        if not may_know or router.namespace.uses_reserved(pattern.raw):
            return b"unknown"

        # Another pattern that has keys in common: most likely the one that was found last.
        if self._is_held(client, watcher.witnesses.get(pattern)):
            return b"yes"
        scan = watcher.scans.pop(pattern, None) or iter(router.addressed_patterns())
        others = list(islice(scan, COMPARED_A_STEP))
        for other in others:
            mark, raw = router.namespace.unmark(other)
            if overlap(pattern.raw, raw, router.namespace.separator) and self._is_held(client, other):
                if mark:
                    return b"unknown"  # it is only presumed, and all that is known came before
                watcher.witnesses[pattern] = other
                return b"yes"
        if len(others) == COMPARED_A_STEP:
            watcher.scans[pattern] = scan
            return None
        return b"no" if self._has_settled() else b"unknown"

    def _is_held(self, client: Outbound, other: bytes | None) -> bool:
        """Return whether a pattern has a holder, the client itself without echo aside."""
        if other is None:
            return False
        holders = self._context.router.holders(other)
        return len(holders) > (not client.has_echo and client in holders)
