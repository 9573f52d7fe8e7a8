"""Rates of a hub's counts, and intervals of messages by key.

:func:`watch` polls a hub, for the live page and ``sbus top``. :func:`measure` makes the rows of ``sbus hz``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from math import sqrt
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import asdict

from ..clients.endpoint import Endpoint
from ..errors import SbusError
from ..kernel.users import name_of_user, program_of
from ..statistics import ClientStatistics, HubStatistics, LinkStatistics, UserStatistics
from ..wire.packets import Message
from ..wire.text import printable
from .survey import SeenHub

PAUSE: Final = 1.0
"""Default polling interval."""

_SHARE: Final = 50
"""Least pause, in multiples of the time of the last answers: so polling takes at most some 2 % of the hub's time."""

Row: TypeAlias = dict[str, Any]


class Look(msgspec.Struct, frozen=True):
    """Snapshot of the hub at ``address``, with texts as the hub sent them.

    A row of the hub, a user or a client has the totals ``published``, ``delivered`` and ``lost``, and messages a second
    as ``published_rate`` and so on; a link has ``up`` and ``down`` in place of the first two. ``waiting`` is the number
    of messages that wait. ``clients`` is ``None`` if they were not asked for.
    """

    address: str
    hub: Row
    users: list[Row]
    clients: list[Row] | None
    links: list[Row]


class Rates:
    """Makes a :class:`Look` of a hub's statistics. Rates are since the look before, and 0 in the first.

    :param local: process ids are the same for the hub and this process, so programs can be named.
    """

    def __init__(self, *, local: bool = False) -> None:
        self._before: dict[str, tuple[float, dict[Hashable, list[int]]]] = {}  # by kind: when, and counts by row
        self._local = local
        self._programs: dict[tuple[int, str], str] = {}  # of the clients of the last look, by number and credentials

    def look(
        self,
        now: float,
        address: str,
        hub: HubStatistics,
        clients: Iterable[ClientStatistics] | None,
        links: Iterable[LinkStatistics],
    ) -> Look:
        """Make the look at ``now``, in seconds of any clock that does not jump."""
        (row,) = self._rows("hub", now, [hub], lambda _, hub: "", _hub)
        return Look(
            address=address,
            hub=row,
            users=self._rows("user", now, hub.per_user, lambda _, user: user.uid, _user),
            clients=None if clients is None else self._clients(now, list(clients)),
            links=self._rows("link", now, links, lambda _, link: (link.direction, link.number), _link),
        )

    def tree(self, now: float, seen: SeenHub) -> list[Row]:
        """Make a row for the link of each hub in a tree except the polled one, by depth.

        ``to`` is the index in this list of the hub at its other end, -1 for the polled hub. ``level`` is its distance
        below that; -1 for the parent. ``why`` is the reason why a hub could not be asked.
        """
        places = [] if seen.parent is None else [_Place(seen.parent, seen.statistics.hub_id, -1, -1, "")]
        queue = deque([(seen, -1, 0)])
        while queue:
            hub, at, level = queue.popleft()
            for child in hub.children:
                if child.hub is not None:
                    queue.append((child.hub, len(places), level + 1))
                places.append(_Place(child.link, hub.statistics.hub_id, at, level + 1, child.why))
        return self._rows(
            "tree", now, places, lambda _, each: (each.hub, each.link.direction, each.link.number), _place
        )

    def _clients(self, now: float, clients: list[ClientStatistics]) -> list[Row]:
        # Inboxes all have the number 0, and come first.
        rows = self._rows("client", now, clients, lambda place, client: client.number or -place, _client)
        programs = {}
        for client, row in zip(clients, rows, strict=True):
            identity = client.number, client.credentials
            known = self._programs.get(identity)  # asked once: a process id may be another's later
            uid, pid = ids_of(client.credentials)
            row["user"] = "" if uid is None else name_of_user(uid)
            row["program"] = programs[identity] = (
                known if known is not None else program_of(pid) if self._local and pid else ""
            )
        self._programs = programs
        return rows

    def _rows(
        self,
        kind: str,
        now: float,
        items: Iterable[Any],
        name: Callable[[int, Any], Hashable],
        describe: Callable[[Any], Row],
    ) -> list[Row]:
        """Make a row for each item, with the rates of its counts since the last look at this kind; 0 for a new one."""
        then, before = self._before.get(kind, (now, {}))
        passed = max(now - then, 1e-3)
        rows, after = [], dict[Hashable, list[int]]()
        for place, item in enumerate(items):
            row = describe(item)
            identity = name(place, item)
            counted = [column for column in _COUNTED if column in row]
            after[identity] = counts = [row[column] for column in counted]
            for column, count, old in zip(counted, counts, before.get(identity, counts), strict=True):
                row[f"{column}_rate"] = round(max(0, count - old) / passed, 1)
            rows.append(row)
        self._before[kind] = (now, after)
        return rows


