"""Data of the live page: polled from a hub once a second, and kept for a while.

:class:`Feed` is a client of the hub, which must trust it. It reports an outage of the hub, and goes on afterwards.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

import gevent
import msgspec
from gevent.event import Event

from ..client import Client
from ..errors import SbusError
from ..monitor.rates import PAUSE, Look, Rates, Row, watch
from ..monitor.survey import SeenHub, survey

CLIENTS_SHOWN: Final = 1_000
"""Most clients sent to the page, for its filter: those with the longest queues and the most messages."""

LINKS_SHOWN: Final = 60
"""Most links in the picture of the tree."""

_SURVEY_PAUSE: Final = 2.0
"""Seconds between two surveys of the tree. A survey asks each hub of the tree."""

_KEPT: Final = 600
"""Moments that are kept for the picture of rates: ten minutes."""


class Moment(msgspec.Struct, frozen=True):
    """Contents of the page at one instant. ``time`` is in seconds since the epoch, rates are in messages a second."""

    number: int
    time: float
    address: str
    connected: bool
    why: str = ""
    hub: Row = {}
    rates: Row = {}
    users: list[Row] = []
    clients: list[Row] = []
    tree: list[Row] = []


class Feed:
    """Polls a hub's statistics, in a greenlet of its own, from :meth:`start` to :meth:`stop`.

    :param address: where the hub listens, as a :class:`~sbuslib.Client` takes it.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._changed = Event()  # set for a moment when there is a new one
        self.now = Moment(0, time.time(), address or "", connected=False, why="not asked yet")  # the newest moment
        self.history: deque[tuple[float, float, float, float, int]] = deque(maxlen=_KEPT)
        """Time, messages published, delivered and lost each second, and messages that wait."""
        self._tree: list[Row] = []  # of the last survey
        self._greenlets: list[gevent.Greenlet[..., object]] = []  # while it is started

    def start(self) -> None:
        """Begin to poll."""
        self._greenlets = [gevent.spawn(self._run), gevent.spawn(self._survey_tree)]

    def stop(self) -> None:
        """Stop polling."""
        gevent.killall(self._greenlets)

    def wait(self, number: int, timeout: float) -> Moment:
        """Wait for a moment newer than ``number``, for at most ``timeout`` seconds. Returns the newest."""
        if self.now.number == number:
            self._changed.wait(timeout)
        return self.now

    def _run(self) -> None:
        for seen in watch(lambda: Client(self._address, timeout=10), gevent.sleep, interval=PAUSE):
            number, now = self.now.number + 1, time.time()
            if isinstance(seen, Look):
                self._show(_moment(number, now, seen, self._tree))
            else:
                self._show(Moment(number, now, self.now.address, connected=False, why=str(seen)))

    def _survey_tree(self) -> None:
        """Survey the tree again and again, in a native thread: it waits for hubs that do not answer."""
        rates = Rates()
        pool = gevent.get_hub().threadpool
        while True:
            seen = pool.apply(_survey, (self._address,))
            if seen is not None:
                self._tree = rates.tree(time.monotonic(), seen)[:LINKS_SHOWN]
            gevent.sleep(_SURVEY_PAUSE)

    def _show(self, moment: Moment) -> None:
        self.now = moment
        if moment.connected:
            rates = moment.rates
            self.history.append(
                (moment.time, rates["published"], rates["delivered"], rates["lost"], moment.hub["waiting"])
            )
        self._changed.set()
        self._changed.clear()


def _survey(address: str | None) -> SeenHub | None:
    """Survey the tree. ``None`` for an error: the other greenlet reports it, and gevent would print it."""
    try:
        return survey(address)
    except (SbusError, OSError):
        return None


def _moment(number: int, now: float, seen: Look, tree: list[Row]) -> Moment:
    hub = seen.hub
    return Moment(
        number=number,
        time=now,
        address=seen.address,
        connected=True,
        hub={**hub, "lost": hub["causes"]},
        rates={column: hub[f"{column}_rate"] for column in ("published", "delivered", "lost")},
        users=seen.users,
        clients=_busiest(seen.clients or []),
        tree=tree,
    )


def _busiest(clients: list[Row]) -> list[Row]:
    def rank(row: Row) -> tuple[float, float, int]:
        return -row["waiting"], -row["published_rate"] - row["delivered_rate"], row["number"]

    return sorted(clients, key=rank)[:CLIENTS_SHOWN]
