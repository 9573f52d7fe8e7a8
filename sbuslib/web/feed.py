"""What the page shows: asked of a hub once a second, and kept for a while.

:class:`Feed` is a client of the hub, which must trust it. It says when the hub is away, and goes on when it is back.
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
"""Most clients that the page is told of, for its filter: those with the longest queues and the most messages."""

LINKS_SHOWN: Final = 60
"""Most links in the picture of the tree."""

_SURVEY_PAUSE: Final = 2.0
"""Seconds from one look at the tree to the next. Each hub of the tree is asked."""

_KEPT: Final = 600
"""Moments that are kept for the picture of rates: ten minutes."""


class Moment(msgspec.Struct, frozen=True):
    """What the page shows at one instant. ``time`` is in seconds since the epoch, rates are in messages a second."""

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
    """Asks a hub what it does, in a greenlet of its own, from :meth:`start` to :meth:`stop`.

    :param address: where the hub listens, as a :class:`~sbuslib.Client` takes it.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._changed = Event()  # set for a moment when there is a new one
        self.now = Moment(0, time.time(), address or "", connected=False, why="not asked yet")  # the newest moment
        self.history: deque[tuple[float, float, float, float, int]] = deque(maxlen=_KEPT)
        """Time, messages published, delivered and lost each second, and messages that wait."""
        self._tree: list[Row] = []  # of the last look
        self._greenlets: list[gevent.Greenlet[..., object]] = []  # while it is started

    def start(self) -> None:
        """Begin to ask."""
        self._greenlets = [gevent.spawn(self._run), gevent.spawn(self._look_at_tree)]

    def stop(self) -> None:
        """Ask no more."""
        gevent.killall(self._greenlets)

    def wait(self, number: int, timeout: float) -> Moment:
        """The newest moment, as soon as it is another than this one, or after ``timeout`` seconds."""
        if self.now.number == number:
            self._changed.wait(timeout)
        return self.now

    def _run(self) -> None:
        for seen in watch(lambda: Client(self._address, timeout=10), gevent.sleep, interval=PAUSE):
            number, now = self.now.number + 1, time.time()
            if isinstance(seen, Look):
                self._tell(_moment(number, now, seen, self._tree))
            else:
                self._tell(Moment(number, now, self.now.address, connected=False, why=str(seen)))

    def _look_at_tree(self) -> None:
        """Hubs that do not answer are waited for in a native thread."""
        rates = Rates()
        pool = gevent.get_hub().threadpool
        while True:
            seen = pool.apply(_survey, (self._address,))
            if seen is not None:
                self._tree = rates.tree(time.monotonic(), seen)[:LINKS_SHOWN]
            gevent.sleep(_SURVEY_PAUSE)

    def _tell(self, moment: Moment) -> None:
        self.now = moment
        if moment.connected:
            rates = moment.rates
            self.history.append(
                (moment.time, rates["published"], rates["delivered"], rates["lost"], moment.hub["waiting"])
            )
        self._changed.set()
        self._changed.clear()


def _survey(address: str | None) -> SeenHub | None:
    """A look at the tree. An error is told by the other greenlet, which asks the same hub; gevent would print it."""
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
