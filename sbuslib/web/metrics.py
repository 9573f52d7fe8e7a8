"""Metrics of a hub for Prometheus: :func:`serve_metrics`.

Each number of :mod:`sbuslib.statistics` is a metric of its name: the hub counts it anyway. A request collects them, at
most once a second for all clients together, and nothing else costs time. Bridges are asked for theirs, as ``sbus
doctor`` does, if there may be any.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from platform import python_version
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from gevent.lock import Semaphore
from msgspec.structs import asdict
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import __version__
from ..core.losses import CAUSES
from ..errors import DisconnectedError
from ..federation.membership import ASK
from ..hub import Hub
from ..keys.own_keys import CONTROL
from ..monitor.bridges import bridges_heard
from ..relay import Relay
from ..secrets import process_of
from ..statistics import HubStatistics, LinkStatistics, UserStatistics
from ..wire.packets import MSG
from .serving import Environ, LocalServer, StartResponse

_FRESH: Final = 1.0
"""Seconds for which collected metrics answer further requests: any user of this machine may send them."""

_GAUGES: Final = frozenset(
    {"announced", "buffer_bytes", "clients", "clients_peak", "connections", "held", "joined", "kept", "lag", "patterns"}
    | {"pattern_bytes", "pruned", "waiting", "waiting_bytes", "waiting_packets"}
)
"""Fields that may fall. All others are counted since the beginning."""

_LINK: Final = ("direction", "uid", "pid")
"""Names that child hubs give themselves are no labels: they could be anything, and any number of them."""

_ZEROS: Final = dict.fromkeys(CAUSES, 0)
"""So that the first loss has a value before it: without one there is no rate."""

_Rows: TypeAlias = Iterable[tuple[tuple[str, ...], Mapping[str, Any]]]
"""Fields by name, for each combination of labels."""


class Records(Protocol):
    """A recorder of the hub."""

    def statistics(self) -> msgspec.Struct:
        """Return a ``RecorderStatistics``."""
        ...


def serve_metrics(
    hub: Hub, address: str, *, relay: Relay | None = None, recorder: Records | None = None
) -> LocalServer:
    """Serve the metrics of a hub, its relay and its recorder at ``address``, which no other machine can reach.

    Returns the server, which is started; ``stop()`` it before the hub. Raises as :class:`~.serving.LocalServer`.
    """
    registry = CollectorRegistry()
    registry.register(HubCollector(hub, relay, recorder))
    ProcessCollector(registry=registry)
    server = LocalServer(address, _Text(registry).answer)
    server.start()
    return server


class _Text:
    """Cached text of all metrics, made at most once a second."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

        # The text, and when it was made, by the monotonic clock; "at" is -inf before the first.
        self._text = b""
        self._at = float("-inf")  # -inf before the first

        # Held while the text is made, which waits for bridges: concurrent requests then wait for the same text.
        self._making = Semaphore()

    def answer(self, _environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request (WSGI)."""
        with self._making:
            if monotonic() - self._at >= _FRESH:
                self._text = generate_latest(self._registry)
                self._at = monotonic()

        start_response("200 OK", [("Content-Type", CONTENT_TYPE_LATEST)])
        return [self._text]


class HubCollector(Collector):
    """Makes metrics of one hub's statistics, for a registry of ``prometheus-client``."""

    def __init__(self, hub: Hub, relay: Relay | None = None, recorder: Records | None = None) -> None:
        self._hub = hub
        self._relay = relay
        self._recorder = recorder

    def describe(self) -> Iterable[Metric]:
        """Describe no metrics, so that a registry does not collect before the hub has started."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Collect the metrics of this instant; none of a hub that is not started."""
        if not self._hub.started:
            return
        yield InfoMetricFamily("sbus_build", "What runs.", {"version": __version__, "python": python_version()})

        hub = self._hub.statistics(clients=False)
        yield from _metrics("", (), [((), _counted(hub) | {"clients_connected": hub.clients_total})])
        yield from _metrics("user_", ("uid",), [((str(user.uid),), _counted(user)) for user in hub.per_user])
        links = [((link.direction, str(link.uid), str(link.pid)), _of_link(link)) for link in hub.per_link]
        yield from _metrics("link_", _LINK, links)
        yield from _metrics("bridge_", ("uid", "pid"), _of_bridges(self._hub))

        if self._relay is not None:
            yield from _metrics("relay_", (), [((), _of_link(self._relay.statistics()))])
        if self._recorder is not None:
            yield from _metrics("journal_", (), [((), asdict(self._recorder.statistics()))])


def _metrics(prefix: str, labels: tuple[str, ...], rows: _Rows) -> Iterable[Metric]:
    """Make a metric for each field that is a number, and for each that has counts by cause or reason."""
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for who, row in rows:
        for field, value in row.items():
            if field in ("uid", "pid", "number", "clients_total") or not isinstance(value, int | float | dict):
                continue

            if field not in families:
                more = () if not isinstance(value, dict) else ("cause",) if field == "lost" else ("reason",)
                kind = GaugeMetricFamily if field in _GAUGES else CounterMetricFamily
                text = f"{field}, as in sbus stat --json"
                families[field] = kind(f"sbus_{prefix}{field}", text, labels=(*labels, *more))
            if isinstance(value, dict):
                for cause, count in value.items():
                    families[field].add_metric((*who, cause), count)
            else:
                families[field].add_metric(who, value)
    return families.values()


def _counted(statistics: HubStatistics | UserStatistics) -> dict[str, Any]:
    return asdict(statistics) | {"lost": _ZEROS | statistics.lost}


def _of_link(link: LinkStatistics) -> dict[str, Any]:
    return asdict(link) | {"joined": int(link.state == "joined"), "secrets": None}


def _of_bridges(hub: Hub) -> _Rows:
    """Counts of bridges, labelled with user and process by the kernel's word. The counts are the bridges' own."""
    counted = defaultdict[tuple[str, ...], Counter[str]](Counter)
    lost = defaultdict[tuple[str, ...], Counter[str]](Counter)
    router = hub.context.router
    receivers, names = router.route(MSG + CONTROL + b"\0"), (CONTROL, router.namespace.mark + CONTROL)
    if any(router.times(name, receiver) for receiver in receivers for name in names):
        with hub.subscribe(CONTROL) as inbox, suppress(DisconnectedError):
            own = inbox.statistics().credentials.encode()
            hub.publish(CONTROL, ASK)
            for heartbeat, sender in bridges_heard(inbox.receive):
                who = process_of(sender, own, router.namespace.separator)
                if (counts := heartbeat.counts) is not None:
                    counted[who].update(exported=counts.exported, imported=counts.imported, kept=counts.kept)
                    lost[who].update(counts.lost)
    return [(who, {**counts, "lost": lost[who]}) for who, counts in counted.items()]
