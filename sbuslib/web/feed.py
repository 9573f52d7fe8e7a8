"""What the page shows: asked of a hub once a second, and kept for a while.

:class:`Feed` is a client of the hub and must be trusted by it. It says when the hub
is away, and goes on when it is back.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

import gevent
import msgspec
from gevent.event import Event

from ..client import Client
from ..errors import SbusError
from ..statistics import ClientStatistics, HubStatistics, LinkStatistics, UserStatistics
from ..wire.text import printable

__all__ = ["CLIENTS_SHOWN", "LINKS_SHOWN", "Feed", "Moment"]

CLIENTS_SHOWN: Final = 200
"""Most clients that the page lists: those with the longest queues and the most messages."""

LINKS_SHOWN: Final = 24
"""Most links in the picture."""

_PAUSE: Final = 1.0
"""Seconds from one question to the next."""

_SHARE: Final = 50
"""The hub is asked again after so many times as long as the last answer took: so it costs some 2 % of the hub."""

_KEPT: Final = 600
"""Moments that are kept for the picture of rates: ten minutes."""

Row = dict[str, Any]


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
    links: list[Row] = []


class Feed:
    """Asks a hub what it does, in a greenlet of its own, from :meth:`start` to :meth:`stop`.

    :param address: where the hub listens, as a :class:`~sbuslib.Client` takes it.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._changed = Event()
        self._before: dict[tuple[str, int | str], tuple[int, ...]] = {}
        self._asked = 0.0
        self.now = Moment(0, time.time(), address or "", connected=False, why="not asked yet")
        self.history: deque[tuple[float, float, float, float, int]] = deque(maxlen=_KEPT)
        """Time, messages received, delivered and lost each second, and messages that wait."""
        self._greenlet: gevent.Greenlet[..., object] | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """Ask no more."""
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is not None:
            greenlet.kill()

    def wait(self, number: int, timeout: float) -> Moment:
        """The newest moment, as soon as it is another than this one, or after ``timeout`` seconds."""
        if self.now.number == number:
            self._changed.wait(timeout)
        return self.now

    def _run(self) -> None:
        while True:
            try:
                with Client(self._address, timeout=10) as client:
                    self._before.clear()
                    while True:
                        started = time.monotonic()
                        self._take(client.address, client.statistics(), client.client_statistics())
                        gevent.sleep(max(_PAUSE, _SHARE * (time.monotonic() - started)))
            except (SbusError, OSError) as error:
                self._tell(Moment(self.now.number + 1, time.time(), self.now.address, connected=False, why=str(error)))
                gevent.sleep(_PAUSE)

    def _tell(self, moment: Moment) -> None:
        self.now = moment
        self._changed.set()
        self._changed.clear()

    def _take(self, address: str, hub: HubStatistics, clients: list[ClientStatistics]) -> None:
        now = time.monotonic()
        passed, self._asked = max(now - self._asked, 1e-3), now
        before, self._before = self._before, {}

        def rates(kind: str, who: int | str, *counts: int) -> list[float]:
            """How fast counts have grown since the last question; nothing for what is new."""
            self._before[kind, who] = counts
            was = before.get((kind, who), counts)
            return [round(max(0, count - old) / passed, 1) for count, old in zip(counts, was, strict=True)]

        lost = sum(hub.lost.values())
        coming, going, losing = rates("hub", "", hub.received, hub.delivered, lost)
        moment = Moment(
            number=self.now.number + 1,
            time=time.time(),
            address=address,
            connected=True,
            hub={
                "id": hub.hub_id,
                "clients": hub.clients,
                "patterns": hub.patterns,
                "queued": hub.queued,
                "lost": hub.lost,
                "violations": hub.breaches,
                "dropped": hub.dropped,
            },
            rates={"in": coming, "out": going, "lost": losing},
            users=[_user(user, rates("user", user.uid, user.received, user.delivered)) for user in hub.per_user],
            clients=_busiest(
                [_client(one, rates("client", one.number, one.received, one.delivered)) for one in clients]
            ),
            links=[
                _link(link, rates("link", f"{link.direction} {link.number}", link.received, link.delivered))
                for link in hub.per_link[:LINKS_SHOWN]
            ],
        )
        self.history.append((moment.time, coming, going, losing, hub.queued))
        self._tell(moment)


def _user(user: UserStatistics, rates: list[float]) -> Row:
    return {
        "uid": user.uid,
        "connections": user.connections,
        "patterns": user.patterns,
        "in": rates[0],
        "out": rates[1],
        "queued": user.queued_packets,
        "queued_bytes": user.queued_bytes,
        "lost": sum(user.lost.values()),
    }


def _client(client: ClientStatistics, rates: list[float]) -> Row:
    return {
        "number": client.number,
        "who": client.credentials,
        "patterns": client.patterns,
        "in": rates[0],
        "out": rates[1],
        "queued": client.queued,
        "lost": sum(client.lost.values()),
        "modes": f"{client.soft} {client.hard} {client.order}",
    }


def _link(link: LinkStatistics, rates: list[float]) -> Row:
    """``in`` is from the other hub to this one."""
    return {
        "name": printable(link.address.encode()) or link.hub or link.credentials,
        "direction": link.direction,
        "connected": link.state in ("joined", "lagging"),
        "state": link.state,
        "in": rates[0],
        "out": rates[1],
        "queued": link.queued,
        "lost": sum(link.lost.values()) + link.uncertain,
    }


def _busiest(clients: list[Row]) -> list[Row]:
    return sorted(clients, key=lambda row: (-row["queued"], -row["in"] - row["out"], row["number"]))[:CLIENTS_SHOWN]
