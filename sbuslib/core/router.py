"""From the header of a message to its receivers: the indexes, the reserved keys and the cache, together.

Pure: a receiver is any hashable object. Two indexes stand side by side. The plain one never sees a
secret key, and only the second, which holds nothing but patterns accepted by
:class:`~sbuslib.secrets.Namespace`, is asked about one; so no wildcard can reach somebody's secrets.

:attr:`Router.routes` is the cache that the hub's hot path reads directly: from the whole header of a
message, ``MSG <key>NUL``, to the tuple of its receivers. Equal tuples are one object, so a run of messages
for the same receivers is found by identity even where the keys differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from ..errors import PacketError
from ..limits import Limits
from ..matcher import SEPARATOR, Subscriptions, is_literal
from ..secrets import Credentials, Namespace
from ..wire.packets import MSG
from .quotas import Account, Quotas

__all__ = ["Router"]

S = TypeVar("S", bound=Hashable)


class Router(Generic[S]):
    """Who receives what on one hub. Not for several threads at once."""

    def __init__(self, limits: Limits, quotas: Quotas, separator: bytes = SEPARATOR) -> None:
        self.namespace = Namespace(separator)
        self.routes: dict[bytes, tuple[S, ...]] = {}
        self.version = 0
        """Goes up whenever a remembered route may have become wrong: for caches elsewhere."""
        self.watch: Callable[[S, Account, bytes, bool], None] | None = None
        """Called with each plain pattern that a subscriber begins (``True``) or ceases to hold, and its account."""
        self._above: tuple[S, Callable[[bytes, bool], bool]] | None = None
        self._limits = limits
        self._quotas = quotas
        self._plain: Subscriptions[S] = Subscriptions(separator)
        self._secret: Subscriptions[S] = Subscriptions(separator)
        self._taps: dict[S, bool] = {}
        self._retired: dict[int, deque[tuple[S, Account]]] = {}  # subscribers that left, by user
        self._tuples: dict[tuple[S, ...], tuple[S, ...]] = {}
        # What routes held when it was last full. A key in use moves back from here at its next miss, so two
        # generations do what an eviction list would, at no cost for a hit.
        self._older: dict[bytes, tuple[S, ...]] = {}
        # The same headers by the first segments of their keys, so that a pattern that begins with a literal one
        # makes the hub forget no more than what it may match.
        self._by_stem: dict[bytes, set[bytes]] = {}
        self._older_by_stem: dict[bytes, set[bytes]] = {}
        self._remembered = 0  # receivers in all tuples made since all was forgotten: no fewer than routes hold

    def patterns(self, subscriber: S) -> dict[bytes, int]:
        """What ``subscriber`` holds: pattern to count."""
        return self._plain.patterns(subscriber) | self._secret.patterns(subscriber)

    def pattern_count(self) -> int:
        """Pairs of subscriber and distinct pattern in force."""
        return len(self._plain) + len(self._secret)

    def count(self, subscriber: S) -> int:
        """How many distinct patterns ``subscriber`` holds."""
        return self._plain.count(subscriber) + self._secret.count(subscriber)

    def subscribe(self, pattern: bytes, subscriber: S, credentials: Credentials, account: Account) -> None:
        """Put a ``SUB`` in force, charged to the subscriber's account.

        Raises :exc:`~sbuslib.errors.ReservedKeyError` for a use of the reserved token that these
        credentials do not allow, and :exc:`~sbuslib.errors.PacketError` beyond the limits.
        """
        limits = self._limits
        if len(pattern) > limits.pattern_bytes:
            raise PacketError("pattern too long")
        if pattern.count(self.namespace.separator) >= limits.pattern_segments:
            raise PacketError("pattern of too many segments")
        index = self._secret if self.namespace.check_pattern(pattern, credentials) else self._plain
        if not index.holds(pattern, subscriber) and not self._quotas.take_pattern(account, self._size(pattern)):
            raise PacketError("too many patterns")
        if index.add(pattern, subscriber):
            self.reconsider(pattern)
            if self.watch is not None and index is self._plain:
                self.watch(subscriber, account, pattern, True)

    def subscribe_anyway(self, pattern: bytes, subscriber: S, account: Account) -> None:
        """Put a plain pattern in force whatever the account holds: for a link that must not go without."""
        if not self._plain.holds(pattern, subscriber):
            self._quotas.force_pattern(account, self._size(pattern))
            self._plain.add(pattern, subscriber)
            self.reconsider(pattern)
            if self.watch is not None:
                self.watch(subscriber, account, pattern, True)

    def unsubscribe(self, pattern: bytes, subscriber: S, account: Account) -> bool:
        """Take one ``SUB`` back; ``False`` when there was none to take."""
        index = self._secret if self.namespace.is_secret(pattern) else self._plain
        gone = index.remove(pattern, subscriber)
        if gone:
            self._quotas.give_pattern(account, self._size(pattern))
            self.reconsider(pattern)
            if self.watch is not None and index is self._plain:
                self.watch(subscriber, account, pattern, False)
        return gone is not None

    def retire(self, subscriber: S, account: Account) -> bool:
        """``subscriber`` wants nothing any more. ``True`` when :meth:`forget_some` has work to do for its user.

        Its patterns leave the index in small steps, since there may be a hundred thousand; until then it is
        still among the receivers, and must ignore what it is given.
        """
        if self._taps.pop(subscriber, None) is not None:
            self.reconsider_all()
        self._tuples.clear()  # whoever is named in one would never be freed
        if self.count(subscriber):
            self._retired.setdefault(account.uid, deque()).append((subscriber, account))
        return account.uid in self._retired

    def forget_some(self, count: int, user: int) -> bool:
        """Take up to ``count`` patterns of a user's retired subscribers out of the index; whether more are left."""
        while count and (retired := self._retired.get(user)):
            subscriber, account = retired[0]
            pattern = self._plain.discard_one(subscriber)
            if pattern is not None and self.watch is not None:
                self.watch(subscriber, account, pattern, False)
            if pattern is None:
                pattern = self._secret.discard_one(subscriber)
            if pattern is None:
                retired.popleft()
                if not retired:
                    del self._retired[user]
                continue
            self._quotas.give_pattern(account, self._size(pattern))
            self.reconsider(pattern)
            count -= 1
        return user in self._retired

    def forget_all_retired(self) -> None:
        """Take all patterns of retired subscribers out of the index, at once."""
        for user in list(self._retired):
            while self.forget_some(1_024, user):
                pass

    def forget_secrets(self, subscriber: S, account: Account) -> bool:
        """Take all secret patterns of a subscriber back; whether there were any."""
        found = False
        while (pattern := self._secret.discard_one(subscriber)) is not None:
            self._quotas.give_pattern(account, self._size(pattern))
            self.reconsider(pattern)
            found = True
        return found

    def set_above(self, receiver: S | None, wants: Callable[[bytes, bool], bool]) -> None:
        """``receiver`` gets what ``wants(key, is_secret)`` says, without counting as anybody who wants it."""
        self._above = None if receiver is None else (receiver, wants)
        self.reconsider_all()

    def add_tap(self, tap: S, secrets: bool) -> None:
        """From now on ``tap`` receives every message, without counting as anybody who wants it."""
        self._taps[tap] = secrets
        self.reconsider_all()

    def route(self, header: bytes) -> tuple[S, ...]:
        """The receivers of a message with this header, looked up and remembered.

        Raises :exc:`~sbuslib.errors.ReservedKeyError` when nobody may publish under that key.
        """
        found = self._older.get(header)
        if found is None:
            found = self._look_up(header[len(MSG) : -1])
        if len(header) <= self._limits.cached_key_bytes:
            if len(self.routes) >= self._limits.cached_keys:
                self._older = self.routes.copy()
                self._older_by_stem = self._by_stem
                self._by_stem = {}
                self.routes.clear()
            self.routes[header] = found
            stem = header[len(MSG) : -1].partition(self.namespace.separator)[0]
            alike = self._by_stem.get(stem)
            if alike is None:
                self._by_stem[stem] = {header}
            else:
                alike.add(header)
        return found

    def _look_up(self, key: bytes) -> tuple[S, ...]:
        secret = self.namespace.check_key(key)
        found = (self._secret if secret else self._plain).subscribers(key)
        if self._above is not None and self._above[1](key, secret):
            found = (*found, self._above[0])
        if self._taps:
            taps = (tap for tap, secrets in self._taps.items() if secrets or not secret)
            found = tuple(dict.fromkeys((*found, *taps)))
        known = self._tuples.get(found)
        if known is None:
            if len(self._tuples) >= self._limits.cached_keys:
                self._tuples.clear()
            self._remembered += len(found)
            if self._remembered > self._limits.cached_receivers:
                self.reconsider_all()
            known = self._tuples[found] = found
        return known

    def _size(self, pattern: bytes) -> int:
        """What ``pattern`` is charged for, in bytes: its own, and what it costs the index beyond them."""
        separator = self.namespace.separator
        if is_literal(pattern, separator):
            return len(pattern)
        segments = pattern.split(separator)
        size = len(pattern) + len(segments) * self._limits.segment_bytes
        # With wildcards in two segments, no more patterns match a key than it is long, squared; with each
        # further one that is multiplied, and whoever publishes the key would wait for all of them.
        if sum(b"*" in segment for segment in segments) > 2:
            size += self._limits.branching_bytes
        return size

    def is_tap(self, receiver: S) -> bool:
        """Whether a receiver only listens in."""
        return receiver in self._taps

    def plain_patterns(self) -> list[tuple[S, list[bytes]]]:
        """Every subscriber with its plain patterns, as they are now."""
        return self._plain.everything()

    def reconsider(self, pattern: bytes) -> None:
        """``pattern`` came or went: forget the routes of what it may match."""
        separator = self.namespace.separator
        if is_literal(pattern, separator):
            headers: Iterable[bytes] = (b"MSG %b\0" % pattern,)
        else:
            stem, found, _ = pattern.partition(separator)
            if b"*" in stem or not found:
                self.reconsider_all()
                return
            headers = self._by_stem.pop(stem, set()) | self._older_by_stem.pop(stem, set())
        for header in headers:
            self.routes.pop(header, None)
            self._older.pop(header, None)
        self.version += 1

    def reconsider_all(self) -> None:
        """Forget all routes."""
        self.version += 1
        self._remembered = 0
        self.routes.clear()
        self._older.clear()
        self._by_stem.clear()
        self._older_by_stem.clear()
        self._tuples.clear()
