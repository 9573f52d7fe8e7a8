"""Log of a hub about itself: begin and end of losses, repeated violations of clients, and changes of its links.

It looks at the hub every few seconds, and gives changes to the hub's :class:`~sbuslib.core.event_log.Events`, as all
parts of the hub do. :class:`JournalHandler` gives systemd each event in fields.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Hashable, Mapping
from contextlib import suppress
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from ..malformed import MALFORMED
from ..secrets import OVERFLOW_ID, Credentials
from ..wire.events import HubEvent, first_segments, shown

if TYPE_CHECKING:
    from ..core.protocols import Receiver
    from ..hub import Hub
    from ..statistics import HubStatistics, LinkStatistics

LOOK_SECONDS: Final = 2.0
"""Seconds between two looks at the hub, which take the longer the more users it has."""

SHARE: Final = 0.001
"""Share of a processor that may go into looking."""

ASK_LOOKS: Final = 3
"""Looks after which the children are asked for an answer: without that, a stopped one would not be noticed."""

QUIET_SECONDS: Final = 10.0
"""Seconds without a loss after which the losing has ended, and the sum is logged."""

_LOST: Final = "lost"
"""The word under which counts are handed on."""

Which = TypeVar("Which", bound=Hashable)


class Ended(NamedTuple, Generic[Which]):
    """A count that grows no more: by how much it has grown, in how many seconds."""

    which: Which
    grown: int
    seconds: float


class _Growth:
    """One count, from when it began to grow."""

    def __init__(self, before: int, began: float) -> None:
        self.before = before  # its value until then
        self.began = began  # seconds of the monotonic clock
        self.grew = began  # when it grew last


class Growths(Generic[Which]):
    """Counts that grow: finds those that begin to, and those that have not for :data:`QUIET_SECONDS`."""

    def __init__(self, counts: Mapping[Which, int]) -> None:
        self.counts = dict(counts)  # at the last look
        self._growing: dict[Which, _Growth] = {}

    def look(self, counts: Mapping[Which, int], now: float, *, ends: bool) -> tuple[list[Which], list[Ended[Which]]]:
        """Return the counts that begin to grow, and those that grow no more: all, if this ``ends``."""
        begun, ended = list[Which](), list[Ended[Which]]()

        # 1. Those that begin to grow, or go on.
        for which, count in counts.items():
            before = self.counts.get(which, 0)
            if count > before and which not in self._growing:
                self._growing[which] = _Growth(before, now)
                if not ends:
                    begun.append(which)
            if count > before:
                self._growing[which].grew = now

        # 2. Those that have ended, or are gone.
        for which, growth in [*self._growing.items()]:
            if ends or now - growth.grew >= QUIET_SECONDS or which not in counts:
                grown = counts.get(which, self.counts.get(which, 0)) - growth.before
                ended.append(Ended(which, grown, growth.grew - growth.began))
                del self._growing[which]
        self.counts = dict(counts)
        return begun, ended


class HubLog:
    """Watcher of a started hub: it looks every :data:`LOOK_SECONDS`, until it is closed or the hub stops.

    It is made before the hub serves. Losses that the log of a former hub has reported are not reported again.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._events = hub.context.events  # where it reports changes
        self._losses = Growths(_counts_of(hub))  # by user and cause
        self._repeats = Growths[tuple[str, Hashable]]({})  # of violations, by reason and user
        self._links: dict[tuple[str, int], LinkStatistics] = {}  # those that had joined, by direction and number
        self._looks = 0  # since the children were asked
        self._not_before = 0.0  # when the next look may be
        self._timer: Any = hub.context.running.loop.timer(LOOK_SECONDS, LOOK_SECONDS)
        self._timer.start(self.look)
        self._events.listeners.append(self._on_event)

    @property
    def handed_on(self) -> dict[str, str]:
        """The state with which the log of a hub that takes over begins."""
        return {_LOST: msgspec.json.encode([(*who, count) for who, count in self._losses.counts.items()]).decode()}

    def close(self) -> None:
        """Look no more, and log the sums of losses that have not ended. The hub may be stopped."""
        self._timer.stop()
        self._timer.close()
        with suppress(ValueError):
            self._events.listeners.remove(self._on_event)
        self._sum_up()

    def _on_event(self, event: HubEvent) -> None:
        if event.kind == "stops":  # while those that watch the hub are still there
            self._sum_up()

    def _sum_up(self) -> None:
        self._look_at_counts(self._hub.statistics(clients=False), monotonic(), ends=True)
        self._events.sum_up(ends=True)

    def look(self, now: float | None = None) -> None:
        """Look at the hub, and report changes. ``now`` is in seconds of the monotonic clock."""
        began, busy = monotonic(), thread_time()
        if began < self._not_before:
            return
        seen = self._hub.statistics(clients=False)
        self._look_at_counts(seen, began if now is None else now)
        self._hub.replacement.handed_on.update(self.handed_on)
        self._look_at_links(seen.per_link)
        self._events.sum_up()
        self._looks += 1
        if self._links and self._looks >= ASK_LOOKS:
            self._looks = 0
            self._hub.tree.sync_children(lambda scope: None)
        self._not_before = began + (thread_time() - busy) / SHARE  # not of the time in which others had the processor

    def _look_at_counts(self, seen: HubStatistics, now: float, *, ends: bool = False) -> None:
        # 1. Losses. All connected clients are looked at once, to name the process of each.
        begun, ended = self._losses.look(_lost(seen), now, ends=ends)
        losers = self._hub.reporter.losers() if begun or ended else {}
        news = [("loses", Ended(who, 0, 0)) for who in begun] + [("lost", one) for one in ended]
        for kind, ((uid, cause), count, seconds) in news:
            _, receiver = losers.get((uid, cause), ("", None))
            who = receiver.credentials if receiver is not None else _user(uid)
            key = "" if receiver is None else self._patterns_of(receiver)
            self._events.emit(kind, who, cause=shown(cause), key=key, count=count, seconds=seconds)

        # 2. Repeated violations. The first of each was reported when it came.
        violations = self._hub.clients.violations
        for which, _, seconds in self._repeats.look(violations.repeats, now, ends=ends)[1]:
            times, (reason, user) = violations.repeats.get(which, 0), which
            violations.forget(*which)
            if times > 1 or user is None:
                offender = _user(user) if isinstance(user, int) else None
                self._events.emit("refusals", offender, cause=reason, count=times, seconds=seconds)
        self._repeats.counts = dict(violations.repeats)

    def _patterns_of(self, receiver: Receiver) -> str:
        """Return the patterns of a receiver as text, without secrets."""
        router = self._hub.context.router
        patterns = [router.namespace.unmark(name)[1] for name in router.plain_patterns_of(receiver)]
        some = ", ".join(first_segments(pattern, router.namespace.separator) for pattern in patterns[:2])
        more = f" and {len(patterns) - 2:,} more" if len(patterns) > 2 else ""
        return f"{some or 'no pattern but secrets'}{more}"

    def _look_at_links(self, links: tuple[LinkStatistics, ...]) -> None:
        # 1. Those that have joined, or do not answer.
        before, self._links = self._links, {}
        for link in links:
            which = link.direction, link.number
            if link.state in ("joined", "lagging"):
                self._links[which] = link
                former = before.pop(which, None)
                was = former.state if former is not None else ""
                if link.state != was:
                    kind = "lags" if link.state == "lagging" else "answers" if was else "joined"
                    self._report_link(kind, link)

        # 2. Those that no longer are.
        for link in before.values():
            self._report_link("ended", link)

    def _report_link(self, kind: str, link: LinkStatistics) -> None:
        who = Credentials(gid=OVERFLOW_ID, uid=max(0, link.uid), pid=link.pid)
        self._events.emit(
            kind, who if link.uid >= 0 else None, cause=link.direction, key=shown(link.address) or "a hub"
        )