_COUNTED: Final = ("published", "delivered", "up", "down", "lost")
"""Columns of rows that only grow."""


def ids_of(credentials: str) -> tuple[int | None, int | None]:
    """Return the user and the process in a credential key; ``None`` for a missing one."""
    parts = credentials.split(credentials[1:2] or None)[-2:]
    uid, pid = (
        int(part) if part.isascii() and part.isdigit() and len(part) < 11 else None for part in ["", *parts][-2:]
    )
    return uid, pid or None


def _counted(statistics: HubStatistics | UserStatistics | ClientStatistics | LinkStatistics) -> Row:
    """Return the counts by the names of their fields; for losses the sum, with the causes beside it."""
    return {**asdict(statistics), "lost": sum(statistics.lost.values()), "causes": statistics.lost}


def _hub(hub: HubStatistics) -> Row:
    row = _counted(msgspec.structs.replace(hub, per_client=(), per_user=(), per_link=()))
    return {column: value for column, value in row.items() if not column.startswith("per_")} | {"id": hub.hub_id}


def _user(user: UserStatistics) -> Row:
    return _counted(user) | {"user": name_of_user(user.uid), "waiting": user.waiting_packets}


def _client(client: ClientStatistics) -> Row:
    return _counted(client) | {"who": client.credentials, "modes": f"{client.soft} {client.hard} {client.order}"}


def _link(link: LinkStatistics) -> Row:
    return _counted(link) | {
        # A child hub names itself: the name may be anything, or empty.
        "name": link.address or link.hub or link.credentials,
        "address": link.address or "-",
        "user": name_of_user(link.uid) if link.uid >= 0 else "-",
        "connected": link.state == "joined",
        "lost": sum(link.lost.values()) + link.uncertain,
        "lag": f"{link.lag:.1f}",
    }


class _Place(NamedTuple):
    """A link in a tree, and the ``hub`` that reports it."""

    link: LinkStatistics
    hub: str
    to: int
    level: int
    why: str


def _place(place: _Place) -> Row:
    row = _link(place.link)
    shown = {"name": printable(row["name"].encode()), "why": printable(place.why.encode())}
    return {**row, **shown, "to": place.to, "level": place.level}


def is_local(client: Endpoint) -> bool:
    """Return whether the hub sees this process under its own ids: then process ids of others are right, too."""
    return ids_of(client.credentials.decode("utf-8", "replace")) == (os.geteuid(), os.getpid())


def watch(
    connect: Callable[[], Endpoint],
    sleep: Callable[[float], object],
    clients: Callable[[], bool] = lambda: True,
    interval: float = PAUSE,
) -> Generator[Look | Exception, None, None]:
    """Poll a hub until the caller stops: yields looks, and errors in their place.

    Connects again after an error. ``clients`` decides before each look whether to ask for each client. The hub is
    polled every ``interval`` seconds, or less often if it answers slowly.
    """
    while True:
        try:
            with connect() as client:
                rates = Rates(local=is_local(client))
                while True:
                    started = monotonic()
                    hub = client.hub.statistics()
                    # The statistics of a hub with few clients and links include them.
                    each = (hub.per_client or client.hub.clients()) if clients() else None
                    links = hub.per_link or client.hub.links()
                    now = monotonic()
                    yield rates.look(now, client.address, hub, each, links)
                    sleep(max(interval, _SHARE * (now - started)))
        except (SbusError, OSError) as error:
            yield error
            sleep(interval)


