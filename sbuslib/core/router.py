"""Router: finds the receivers of a message by its header, with the indexes, the reserved keys and the cache.

No input or output here: a receiver is any hashable object. There are four indexes. Only the second is asked about
secret keys, and it holds only patterns that :class:`~sbuslib.secrets.Namespace` accepted. So no wildcard can reach
somebody's secrets. The third has the patterns of *monitors*, which receive what others are sent and are no addressees:
a key that only monitors receive is not wanted. The fourth has the patterns that are only *presumed*: a link to another
hub holds them in the place of patterns that this hub does not know, so nobody knows whether their keys are wanted.
Patterns of the last two bear a mark wherever the four stand side by side.

:attr:`Router.routes` is the cache that the hub's hot path reads directly: from the whole header of a
message, ``MSG <key>NUL``, to the tuple of its receivers. Equal tuples are one object, so messages for the same
receivers are found by identity even if their keys differ.

**What a change of patterns costs others.** A pattern that comes or goes makes the router forget the routes of keys that
it matches, and no others. The search for these keys is part of the subscriber's turn, so its user pays for it and no
publisher does. It compares up to :data:`COMPARED` keys. If more keys come into question, all routes are forgotten. To
bring that about, a user has to publish that many keys itself, each time again, which costs its own turns more than it
costs other publishers.

A client that leaves makes the router forget the routes that name it, in one pass over all remembered routes for all
clients that left since the last pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import chain
from typing import Final, Generic, TypeVar

from ..errors import PacketError, ReservedKeyError
from ..limits import Limits
from ..matcher import Pattern, Subscriptions
from ..reasons import Reason
from ..secrets import RESERVED, Credentials, Namespace
from ..wire.packets import MSG
from .quotas import Account, Quotas

S = TypeVar("S", bound=Hashable)

CACHED_HEADER_BYTES: Final = 512
"""Longest header, which is ``MSG``, the key and a NUL, that is remembered. With ``Limits.cached_keys`` it bounds the
memory of the cache. Longer keys are rare, and each is looked up anew."""

COMPARED: Final = 4_096
"""Most remembered keys that a pattern is compared with when it comes or goes: that takes some three milliseconds, less
than a turn may."""


class Router(Generic[S]):
    """The receivers of each message on one hub. Not for several threads at once."""

    def __init__(self, limits: Limits, quotas: Quotas, separator: bytes) -> None:
        self.namespace = Namespace(separator)  # which keys are secret
        self.routes: dict[bytes, tuple[S, ...]] = {}  # receivers by header
        self.version = 0
        """Goes up whenever a remembered route is forgotten, so that other caches of routes know when to forget."""
        self.watch: Callable[[S, Account, Pattern, bool], None] | None = None
        """Called with each plain pattern that a subscriber begins (``True``) or ceases (``False``) to hold."""
        self.adjust: Callable[[bytes, bool, tuple[S, ...]], tuple[S, ...]] | None = None
        """The receivers of a key, which may be secret, besides or but for the parent."""
        self.on_interest: Callable[[Pattern | None, Account | None], None] | None = None
        """Called where keys that a pattern matches may have other addressees, with the account of who changed that;
        ``None``: any keys, and the hub itself."""
        self._limits = limits
        self._quotas = quotas
        self._plain: Subscriptions[S] = Subscriptions(separator)  # of all keys that are not secret
        self._secret: Subscriptions[S] = Subscriptions(separator)  # of keys that are
        self._monitored: Subscriptions[S] = Subscriptions(separator, self.namespace.mark)  # plain keys, for monitors
        self._presumed: Subscriptions[S] = Subscriptions(separator, self.namespace.presumption)  # the same, for links
        self._marked = {index.mark: index for index in (self._monitored, self._presumed)}  # the last two, by mark
        self._taps: dict[S, bool] = {}  # who listens in, and whether to secrets
        self._retired: dict[int, deque[tuple[S, Account]]] = {}  # subscribers that left, by user
        self._tuples: dict[tuple[S, ...], tuple[S, ...]] = {}
        self._subscribers: set[S] = set()  # all that subscribed and did not leave: tuples may name them
        self._remembered = 0  # receivers in all tuples made since all was forgotten: at least those in routes

    def patterns(self, subscriber: S) -> dict[bytes, int]:
        """The patterns that ``subscriber`` holds, with how many times it subscribed to each."""
        held = self._plain.patterns(subscriber) | self._secret.patterns(subscriber)
        for mark, index in self._marked.items():
            held |= {mark + raw: times for raw, times in index.patterns(subscriber).items()}
        return held

    def pattern_count(self) -> int:
        """How many patterns all subscribers hold: each pattern counts once for each subscriber."""
        return sum(map(len, self._indexes))

    @property
    def _indexes(self) -> tuple[Subscriptions[S], ...]:
        return self._plain, self._secret, self._monitored, self._presumed

    def count(self, subscriber: S) -> int:
        """How many distinct patterns ``subscriber`` holds."""
        return sum(index.count(subscriber) for index in self._indexes)

    def check_size(self, pattern: bytes) -> None:
        """Raise :exc:`~sbuslib.errors.PacketError` for a pattern beyond the limits."""
        reason = why_too_large(pattern, self._limits, self.namespace.separator)
        if reason is not None:
            raise PacketError(reason)

    def cut(self, raw: bytes, mark: bytes = b"") -> Pattern:
        """A pattern as a client wrote it, with a mark or none. Raises :exc:`~sbuslib.errors.PacketError` beyond
        the limits."""
        self.check_size(raw)
        return Pattern(raw, self.namespace.separator, mark)

    def cut_marked(self, name: bytes) -> Pattern:
        """A pattern as another hub wrote it, which may bear a mark. Raises as :meth:`cut`."""
        mark, raw = self.namespace.unmark(name)
        return self.cut(raw, mark)

    def _find(self, name: bytes) -> tuple[Subscriptions[S], bytes]:
        """The index of a pattern that may bear a mark, and the pattern without it."""
        mark, raw = self.namespace.unmark(name)
        return self._index(mark, self.namespace.is_secret(raw)), raw

    def _index(self, mark: bytes, is_secret: bool) -> Subscriptions[S]:
        return self._marked[mark] if mark else self._secret if is_secret else self._plain

    def subscribe(self, pattern: Pattern, subscriber: S, credentials: Credentials, account: Account) -> None:
        """Put a ``SUB`` of a pattern from :meth:`cut` in force, charged to the subscriber's account.

        Raises :exc:`~sbuslib.errors.ReservedKeyError` for a use of the reserved token that these
        credentials do not allow, and :exc:`~sbuslib.errors.PacketError` beyond the limits.
        """
        is_secret = self.namespace.check_pattern(pattern.raw, credentials)
        if is_secret and pattern.mark:
            raise ReservedKeyError(Reason.RESERVED_IN_PATTERN)
        index = self._index(pattern.mark, is_secret)
        if not index.holds(pattern.raw, subscriber) and not self._quotas.take_pattern(account, pattern):
            raise PacketError(Reason.TOO_MANY_PATTERNS)
        self._add(index, pattern, subscriber, account)

    def subscribe_anyway(
        self, pattern: bytes, subscriber: S, account: Account, credentials: Credentials | None = None, times: int = 1
    ) -> None:
        """Put so many ``SUB`` in force, even beyond the limits: for a link, and for clients that another hub had
        accepted.

        Without ``credentials`` the pattern is plain, or bears a mark. Raises
        :exc:`~sbuslib.errors.ReservedKeyError` as :meth:`subscribe`.
        """
        mark, raw = self.namespace.unmark(pattern)
        is_secret = credentials is not None and self.namespace.check_pattern(raw, credentials)
        index = self._index(mark, is_secret)
        cut = Pattern(raw, self.namespace.separator, index.mark)
        if not index.holds(raw, subscriber):
            self._quotas.force_pattern(account, cut)
        self._add(index, cut, subscriber, account, times)

    def _add(self, index: Subscriptions[S], pattern: Pattern, subscriber: S, account: Account, times: int = 1) -> None:
        if index.add(pattern, subscriber, times):
            self._subscribers.add(subscriber)
            self._changed(index, pattern, subscriber, account, True)

    def _changed(
        self, index: Subscriptions[S], pattern: Pattern, subscriber: S, account: Account, wanted: bool
    ) -> None:
        """A subscriber began or ceased to hold a pattern."""
        if not wanted:
            self._quotas.give_pattern(account, pattern)
        self.reconsider(pattern)
        if self.watch is not None and index is not self._secret:
            self.watch(subscriber, account, pattern, wanted)
        if self.on_interest is not None and index is not self._monitored:
            self.on_interest(pattern, account)

    def unsubscribe(self, pattern: bytes, subscriber: S, account: Account) -> bool:
        """Take one ``SUB`` back; ``False`` when there was none to take."""
        index, raw = self._find(pattern)
        if not index.holds(raw, subscriber):
            return False  # not cut first: nobody has looked at its length
        cut = Pattern(raw, self.namespace.separator, index.mark)
        if index.remove(cut, subscriber):
            self._changed(index, cut, subscriber, account, False)
        return True

    def times(self, pattern: bytes, subscriber: S) -> int:
        """How many times ``subscriber`` subscribed to a pattern."""
        index, raw = self._find(pattern)
        return index.times(raw, subscriber)

    def withdraw(self, pattern: bytes, subscriber: S, account: Account) -> None:
        """Take all subscriptions to a pattern back."""
        index, raw = self._find(pattern)
        cut = Pattern(raw, self.namespace.separator, index.mark)
        if index.withdraw(cut, subscriber):
            self._changed(index, cut, subscriber, account, False)

    def retire(self, subscriber: S, account: Account) -> bool:
        """``subscriber`` leaves. Returns whether :meth:`forget_some` has work to do for its user from now on.

        Its patterns leave the index in small steps, since there may be a hundred thousand. Until then it is
        still among the receivers, and must ignore messages.
        """
        was_tap = self._taps.pop(subscriber, None) is not None
        if not (was_tap or subscriber in self._subscribers):
            return False
        retired = self._retired.setdefault(account.uid, deque())
        retired.append((subscriber, account))
        return len(retired) == 1

    def forget_some(self, count: int, user: int) -> bool:
        """Take up to ``count`` patterns of a user's retired subscribers out. Returns whether more are left."""
        gone: set[S] = set()
        while count and (retired := self._retired.get(user)):
            # 1. A pattern of the first of them. No routes are forgotten for it: see _forget_receivers.
            subscriber, account = retired[0]
            for index in (self._plain, self._monitored, self._presumed):
                if (pattern := index.discard_one(subscriber)) is not None:
                    break
            if pattern is not None and self.watch is not None:
                self.watch(subscriber, account, pattern, False)
            if pattern is None:
                pattern = self._secret.discard_one(subscriber)

            # 2. It had no more.
            if pattern is None:
                retired.popleft()
                if not retired:
                    del self._retired[user]
                self._subscribers.discard(subscriber)
                gone.add(subscriber)
                continue

            if self.on_interest is not None:
                self.on_interest(pattern, account)
            self._quotas.give_pattern(account, pattern)
            count -= 1
        if gone:
            self._forget_receivers(gone)
        return self.has_retired(user)

    def has_retired(self, user: int) -> bool:
        """Whether subscribers of a user left whose patterns are still in the index."""
        return user in self._retired

    def forget_all_retired(self) -> None:
        for user in list(self._retired):
            while self.forget_some(1_024, user):
                pass

    def forget_secrets(self, subscriber: S, account: Account) -> bool:
        """Take all secret patterns of a subscriber out. Returns whether there were any."""
        found = False
        while (pattern := self._secret.discard_one(subscriber)) is not None:
            self._changed(self._secret, pattern, subscriber, account, False)
            found = True
        return found

    def add_tap(self, tap: S, secrets: bool) -> None:
        """From now on ``tap`` receives every message, and does not count as a subscriber."""
        self._taps[tap] = secrets
        self._forget_all()

    def route(self, header: bytes) -> tuple[S, ...]:
        """The receivers of a message with this header, looked up and remembered.

        Raises :exc:`~sbuslib.errors.ReservedKeyError` when nobody may publish under that key.
        """
        found = self._look_up(header[len(MSG) : -1])
        if len(header) <= CACHED_HEADER_BYTES:
            if len(self.routes) >= self._limits.cached_keys:
                self._forget_all()
            self.routes[header] = found
        return found

    def is_wanted(self, key: bytes, but: S | None = None) -> bool | None:
        """Whether a key has addressees, one subscriber aside; *None* where nobody knows. Raises as :meth:`route`."""
        if self.namespace.check_key(key):
            known = self._secret.subscribers(key)
            presumed = self._adjusted(key, True, known)  # with the parent: who holds secrets above is never known
        else:
            known = self._adjusted(key, False, self._plain.subscribers(key))
            presumed = self._adjusted(key, False, self._presumed.subscribers(key))
        if len(known) > (but in known):
            return True
        return None if len(presumed) > (but in presumed) else False

    def _adjusted(self, key: bytes, secret: bool, receivers: tuple[S, ...]) -> tuple[S, ...]:
        return receivers if self.adjust is None else self.adjust(key, secret, receivers)

    def is_received(self, key: bytes, but: S | None = None) -> bool:
        """Return whether a key has receivers, with monitors, but without taps and one subscriber. Raises as
        :meth:`route`.
        """
        found = self._receivers(key, self.namespace.check_key(key))
        return len(found) > (but in found)

    def _receivers(self, key: bytes, secret: bool) -> tuple[S, ...]:
        found = (self._secret if secret else self._plain).subscribers(key)
        if not secret and (others := self._monitored.subscribers(key) + self._presumed.subscribers(key)):
            found = tuple(dict.fromkeys((*found, *others)))
        return self._adjusted(key, secret, found)

    def receivers(self, key: bytes) -> tuple[S, ...]:
        """The receivers of a key: subscribers, the parent, and who listens in. Not remembered. Raises as
        :meth:`route`."""
        secret = self.namespace.check_key(key)
        found = self._receivers(key, secret)
        if self._taps:
            taps = (tap for tap, secrets in self._taps.items() if secrets or not secret)
            found = tuple(dict.fromkeys((*found, *taps)))
        return found

    def _look_up(self, key: bytes) -> tuple[S, ...]:
        found = self.receivers(key)

        # Equal tuples are one object.
        known = self._tuples.get(found)
        if known is None:
            if len(self._tuples) >= self._limits.cached_keys:
                self._tuples.clear()
            self._remembered += len(found)
            if self._remembered > self._limits.cached_receivers:
                self._forget_all()
            known = self._tuples[found] = found
        return known

    def plain_patterns_of(self, subscriber: S) -> list[bytes]:
        """The patterns of one subscriber that are not secret."""
        names = self._plain.names(subscriber)
        for mark, index in self._marked.items():
            names += [mark + raw for raw in index.names(subscriber)]
        return names

    def secret_patterns_of(self, subscriber: S) -> list[bytes]:
        """The others."""
        return self._secret.names(subscriber)

    def all_patterns(self) -> list[bytes]:
        """All patterns that anybody holds and that are not secret, each once."""
        marked = (mark + raw for mark, index in self._marked.items() for raw in index.everything())
        return [*self._plain.everything(), *marked]

    def addressed_patterns(self) -> list[bytes]:
        """The patterns of them whose holders are addressees; then those of which that is presumed, with the mark."""
        presumption = self.namespace.presumption
        return [*self._plain.everything(), *(presumption + raw for raw in self._presumed.everything())]

    @property
    def distinct_patterns(self) -> int:
        """How many these are."""
        return sum(index.distinct() for index in self._indexes if index is not self._secret)

    def holders(self, pattern: bytes) -> Collection[S]:
        """Return the holders of just this pattern, which is not secret. Links ask this many times for each change."""
        if not pattern.startswith(RESERVED):
            return self._plain.holders(pattern)
        mark, raw = self.namespace.unmark(pattern)
        return (self._marked[mark] if mark else self._plain).holders(raw)

    def reconsider(self, pattern: Pattern) -> None:
        """A pattern came or went: forget the routes of the keys that it matches."""
        if pattern.is_literal:
            self._forget([b"MSG %b\0" % pattern.raw])
            return
        if not pattern.segments:
            self._forget_all()
            return
        stem = MSG + pattern.raw.partition(b"*")[0]
        headers = [header for header in self.routes if header.startswith(stem)]
        if len(headers) > COMPARED:
            self._forget_all()
            return
        self._forget([header for header in headers if pattern.matches(header[len(MSG) : -1])])

    def reconsider_key(self, key: bytes) -> None:
        """The result of ``adjust`` for a key has changed."""
        self._forget([b"MSG %b\0" % key])
        if self.on_interest is not None:
            self.on_interest(Pattern(key, self.namespace.separator), None)

    def _forget(self, headers: Iterable[bytes]) -> None:
        for header in headers:
            if self.routes.pop(header, None) is not None:
                self.version += 1

    def _forget_receivers(self, gone: set[S]) -> None:
        """Forget all routes that name a receiver that has left: else it would never be freed."""
        distinct = {id(found): found for found in chain(self.routes.values(), self._tuples.values())}
        named = {number for number, found in distinct.items() if not gone.isdisjoint(found)}
        if not named:
            return
        headers = [header for header, found in self.routes.items() if id(found) in named]
        if len(headers) > COMPARED:
            self._forget_all()
            return
        self._forget(headers)
        for number in named:
            self._tuples.pop(distinct[number], None)

    def reconsider_all(self) -> None:
        """The result of ``adjust`` for any key may have changed."""
        self._forget_all()
        if self.on_interest is not None:
            self.on_interest(None, None)

    def _forget_all(self) -> None:
        self.version += 1
        self._remembered = 0
        self.routes.clear()
        self._tuples.clear()


def why_too_large(pattern: bytes, limits: Limits, separator: bytes) -> Reason | None:
    """Return why no client may hold a pattern, even as its only one; ``None``: it may."""
    if len(pattern) > limits.pattern_bytes:
        return Reason.PATTERN_TOO_LONG
    return Reason.TOO_MANY_SEGMENTS if pattern.count(separator) >= limits.pattern_segments else None
