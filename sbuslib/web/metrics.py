"""Metrics of a hub for Prometheus: :func:`serve_metrics`.

The numbers are those of :mod:`sbuslib.statistics`, which the hub counts anyway. They are gathered when somebody asks
for them, at most once a second for all who ask, and cost nothing else. Bridges are asked for theirs, as ``sbus doctor``
does, if there may be any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from platform import python_version
from time import monotonic
from typing import Any, Final, Protocol

import msgspec
from gevent.lock import Semaphore
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import __version__
from ..border.fellows import ASK
from ..border.keys import CONTROL, process_of
from ..core.losses import CAUSES
from ..errors import DisconnectedError
from ..hub import Hub
from ..monitor.diagnosis import bridges_heard
from ..relay import Relay
from ..statistics import HubStatistics, LinkStatistics, RelayStatistics
from ..wire.packets import MSG
from .serving import Environ, LocalServer, StartResponse

__all__ = ["HubCollector", "Records", "serve_metrics"]

_FRESH: Final = 1.0
"""Seconds for which the metrics that were gathered are the answer to all who ask: any user of this machine may ask."""

_LINK = ["direction", "uid", "pid"]
_PROCESS = ["uid", "pid"]

_USER_GAUGES = {
    "connections": "Clients of a user that are connected.",
    "patterns": "Patterns of a user in force.",
    "waiting_packets": "Packets that wait for clients of a user.",
    "waiting_bytes": "Bytes that wait for clients of a user.",
    "buffer_bytes": "Bytes of the larger send buffers of a user.",
}
_USER_COUNTERS = {
    "published": "Messages that a user's clients published.",
    "routed": "Messages for clients of a user.",
    "delivered": "Messages handed to clients of a user.",
}


class Records(Protocol):
    """A recorder of the hub."""

    def statistics(self) -> msgspec.Struct:
        """What it did and holds: a ``RecorderStatistics``."""
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
    """The text of all metrics, which is made at most once a second."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

        # The text, and when it was made, by the monotonic clock; "at" is -inf before the first.
        self._text = b""
        self._at = float("-inf")  # -inf before the first

        # Held while the text is made, which waits for bridges: others who ask then wait for the same text.
        self._making = Semaphore()

    def answer(self, _environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """A WSGI application."""
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
        """Nothing: so a registry does not ask for numbers before the hub has started."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this instant; none of a hub that is not started."""
        if not self._hub.started:
            return
        told = self._hub.statistics(clients=False)
        yield from _of_hub(told)
        yield from _of_users(told)
        yield from _of_links(told.per_link)
        if self._relay is not None:
            yield from _of_relay(self._relay.statistics())
        if self._recorder is not None:
            yield from _of_journal(msgspec.structs.asdict(self._recorder.statistics()))
        yield from _of_bridges(self._hub)


def _of_hub(told: HubStatistics) -> Iterator[Metric]:
    yield InfoMetricFamily("sbus_build", "What runs.", {"version": __version__, "python": python_version()})
    yield _gauge("clients", "Clients that are connected.", told.clients)
    yield _counter("clients_connected", "Clients that have ever connected.", told.clients_total)
    yield _gauge("patterns", "Patterns in force.", told.patterns)
    yield _counter("published_messages", "Messages that were published.", told.published)
    yield _counter("routed_messages", "Messages, once for each receiver.", told.routed)
    yield _counter("delivered_messages", "Messages handed to the kernel or the program.", told.delivered)
    yield _gauge("waiting_messages", "Messages that wait for receivers.", told.waiting)
    yield _counters("lost_messages", "Messages lost.", "cause", {**dict.fromkeys(CAUSES, 0), **told.lost})
    yield _counters("violations", "Clients disconnected for a violation.", "reason", told.violations)
    yield _counter("ignored_packets", "Packets without a meaning.", told.ignored)
    yield _counters("dropped_packets", "Packets that relays should not have sent.", "reason", told.dropped)


def _of_users(told: HubStatistics) -> Iterator[Metric]:
    for kind, end, texts in ((GaugeMetricFamily, "", _USER_GAUGES), (CounterMetricFamily, "_messages", _USER_COUNTERS)):
        for field, text in texts.items():
            values = [((str(user.uid),), getattr(user, field)) for user in told.per_user]
            yield _family(kind, f"user_{field}{end}", text, ["uid"], values)
    # With zeros: the first loss of a user has a value before it, from which a rate can be told.
    lost = [
        ((str(user.uid), cause), user.lost.get(cause, 0))
        for user in told.per_user
        for cause in sorted({*CAUSES, *user.lost})
    ]
    text = "Messages lost for clients of a user."
    yield _family(CounterMetricFamily, "user_lost_messages", text, ["uid", "cause"], lost)


def _of_links(links: Iterable[LinkStatistics]) -> Iterator[Metric]:
    """By direction, user and process: what a hub below says of itself is no label, as it may say anything."""
    seen = [((link.direction, str(link.uid), str(link.pid)), link) for link in links]
    states = [((*who, link.state), 1.0) for who, link in seen]
    yield _family(GaugeMetricFamily, "links", "Links to other hubs.", [*_LINK, "state"], states)
    text, waiting = "Messages that wait for another hub.", [(who, link.waiting) for who, link in seen]
    yield _family(GaugeMetricFamily, "link_waiting_messages", text, _LINK, waiting)
    text, lag = "How late another hub is.", [(who, link.lag) for who, link in seen]
    yield _family(GaugeMetricFamily, "link_lag_seconds", text, _LINK, lag)
    lost = [((*who, cause), count) for who, link in seen for cause, count in link.lost.items()]
    text = "Messages for another hub that were lost."
    yield _family(CounterMetricFamily, "link_lost_messages", text, [*_LINK, "cause"], lost)


def _of_relay(told: RelayStatistics) -> Iterator[Metric]:
    yield _gauge("relay_joined", "Whether the hub is joined to the one above it.", told.state == "joined")
    yield _counter("relay_joins", "Times that the hub was joined to the one above it.", told.epoch)
    yield _counter("relay_up_messages", "Messages sent up.", told.up)
    yield _counter("relay_down_messages", "Messages that came down.", told.down)
    yield _gauge("relay_waiting_messages", "Messages that wait to go up.", told.waiting)
    yield _gauge("relay_waiting_bytes", "Bytes of messages that wait to go up.", told.waiting_bytes)
    yield _counter("relay_lost_messages", "Messages lost on their way up.", sum(told.lost.values()))
    yield _counter("relay_uncertain_messages", "Messages sent up and never acknowledged.", told.uncertain)
    yield _counter("relay_lost_above_messages", "Messages that the hub above lost.", told.lost_above)


def _of_journal(told: Mapping[str, Any]) -> Iterator[Metric]:
    yield _counter("journal_received_messages", "Messages that came to the recorder.", told["received"])
    yield _counter("journal_written_messages", "Messages written.", told["written"])
    yield _counter("journal_written_bytes", "Bytes written.", told["written_bytes"])
    yield _gauge("journal_waiting_messages", "Messages that wait to be written.", told["waiting"])
    yield _gauge("journal_waiting_bytes", "Bytes that wait to be written.", told["waiting_bytes"])
    yield _gauge("journal_held_publishers", "Publishers that wait for the journal.", told["held"])
    yield _counters("journal_lost_messages", "Messages that the journal lacks.", "cause", told["lost"])


def _of_bridges(hub: Hub) -> Iterator[Metric]:
    """By user and process of the bridge, which the kernel vouches for: the rest is what they say."""
    totals = {name: Counter[tuple[str, ...]]() for name in ("exported", "imported", "kept")}
    lost = Counter[tuple[str, ...]]()
    router = hub.context.router
    if any(CONTROL in router.patterns(receiver) for receiver in router.route(MSG + CONTROL + b"\0")):
        with hub.subscribe(CONTROL) as inbox, suppress(DisconnectedError):
            own = inbox.statistics().credentials.encode()
            hub.publish(CONTROL, ASK)
            for here, sender in bridges_heard(inbox.receive):
                who = process_of(sender, own, router.namespace.separator)
                if here.counts is not None:
                    for name, count in totals.items():
                        count[who] += getattr(here.counts, name)
                    for cause, number in here.counts.lost.items():
                        lost[*who, cause] += number

    kept = totals["kept"].items()
    yield _family(GaugeMetricFamily, "bridge_kept_messages", "Messages that wait for a server.", _PROCESS, kept)
    for name, text in (("exported", "Messages that a server confirmed."), ("imported", "Messages that came in.")):
        values = totals[name].items()
        yield _family(CounterMetricFamily, f"bridge_{name}_messages", text, _PROCESS, values)
    text = "Messages that a bridge lost."
    yield _family(CounterMetricFamily, "bridge_lost_messages", text, [*_PROCESS, "cause"], lost.items())


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"sbus_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"sbus_{name}", text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    return _family(CounterMetricFamily, name, text, [label], [((one,), value) for one, value in values.items()])


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    labels: list[str],
    values: Iterable[tuple[tuple[str, ...], float]],
) -> Metric:
    """A metric with a value for each combination of labels."""
    family = kind(f"sbus_{name}", text, labels=labels)
    for one, value in values:
        family.add_metric(one, value)
    return family