def _user(uid: int) -> Credentials:
    return Credentials(gid=OVERFLOW_ID, uid=uid, pid=0)


def _lost(seen: HubStatistics) -> dict[tuple[int, str], int]:
    """Return the counts of all lost messages, by user and cause."""
    return {(user.uid, cause): count for user in seen.per_user for cause, count in user.lost.items() if count}


def _counts_of(hub: Hub) -> dict[tuple[int, str], int]:
    """Return the losses that the former hub's log has reported. An older hub hands none on: then all until now."""
    try:
        rows = msgspec.json.decode(hub.replacement.handed_on[_LOST], type=list[tuple[int, str, int]])
    except (KeyError, *MALFORMED):
        return _lost(hub.statistics(clients=False))
    return {(uid, cause): count for uid, cause, count in rows}


# -- destinations -----------------------------------------------------------------------------------

JOURNAL_SOCKET: Final = "/run/systemd/journal/socket"
"""Where the systemd journal takes entries in fields: systemd's "Native Journal Protocol"."""

_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""Syslog's priority from each level on; else 7."""


def begin_log(program: str) -> None:
    """Log to standard error; to the systemd journal, in fields, where that is what standard error leads to."""
    handler: logging.Handler | None = None
    with suppress(OSError):
        error = os.fstat(2)
        if os.environ.get("JOURNAL_STREAM") == f"{error.st_dev}:{error.st_ino}":
            handler = JournalHandler(program, JOURNAL_SOCKET)
    if handler is not None:
        logging.basicConfig(format="%(message)s", handlers=[handler])
    else:
        logging.basicConfig(format=f"{program}: %(message)s")


class JournalHandler(logging.StreamHandler[Any]):
    """Sends each line with the fields of its event, if it has one. A line that the journal does not take goes to
    standard error, and nothing waits. Raises :exc:`OSError` where there is no journal."""

    def __init__(self, program: str, path: str) -> None:
        super().__init__()
        self._program = program
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_UNIX, kind)  # to the journal
        self._socket.connect(path)

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "sbus_event", None)
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        fields = {"MESSAGE": self.format(record), "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": self._program}
        if isinstance(event, HubEvent):
            fields |= event.fields

        # Each value with its length before it, so that nothing in it can begin another field.
        entry = bytearray()
        for name, value in fields.items():
            data = value.encode("utf-8", "backslashreplace")
            entry += b"%b\n%b%b\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
        try:
            self._socket.send(entry)
        except OSError:
            super().emit(record)