class _KeyRate:
    """Counts of one key since the window began, and the time of its last message."""

    __slots__ = ("count", "intervals", "last", "longest", "size", "squares", "total")

    def __init__(self) -> None:
        #: When the last message came, on the window's clock.
        self.last: float | None = None
        self.begin()

    def begin(self) -> None:
        self.count = self.size = self.intervals = 0
        self.total = self.squares = self.longest = 0.0

    def take(self, size: int, now: float) -> None:
        self.count += 1
        self.size += size
        if self.last is not None:
            interval = now - self.last
            self.intervals += 1
            self.total += interval
            self.squares += interval * interval
            self.longest = max(self.longest, interval)
        self.last = now

    def row(self, key: bytes, seconds: float) -> Row:
        mean = deviation = longest = None
        if self.intervals:
            mean, longest = self.total / self.intervals, self.longest
            deviation = sqrt(max(0.0, self.squares / self.intervals - mean * mean))
        return {
            "key": key,
            "messages": self.count,
            "rate": self.count / seconds,
            "bytes": self.size / seconds,
            "mean": mean,
            "deviation": deviation,
            "longest": longest,
        }


class KeyRates:
    """Rates of messages by key, in consecutive windows of time.

    :param now: start of the first window, in seconds of any clock that does not jump.
    :param most: most keys with counts of their own, in the order of their first messages. Others are counted together.
    """

    def __init__(self, now: float, most: int = 1_000) -> None:
        self._began = now
        self._most = most
        #: The keys with counts of their own.
        self._keys: dict[bytes, _KeyRate] = {}
        #: All others together.
        self._others = _KeyRate()
        #: Whether there was another key.
        self._beyond = False

    def take(self, messages: Iterable[Message], now: float) -> None:
        """Count messages that came at ``now``."""
        for message in messages:
            rate = self._keys.get(message.key)
            if rate is None:
                if len(self._keys) < self._most:
                    rate = self._keys[message.key] = _KeyRate()
                else:
                    rate, self._beyond = self._others, True
            rate.take(len(message.payload), now)

    def end(self, now: float, shown: int | None = None) -> list[Row]:
        """End the window: a row for each ``key``, the fastest first. ``rate`` is in messages and ``bytes`` in bytes of
        payload a second; ``mean``, ``deviation`` and ``longest`` are of the intervals that ended in this window, in
        seconds, or ``None``.

        All keys but the first ``shown``, and those without counts of their own, share one row: the last, with ``None``
        as its key and without intervals.
        """
        seconds, self._began = max(now - self._began, 1e-9), now
        rows = [rate.row(key, seconds) for key, rate in self._keys.items()]
        rows.sort(key=lambda row: (-row["rate"], row["key"]))
        rest = [] if shown is None else rows[shown:]
        if rest or self._beyond:
            others = [*rest, self._others.row(b"", seconds)]
            sums = {column: sum(row[column] for row in others) for column in ("messages", "rate", "bytes")}
            rows = [*rows[:shown], {"key": None, **sums, "mean": None, "deviation": None, "longest": None}]
        for rate in (*self._keys.values(), self._others):
            rate.begin()
        return rows


def measure(
    client: Endpoint, window: float = 1.0, *, shown: int | None = None, timeout: float | None = None
) -> Iterator[list[Row]]:
    """Measure the messages of a client in consecutive windows: yields the rows of :meth:`KeyRates.end`.

    Raises :exc:`TimeoutError` when no message comes for ``timeout`` seconds.
    """
    now = latest = monotonic()
    rates, ends = KeyRates(now), now + window
    while True:
        until = ends if timeout is None else min(ends, latest + timeout)
        try:
            messages = client.receive_many(timeout=max(0.0, until - now))
        except TimeoutError:
            messages = []
        now = monotonic()
        if messages:
            latest = now
            rates.take(messages, now)

        # A window ends on time, whether messages came or not.
        if now >= ends:
            yield rates.end(now, shown)
            ends = max(ends, now - window) + window  # a reader that fell behind does not catch up
        elif timeout is not None and now >= latest + timeout:
            raise TimeoutError(f"no message within {timeout:g} s")
