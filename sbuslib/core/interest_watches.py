"""Interest as events: clients that watch whether a key has addressees, or whether any key of a pattern has.

A client gets the state once, and again after each change. Changes are coalesced: it gets the state at the time of its
turn. Source: ``XPUB`` of ZeroMQ, which passes subscriptions to the publisher.

**Who pays.** A change of interest is noted where it happens, and handed to each user who watches something, in turns of
the user who made it. All else takes turns of the user who watches: changes are compared with what its clients watch
(:class:`~.watching_user.WatchingUser`), and each client is sent what has changed. So neither pays for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ..matcher import Pattern
from ..wire.presence import encode_interest
from .context import Context
from .outbound import Outbound
from .quotas import Account
from .recurring_job import Steps, UserJobs
from .router import why_too_large
from .watching_user import Changes, InterestWatcher, WatchedPattern, WatchingUser

HANDED_A_STEP: Final = 256
"""Users that changes are handed to in one step."""

TAKEN_OUT_A_STEP: Final = 128
"""Watches of a client that left which go in one step: some 0.2 ms."""


class InterestWatches:
    """All watches of interest of one hub.

    :param has_settled: whether the hub has the interest of its tree.
    """

    def __init__(self, context: Context, has_settled: Callable[[], bool]) -> None:
        self._context = context
        self._has_settled = has_settled
        self._watchers: dict[Outbound, InterestWatcher] = {}  # by client
        self._users: dict[int, WatchingUser] = {}  # of these
        self._changes = Changes()  # that nobody was handed yet
        self._handing = UserJobs(context, self._hand_out)

    # -- what clients ask ---------------------------------------------------------------------------

    def add(self, client: Outbound, raw: bytes) -> None:
        """A client watches a key or pattern from now on; one that it watches already is sent anew.

        Beyond the limits it is sent ``unknown`` once: a client that only waits for an answer is not kicked for that.
        """
        context, watcher = self._context, self._watchers.get(client)
        watch = watcher.watches.get(raw) if watcher is not None else None
        if watcher is not None and watch is not None:
            watch.sent = b""
            watcher.user.look_at(watch)
            return
        pattern = Pattern(raw, context.router.namespace.separator)
        is_large = why_too_large(raw, context.limits, pattern.separator) is not None
        if is_large or not context.quotas.take_pattern(client.account, pattern):
            client.answer(encode_interest(b"unknown", raw[: context.limits.pattern_bytes]))
            return

        if watcher is None:
            uid = client.account.uid
            if uid not in self._users:
                self._users[uid] = WatchingUser(context, uid, self.state, self._has_settled)
            watcher = self._watchers[client] = InterestWatcher(context, client, self._users[uid])
            watcher.user.watchers += 1
            context.router.on_interest = self.note
        watch = watcher.watches[raw] = WatchedPattern(watcher, pattern)
        watcher.user.add(watch)

    def remove(self, client: Outbound, raw: bytes) -> bool:
        """A client watches one no more. Returns whether it did."""
        watcher = self._watchers.get(client)
        if watcher is None or raw not in watcher.watches:
            return False
        self._take_out(watcher, raw)
        return True

    def _take_out(self, watcher: InterestWatcher, raw: bytes) -> None:
        watch = watcher.watches.pop(raw)
        watcher.unsent.pop(watch, None)
        watcher.user.remove(watch)
        self._context.quotas.give_pattern(watcher.client.account, watch.pattern)

    def forget(self, client: Outbound) -> None:
        """A client has left. It may have many, so they go in turns of its user."""
        watcher = self._watchers.pop(client, None)
        if watcher is None:
            return
        watcher.user.watchers -= 1
        if not watcher.user.watchers:
            del self._users[client.account.uid]
        if not self._watchers:
            self._context.router.on_interest = None
        work = self._context.running.work
        work.empty(client.account.uid, watcher.watches, lambda raw: self._take_out(watcher, raw), TAKEN_OUT_A_STEP)

    def review(self, client: Outbound) -> Iterator[None]:
        """The rules have changed: a client may see less, or more, of the keys that it watches."""
        watcher = self._watchers.get(client)
        if watcher is not None:
            for number, watch in enumerate(list(watcher.watches.values()), 1):
                watcher.user.look_at(watch)
                if not number % HANDED_A_STEP:
                    yield

    def watched(self, client: Outbound) -> list[bytes]:
        """Return the patterns that a client watches."""
        watcher = self._watchers.get(client)
        return list(watcher.watches) if watcher is not None else []

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
        is_monitored = pattern is not None and pattern.mark == self._context.router.namespace.mark
        if self._watchers and not is_monitored:
            self._changes.add(pattern)
            self._handing.wake(self._context.running.credentials.uid if account is None else account.uid)

    def _hand_out(self, user: int) -> Steps:
        """Hand all changes to each user that watches."""
        changes, self._changes = self._changes, Changes()
        try:
            for number, watching in enumerate(list(self._users.values()), 1):
                watching.take_note(changes)
                if not number % HANDED_A_STEP:
                    yield
        except Exception:
            self._changes.add(None)  # some were not handed any
            raise
        return None
