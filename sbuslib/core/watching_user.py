"""Watches of interest of one user: what its clients watch, compared with what has changed, in turns of this user.

The state of a key is asked of the router. A pattern has addressees if one that is held has keys in common with it. That
one is its *witness*: as long as it is held nothing else has to be looked at. Where no witness is left, the pattern is
compared once with all that are held, and from then on only with those that come. So a change costs a user as many
comparisons as it has watches, and a new watch as many as there are patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from ..errors import ReservedKeyError
from ..keys.covering import may_meet
from ..matcher import Pattern
from ..wire.presence import encode_interest
from .client_feed import ClientFeed
from .context import Context
from .outbound import Outbound
from .recurring_job import RecurringJob, Steps

COMPARED_A_STEP: Final = 256
"""Pairs of patterns that one step compares: some 0.3 ms."""

LOOKED_AT_A_STEP: Final = 64
"""Watches that one step looks at: some 0.3 ms."""

CHANGES: Final = 1_024
"""Changed patterns that are noted one by one, for each user; beyond them, all watches are looked at anew."""

CANDIDATES: Final = 16
"""Changed patterns that a watch is looked at for; beyond them, it is compared with all."""


class Changes:
    """Patterns that came or went, each once."""

    def __init__(self) -> None:
        self.patterns: dict[bytes, Pattern] = {}  # by name
        self.any = False  # any key may be concerned

    def __bool__(self) -> bool:
        return self.any or bool(self.patterns)

    def add(self, pattern: Pattern | None) -> None:
        """Note one; ``None``: any key may be concerned."""
        if pattern is not None and not self.any and len(self.patterns) < CHANGES:
            self.patterns[pattern.name] = pattern
        elif pattern is None or pattern.name not in self.patterns:
            self.any = True
            self.patterns = {}


class WatchedPattern:
    """A key or pattern that one client watches."""

    __slots__ = ("candidates", "is_compared", "pattern", "presumed", "sent", "state", "watcher", "witness")

    def __init__(self, watcher: InterestWatcher, pattern: Pattern) -> None:
        self.watcher = watcher
        self.pattern = pattern
        self.state = b"unknown"  # as it was found last
        self.sent = b""  # the state that the client was sent last; empty: none yet
        self.witness: bytes | None = None  # a pattern that was held and has keys in common
        self.presumed: bytes | None = None  # one that was only presumed, with its mark, and has
        self.candidates: list[bytes] = []  # patterns with keys in common that came or went, with their marks
        self.is_compared = False  # whether it was compared with all that are held, until there was one, and since then


class InterestWatcher(ClientFeed):
    """One client that watches, which is sent the states that have changed."""

    def __init__(self, context: Context, client: Outbound, user: WatchingUser) -> None:
        super().__init__(context, client)
        self.user = user
        self.watches: dict[bytes, WatchedPattern] = {}  # by pattern
        self.unsent: dict[WatchedPattern, None] = {}  # with another state than it was sent

    def tell(self, watch: WatchedPattern, state: bytes) -> None:
        """A watch has this state."""
        watch.state = state
        if state != watch.sent:
            self.unsent[watch] = None
            self.wake()

    def take(self, most: int) -> tuple[list[bytes], bool]:
        packets: list[bytes] = []
        for watch in list(islice(self.unsent, most)):
            del self.unsent[watch]
            if watch.state != watch.sent:
                watch.sent = watch.state
                packets.append(encode_interest(watch.state, watch.pattern.raw))
        return packets, bool(self.unsent)


class WatchingUser(RecurringJob):
    """All watches of one user. Woken by changes, and by new watches.

    :param state: finds the state of a key for a client.
    :param has_settled: whether the hub has the interest of its tree.
    """

    def __init__(
        self, context: Context, uid: int, state: Callable[[Outbound, bytes], bytes], has_settled: Callable[[], bool]
    ) -> None:
        super().__init__(context, uid)
        self._find_state = state  # of a key
        self._has_settled = has_settled
        self.watchers = 0  # clients
        self._by_key: dict[bytes, dict[WatchedPattern, None]] = {}  # those of just a key
        self._wide: dict[WatchedPattern, None] = {}  # those of patterns
        self._changes = Changes()  # not compared yet
        self._dirty: dict[WatchedPattern, None] = {}  # to be looked at
        self._waiting: dict[WatchedPattern, None] = {}  # for the next comparison with all that are held
        self._compared: dict[WatchedPattern, None] = {}  # with all that were held when it began

    def add(self, watch: WatchedPattern) -> None:
        """One more."""
        if watch.pattern.is_literal:
            self._by_key.setdefault(watch.pattern.raw, {})[watch] = None
        else:
            self._wide[watch] = None
        self.look_at(watch)

    def remove(self, watch: WatchedPattern) -> None:
        """One less."""
        for each in (self._wide, self._dirty, self._waiting, self._compared):
            each.pop(watch, None)
        if watch.pattern.is_literal:
            watches = self._by_key[watch.pattern.raw]
            del watches[watch]
            if not watches:
                del self._by_key[watch.pattern.raw]

    def look_at(self, watch: WatchedPattern) -> None:
        """Look at one from the beginning."""
        self._mark(watch, None)
        self.wake()

    def take_note(self, changes: Changes) -> None:
        """Patterns came or went."""
        for pattern in (None,) if changes.any else changes.patterns.values():
            self._changes.add(pattern)
        self.wake()

    def _mark(self, watch: WatchedPattern, changed: bytes | None) -> None:
        """Look at a watch, for a pattern that changed; ``None``: from the beginning."""
        if changed is None or len(watch.candidates) >= CANDIDATES:
            watch.candidates.clear()
            watch.is_compared = False
            self._compared.pop(watch, None)
        elif watch.witness != changed:
            watch.candidates.append(changed)
        self._dirty[watch] = None

    def steps(self) -> Steps:
        """Find the states of all that may have another one."""
        try:
            yield from self._catch_up()
            while self._waiting:
                yield from self._compare()
                yield from self._catch_up()
        except Exception:
            self._changes.add(None)  # some were not looked at
            raise
        return None

    def _catch_up(self) -> Iterator[None]:
        while self._changes or self._dirty:
            yield from self._mark_changed()
            for watch in list(islice(self._dirty, LOOKED_AT_A_STEP)):
                del self._dirty[watch]
                self._look_at(watch)
            yield

    def _mark_changed(self) -> Iterator[None]:
        """Mark the watches that changes concern."""
        if not self._changes:
            return
        changes, self._changes = self._changes, Changes()
        wide, keys, pairs = list(self._wide), list(self._by_key), 0
        yield

        # 1. Any key: all of them.
        if changes.any:
            for watch in [*wide, *(watch for key in keys for watch in self._by_key.get(key, ()))]:
                if watch.watcher.watches.get(watch.pattern.raw) is watch:
                    self._mark(watch, None)
                pairs += 1
                if not pairs % COMPARED_A_STEP:
                    yield
            return

        # 2. Of each pattern: the keys that it matches, and the patterns that it has keys in common with.
        for changed in changes.patterns.values():
            for key in (changed.raw,) if changed.is_literal else keys:
                if key == changed.raw or changed.matches(key):
                    for watch in self._by_key.get(key, ()):
                        self._mark(watch, changed.name)
                pairs += 1
                if not pairs % COMPARED_A_STEP:
                    yield
            for watch in wide:
                if may_meet(changed, watch.pattern) and watch in self._wide:
                    self._mark(watch, changed.name)
                pairs += 1
                if not pairs % COMPARED_A_STEP:
                    yield

    def _look_at(self, watch: WatchedPattern) -> None:
        """Find the state of a watch, or have it compared with all that are held."""
        client, router, pattern = watch.watcher.client, self._context.router, watch.pattern

        # 1. Of a key, and where nothing may be known.
        if pattern.is_literal:
            watch.candidates.clear()
            try:
                watch.watcher.tell(watch, self._find_state(client, pattern.raw))
            except ReservedKeyError:
                watch.watcher.tell(watch, b"unknown")
            return
        candidates, watch.candidates = watch.candidates, []
        may_know = self._context.authorization.allows(client.account, client.credentials, "publish", pattern.raw)
        if not may_know or router.namespace.uses_reserved(pattern.raw):
            watch.watcher.tell(watch, b"unknown")
            return

        # 2. A witness: most likely the one that was found last.
        held = [
            other for other in (watch.witness, watch.presumed, *candidates) if other and self._is_held(client, other)
        ]
        for other in held:
            if not router.namespace.unmark(other)[0]:
                self._note_witness(watch, other)
                return

        # 3. None is left, or known: then it is as before until it is known.
        presumed = held[0] if held else None
        if watch.witness is not None or (watch.presumed is not None and presumed is None):
            watch.is_compared = False
            self._compared.pop(watch, None)  # from the beginning: others were not noted
        watch.witness, watch.presumed = None, presumed
        if watch.is_compared:
            watch.watcher.tell(watch, self._unwitnessed(watch))
        else:
            if watch not in self._compared:
                self._waiting[watch] = None
            if self._compared:
                self._keep_waiting(watch)

    @staticmethod
    def _keep_waiting(watch: WatchedPattern) -> None:
        """A client is sent something, although this takes long."""
        watch.watcher.tell(watch, watch.sent or b"unknown")

    def _note_witness(self, watch: WatchedPattern, witness: bytes) -> None:
        watch.witness, watch.presumed = witness, None
        self._compared.pop(watch, None)
        self._waiting.pop(watch, None)
        watch.watcher.tell(watch, b"yes")

    def _unwitnessed(self, watch: WatchedPattern) -> bytes:
        """The state of a pattern without a witness."""
        return b"no" if watch.presumed is None and self._has_settled() else b"unknown"

    def _compare(self) -> Iterator[None]:
        """Compare watches with all patterns that are held, a few of them at a time. Those that come meanwhile are
        changes."""
        # 1. All that wait, at once.
        router, step = self._context.router, COMPARED_A_STEP
        separator = router.namespace.separator
        self._compared, self._waiting = self._waiting, {}
        names = router.addressed_patterns()
        if len(names) > step:
            for watch in self._compared:
                self._keep_waiting(watch)

        # 2. Each of them with a part, and then with the next.
        for start in range(0, len(names), step):
            yield
            chunk = [
                Pattern(raw, separator, mark) for mark, raw in map(router.namespace.unmark, names[start : start + step])
            ]
            for watch in list(self._compared):
                if watch in self._compared:
                    self._compare_with(watch, chunk)
                    yield
            yield from self._catch_up()
            if not self._compared:
                return

        # 3. Nothing has keys in common with those that remain.
        for watch in self._compared:
            watch.is_compared = True
            watch.watcher.tell(watch, self._unwitnessed(watch))
        self._compared = {}

    def _compare_with(self, watch: WatchedPattern, chunk: list[Pattern]) -> None:
        for other in chunk:
            if may_meet(watch.pattern, other) and self._is_held(watch.watcher.client, other.name):
                if not other.mark:
                    self._note_witness(watch, other.name)
                    return
                if watch.presumed is None:
                    watch.presumed = other.name  # all that is known comes before

    def _is_held(self, client: Outbound, name: bytes) -> bool:
        """Return whether a pattern has a holder, the client itself without echo aside."""
        holders = self._context.router.holders(name)
        return len(holders) > (not client.has_echo and client in holders)
