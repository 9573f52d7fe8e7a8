"""The load over streams, and each broker that is installed here, with tiny numbers."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.comparison import brokers, clients
from benchmarks.comparison.broker import Broker, NotInstalledError
from benchmarks.comparison.runner import OtherBrokers
from sbuslib.bench.native import Tools
from sbuslib.bench.results import Plan
from sbuslib.bench.runner import Bench
from sbuslib.bench.scenarios import find


def is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture
def running(place: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    broker = request.param(place)
    try:
        with broker.running():
            yield broker
    except NotInstalledError as error:
        pytest.skip(str(error))


# RabbitMQ takes ten seconds to start and to stop.
@pytest.mark.parametrize(
    "running", [one for one in brokers.BROKERS if one.name != "rabbitmq"], indirect=True, ids=lambda one: one.name
)
def test_an_installed_broker_is_measured(running: Broker, tools: Tools) -> None:
    assert running.version()
    for size, receivers in ((100, 1), (8_192, 3)):
        run = running.run(tools.load, 200, receivers=receivers, size=size)
        assert (run.received, run.lost, run.disorder) == (200 * receivers, 0, 0)
    assert running.run(tools.load, 20, trips=True).received == 40
    for kind, (name, distribution) in clients.KINDS.items():
        if name == running.name and is_installed(distribution):
            run = clients.run(kind, running.address, running.pids, 100)
            assert (run.received, run.lost) == (100, 0)


def test_a_missing_broker_is_left_out_of_the_results(
    place: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    cc = shutil.which("cc")
    monkeypatch.setattr(shutil, "which", lambda name, **_: cc if name == "cc" else None)
    # RabbitMQ is also looked for in a folder that is not in the path.
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setitem(sys.modules, "zmq", None)
    with ExitStack() as stack:
        others = OtherBrokers()
        bench = Bench(stack, place, Plan(), print, version="1", others=others)
        assert [line.partition(": ")[2].endswith("is not installed") for line in bench.omitted] == [True] * 6
        assert not list(others.cases(bench, find("one")))
