"""The load over streams, and each broker that is installed here, with tiny numbers."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.comparison import brokers, clients
from benchmarks.comparison.broker import Broker, NotInstalledError
from benchmarks.comparison.runner import OtherBrokers
from sbuslib.bench.native import Tools
from sbuslib.bench.results import Plan
from sbuslib.bench.runner import Bench
from sbuslib.bench.scenarios import find

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


@pytest.fixture
def place(folder: str) -> Path:
    return Path(folder)


class Echo(Broker):
    """A broker that hands on what one publisher writes, by threads of this process."""

    name = "echo"
    title = "Echo"
    address = ""

    def __init__(self, folder: Path, part: int | None = None) -> None:
        super().__init__(folder)
        self.process = cast(Any, SimpleNamespace(pid=os.getpid()))
        self.part = part
        self._subscribers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def command(self) -> list[str]:
        raise NotInstalledError("echo is no program")

    @classmethod
    def version(cls) -> str:
        return "1"

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        here, there = socket.socketpair()
        self._sockets.append(there)
        return here, there

    def publisher(self) -> socket.socket:
        here, there = self._pair()

        def pump() -> None:
            left = self.part
            while data := there.recv(65_536):
                if left is not None:
                    data, left = data[:left], max(0, left - len(data))
                for subscriber in self._subscribers:
                    subscriber.sendall(data)

        self._threads.append(threading.Thread(target=pump))
        self._threads[-1].start()
        return here

    def subscriber(self) -> socket.socket:
        here, there = self._pair()
        self._subscribers.append(there)
        return here

    def frame(self, payload: bytes) -> bytes:
        return b"PUB" + payload

    def unit(self, payload: bytes) -> int:
        return len(self.frame(payload))

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(tmp_path_factory.mktemp("tools"))


@needs_compiler
@pytest.mark.parametrize("receivers", [1, 3])
def test_messages_over_streams_are_measured(place: Path, tools: Tools, receivers: int) -> None:
    echo = Echo(place)
    run = echo.run(tools.load, 500, receivers=receivers)
    echo.close()
    assert (run.messages, run.deliveries, run.received, run.lost) == (500, 500 * receivers, 500 * receivers, 0)


@needs_compiler
def test_round_trips_over_streams_are_measured(place: Path, tools: Tools) -> None:
    echo = Echo(place)
    run = echo.run(tools.load, 50, trips=True)
    echo.close()
    assert run.received == 100
    assert run.median is not None
    assert run.p99 is not None
    assert 0 < run.median <= run.p99


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
@needs_compiler
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


def test_a_missing_broker_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    for make in (brokers.Redis, brokers.Nats, brokers.Mosquitto):
        with pytest.raises(NotInstalledError, match="is not installed"):
            make(place).command()


def test_a_missing_broker_is_left_out_of_the_results(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    # RabbitMQ is also looked for in a folder that is not in the path.
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setitem(sys.modules, "zmq", None)
    with ExitStack() as stack:
        others = OtherBrokers()
        bench = Bench(stack, place, Plan(), print, version="1", others=others, compiler="")
        assert [line.partition(": ")[2].endswith("is not installed") for line in bench.left_out[1:]] == [True] * 6
        assert not list(others.cases(bench, find("one")))
