"""Events of one hub, each reported once: to the log, and to listeners.

Clients could cause events without end. So only some events of one user are reported in an hour, and then the number of
further ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, time
from typing import Final

from ..kernel.users import name_of_user, program_of
from ..secrets import Credentials
from ..wire.events import LONGEST_TEXT, HubEvent, shown
from .callback_errors import log

MOST: Final = 60
"""Events of one user that are reported in :data:`SPAN`. A user whose messages are lost again and again causes at most
two in a dozen seconds."""

SPAN: Final = 3_600.0
"""Seconds."""

_USERS: Final = 256
"""Users whose events are counted separately. All others together have as many as one."""

LATEST: Final = 64
"""Events that are kept for later listeners, for example a recorder that joins again after a restart of its hub."""


@dataclass(slots=True)
class _Share:
    """The events of one user since ``began``, by the monotonic clock."""

    began: float
    count: int = 0


class Events:
    """The events of one hub. Nothing here may be called while the receive buffer is in use.

    :param address: returns the address at which the hub listens.
    """

    def __init__(self, address: Callable[[], str]) -> None:
        self._address = address
        self.listeners: list[Callable[[HubEvent], None]] = []
        """Called with each event, which was logged before."""
        self.latest: deque[HubEvent] = deque(maxlen=LATEST)
        """The last ones, oldest first."""
        self._shares: dict[int, _Share] = {}  # by user; -1: all further ones
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
        if credentials is not None and not self._has_share(uid):
            return

        # 2. With names, which are looked up now: the process may be gone soon.
        user = shown(name_of_user(uid)) if uid >= 0 else ""
        program = shown(program_of(pid)) if pid else ""
        what = (cause[:LONGEST_TEXT], key[:LONGEST_TEXT], count, seconds)
        self._pass_on(HubEvent(kind, self._now(), shown(self._address()), uid, user, pid, program, *what))

    def _has_share(self, uid: int) -> bool:
        """Count an event of a user. Returns whether it is reported."""
        self.sum_up()
        who = uid if uid in self._shares or len(self._shares) < _USERS else -1
        share = self._shares.setdefault(who, _Share(monotonic()))
        share.count += 1
        return share.count <= MOST

    def sum_up(self, *, ends: bool = False) -> None:
        """Report how many events were left out, of users whose time is over; ``ends``: of all."""
        now = monotonic()
        for uid, share in [*self._shares.items()]:
            if ends or now - share.began >= SPAN:
                del self._shares[uid]
                if (more := share.count - MOST) > 0:
                    user = shown(name_of_user(uid)) if uid >= 0 else ""
                    self._pass_on(HubEvent("more", self._now(), shown(self._address()), uid, user, count=more))

    def _now(self) -> float:
        self._time = max(time(), self._time + 1e-6)  # a clock that is set back changes no order
        return self._time

    def _pass_on(self, event: HubEvent) -> None:
        self.latest.append(event)
        log(event.level, "%s", event.text, event=event)
        for listener in [*self.listeners]:
            listener(event)
