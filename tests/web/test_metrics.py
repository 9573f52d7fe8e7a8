"""Metrics for Prometheus: their numbers are those of the statistics."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import gevent
import pytest
from accounting import big, narrow
from support import Peer, eventually
from web.http import get

from sbuslib import Hub, Limits, Relay, __version__

pytest.importorskip("prometheus_client")

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from sbuslib.journal.recorder import Recorder
from sbuslib.web import metrics, serving
from sbuslib.web.metrics import HubCollector, serve_metrics
from sbuslib.web.serving import LocalServer

MakeHub = Callable[..., Hub]
Connect = Callable[..., Peer]
Numbers = dict[tuple[str, ...], float]


def numbers_of(server: LocalServer) -> Numbers:
    """Every number that a server gives, by its name and labels."""
    response = get(server.url, "/metrics")
    assert response.status == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.body.decode())
        for sample in family.samples
    }


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalServer]]:
    """Serve metrics that are gathered anew for each who asks."""
    monkeypatch.setattr(metrics, "_FRESH", 0)
    servers: list[LocalServer] = []

    def start(*arguments: Any, **options: Any) -> LocalServer:
        servers.append(serve_metrics(*arguments, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def test_a_hub_and_its_users(make_hub: MakeHub, connect: Connect, serve: Callable[..., LocalServer]) -> None:
    hub = make_hub(limits=Limits(queued_packets=3))
    server = serve(hub, "127.0.0.1:0")
    reader, publisher = connect(), connect()
    reader.send(b"SUB k")
    narrow(hub, reader)
    for number in range(6):
        publisher.publish(b"k", big(number))
    publisher.barrier()
    uid = str(os.getuid())
    told = numbers_of(server)
    assert told["sbus_build_info", platform.python_version(), __version__] == 1
    assert told["process_open_fds",] > 3
    assert told["sbus_user_lost_total", "quota", uid] == told["sbus_lost_total", "quota"] == 0
    assert told["sbus_clients",] == 2
    assert told["sbus_published_total",] == 6
    assert told["sbus_waiting",] == 3
    assert told["sbus_lost_total", "overflow"] == 2
    assert told["sbus_user_lost_total", "overflow", uid] == 2
    assert told["sbus_user_published_total", uid] == 6
    assert told["sbus_user_waiting_packets", uid] == 3
    assert told["sbus_user_connections", uid] == 2
    reader.close()
    eventually(lambda: hub.statistics().clients == 1)
    told = numbers_of(server)
    assert told["sbus_user_lost_total", "outage", uid] == 3
    assert told["sbus_user_routed_total", uid] == 6
    connect().send(b"nonsense")
    eventually(lambda: hub.statistics().violations)
    assert numbers_of(server)["sbus_violations_total", "unknown verb"] == 1


def test_a_relay_and_a_recorder(make_hub: MakeHub, folder: str, serve: Callable[..., LocalServer]) -> None:
    above, below = make_hub(os.path.join(folder, "above")), make_hub()
    with Relay(below, above.address) as relay, Recorder(below, os.path.join(folder, "journal")) as recorder:
        server = serve(below, os.path.join(folder, "metrics"), relay=relay, recorder=recorder)
        inbox = above.subscribe(b"k")
        relay.wait(10)
        below.publish(b"k", b"x")
        inbox.receive(timeout=10)
        eventually(lambda: recorder.durable_sequence == 1)
        told = numbers_of(server)
        assert told["sbus_relay_joined",] == 1
        who = "parent", str(os.getpid()), str(os.getuid())
        assert told["sbus_link_joined", *who] == 1
        assert told["sbus_link_waiting", *who] == 0
        assert told["sbus_relay_up_total",] == 1
        assert told["sbus_journal_written_total",] == 1
        above.stop()
        eventually(lambda: relay.state == "outage")
        assert numbers_of(server)["sbus_relay_joined",] == 0


def test_a_hub_that_is_not_started_has_no_metrics(make_hub: MakeHub, serve: Callable[..., LocalServer]) -> None:
    hub = make_hub()
    server = serve(hub, "127.0.0.1:0")
    hub.stop()
    assert not any(name.startswith("sbus_") for name, *_ in numbers_of(server))
    assert list(HubCollector(hub).collect()) == []


def test_asking_for_metrics_does_not_stop_the_hub(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_PAUSE", 0.0)
    hub = make_hub()
    server = serve_metrics(hub, "127.0.0.1:0")
    asking = [gevent.spawn(numbers_of, server) for _ in range(100)]
    connect().barrier()
    assert all(one.get(timeout=20)["sbus_clients",] >= 0 for one in asking)
    server.stop()


def test_numbers_are_gathered_at_most_once_a_second_for_all_who_ask(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_PAUSE", 0.0)
    clock = [0.0]
    gathered = []
    hub = make_hub()
    collect = HubCollector.collect

    def count(collector: HubCollector) -> Iterator[Metric]:
        gathered.append(clock[0])
        gevent.sleep(0)  # as for a bridge: others ask meanwhile
        return collect(collector)

    monkeypatch.setattr(HubCollector, "collect", count)
    monkeypatch.setattr("sbuslib.web.metrics.monotonic", lambda: clock[0])
    server = serve_metrics(hub, "127.0.0.1:0")
    for clock[0] in (100.0, 100.9, 101.0, 101.9):
        asking = [gevent.spawn(numbers_of, server) for _ in range(10)]
        assert all(one.get(timeout=20)["sbus_clients",] == 0 for one in asking)
    assert gathered == [100.0, 101.0]
    server.stop()


def test_the_dashboard_shows_numbers_that_there_are(
    make_hub: MakeHub, folder: str, serve: Callable[..., LocalServer]
) -> None:
    above, below = make_hub(os.path.join(folder, "above")), make_hub()
    with Relay(below, above.address) as relay, Recorder(below, os.path.join(folder, "journal")) as recorder:
        response = get(serve(below, "127.0.0.1:0", relay=relay, recorder=recorder).url, "/metrics")
    given = set(re.findall(r"^# TYPE (\w+)", response.body.decode(), re.MULTILINE))
    dashboard = files("sbuslib.web").joinpath("grafana.json").read_text("utf-8")
    shown = set(re.findall(r"sbus_\w+", dashboard))
    assert len(shown) > 15
    assert shown <= given
