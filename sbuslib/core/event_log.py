"""Events of one hub, each reported once: to the log, and to listeners.

Clients could cause events without end, and one person may have thousands of user ids. So only some events of one user
are reported in an hour, and then the number of further ones. Beyond so many users, all further ones have one event a
minute together. Two kinds of events share nothing with those of strangers: events of users that the hub's owner named
(root, those it trusts, and relays), and those about losses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import monotonic, time
from typing import Final

import msgspec

from ..kernel.users import name_of_user, program_of
from ..secrets import Credentials
from ..wire.events import LONGEST_TEXT, MOST_USERS, HubEvent, shown
from .callback_errors import log

MOST: Final = 60
"""Events of one user that are reported in :data:`SPAN`. A user whose messages are lost again and again causes at most
two in a dozen seconds."""

SPAN: Final = 3_600.0
"""Seconds."""

COMMON_PAUSE: Final = 60.0
"""Seconds from one event to the next of users who are not counted separately."""

_USERS: Final = 256
"""Users whose events are counted separately, beside those that the hub's owner named."""

_LOSERS: Final = 4_096
"""Users whose losses are counted separately: so many at once cost a stranger as many processes that read nothing."""

_LOSSES: Final = frozenset({"loses", "lost"})
"""Kinds of events about losses."""

LATEST: Final = 64
"""Events that are kept for later listeners, for example a recorder that joins again after a restart of its hub."""


@dataclass(slots=True)
class _Share:
    """The events of one user since ``began``, by the monotonic clock."""

    began: float
    count: int = 0

    def take(self, now: float) -> bool:
        """Count an event. Returns whether it is reported."""
        self.count += 1
        return self.count <= MOST

    @property
    def omitted(self) -> int:
        """How many events were not reported."""
        return max(0, self.count - MOST)

    @property
    def users(self) -> int:
        """Whose they were."""
        return 1


@dataclass(slots=True)
class _CommonShare(_Share):
    """The events of all users that are not counted separately."""

    reported: int = 0
    reported_at: float = -SPAN  # by the monotonic clock
    uids: set[int] = field(default_factory=set)  # at most MOST_USERS

    @property
    def omitted(self) -> int:
        """How many events were not reported."""
        return self.count - self.reported

    @property
    def users(self) -> int:
        """How many users they were of, or more."""
        return len(self.uids)

    def take(self, now: float) -> bool:
        """Count an event. Returns whether it is reported."""
        self.count += 1
        if now - self.reported_at < COMMON_PAUSE:
            return False
        self.reported, self.reported_at = self.reported + 1, now
        return True


class _Shares:
    """The shares of some users: for :data:`SPAN` from the first event on, oldest first."""

    def __init__(self, most: float) -> None:
        self._most = most  # users that are counted separately
        self._shares: dict[int, _Share] = {}  # by user; -1: all further ones

    def take(self, uid: int, now: float) -> bool:
        """Count an event of a user. Returns whether it is reported."""
        share = self._shares.get(uid)
        if share is None and len(self._shares) < self._most:
            share = self._shares[uid] = _Share(now)
        if share is None:
            common = self._shares.setdefault(-1, _CommonShare(now))
            assert isinstance(common, _CommonShare)
            if len(common.uids) < MOST_USERS:
                common.uids.add(uid)
            share = common
        return share.take(now)

    def take_ended(self, now: float, *, ends: bool) -> list[tuple[int, _Share]]:
        """Take out those whose time is over; ``ends``: all."""
        ended = []
        while self._shares:
            uid, share = next(iter(self._shares.items()))
            if not ends and now - share.began < SPAN:
                break
            del self._shares[uid]
            ended.append((uid, share))
        return ended

    def __len__(self) -> int:
        return len(self._shares)


class Events:
    """The events of one hub. Nothing here may be called while the receive buffer is in use.

    :param address: returns the address at which the hub listens.
    """

    def __init__(self, address: Callable[[], str]) -> None:
        self._address = address
        self.named: list[Callable[[int], bool]] = []
        """Whether the hub's owner named a user, in any of its settings."""
        self.listeners: list[Callable[[HubEvent], None]] = []
        """Called with each event, which was logged before."""
        self.latest: deque[HubEvent] = deque(maxlen=LATEST)
        """The last ones, oldest first."""
        # Of users that the owner named, who are few; of losses; and of all else.
        self._of_named, self._of_losses, self._of_others = _Shares(inf), _Shares(_LOSERS), _Shares(_USERS)
        self._time = 0.0  # of the last event

    def emit(
        self,
        kind: str,
        credentials: Credentials | None = None,
        *,
        cause: str = "",
        key: str = "",
        count: int = 0,
        seconds: float = 0,
    ) -> None:
        """Report an event; ``credentials`` are those of the client that it is about, if any.

        ``cause`` and ``key`` are words of this hub, or went through :mod:`sbuslib.wire.events`.
        """
        # 1. Not more of one user than its share.
        uid, pid = (credentials.uid, max(0, credentials.pid)) if credentials is not None else (-1, 0)
        if credentials is not None and not self._has_share(uid, kind):
            return

        # 2. With names, which are looked up now: the process may be gone soon.
        user = shown(name_of_user(uid)) if uid >= 0 else ""
        program = shown(program_of(pid)) if pid else ""
        what = (cause[:LONGEST_TEXT], key[:LONGEST_TEXT], count, seconds)
        self._pass_on(HubEvent(kind, self._now(), shown(self._address()), uid, user, pid, program, *what))

    def is_named(self, uid: int) -> bool:
        """Whether the hub's owner named a user: its events are reported, whatever strangers do."""
        return any(names(uid) for names in self.named)

    def _has_share(self, uid: int, kind: str) -> bool:
        """Count an event of a user. Returns whether it is reported."""
        self.sum_up()
        shares = self._of_named if self.is_named(uid) else self._of_losses if kind in _LOSSES else self._of_others
        return shares.take(uid, monotonic())

    def sum_up(self, *, ends: bool = False) -> None:
        """Report how many events were left out, of users whose time is over; ``ends``: of all."""
        now = monotonic()
        for shares in (self._of_named, self._of_losses, self._of_others):
            for uid, share in shares.take_ended(now, ends=ends):
                if share.omitted:
                    user = shown(name_of_user(uid)) if uid >= 0 else ""
                    whose = HubEvent("more", self._now(), shown(self._address()), uid, user)
                    self._pass_on(msgspec.structs.replace(whose, count=share.omitted, users=share.users))

    def _now(self) -> float:
        self._time = max(time(), self._time + 1e-6)  # a clock that is set back changes no order
        return self._time

    def _pass_on(self, event: HubEvent) -> None:
        self.latest.append(event)
        log(event.level, "%s", event.text, event=event)
        for listener in [*self.listeners]:
            listener(event)
