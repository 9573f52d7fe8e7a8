"""Each scenario runs, with tiny numbers, with the load in C and with the one in Python."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support import HubThread

from sbuslib.bench import brokers, clients, daemons
from sbuslib.bench.broker import Broker, NotInstalledError
from sbuslib.bench.native import Tools
from sbuslib.bench.process import cpu_seconds, describe_machine, resident_bytes
from sbuslib.bench.results import Plan, Results
from sbuslib.bench.runner import Bench
from sbuslib.bench.scenarios import SCENARIOS
from sbuslib.errors import StateError

TINY = Plan(rounds=1, seconds=0.001, idle_clients=20, idle_patterns=50, fill=200)
COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


@pytest.fixture
def place(folder: str) -> Path:
    return Path(folder)


def measure(place: Path, names: list[str], compiler: str | None) -> Results:
    told: list[str] = []
    with ExitStack() as stack:
        bench = Bench(stack, place, TINY, told.append, version="1", compiler=compiler)
        return bench.measure([scenario for scenario in SCENARIOS if scenario.name in names])


@needs_compiler
def test_each_scenario(place: Path) -> None:
    scenarios = [scenario for scenario in SCENARIOS if scenario.job != "clients"]
    results = measure(place, [scenario.name for scenario in scenarios], COMPILER)
    with daemons.hub(str(place / "bus")) as hub:
        scenarios = [scenario for scenario in scenarios if scenario.needs is None or hub.offers(scenario.needs)]
    assert all(line.endswith(", hub: no batch/on") for line in results.left_out)
    cases = {(record.scenario, record.target) for record in results.records}
    for scenario in scenarios:
        assert (scenario.name, "hub") in cases
        assert ((scenario.name, "forwarder") in cases) == (scenario.limit is not None)
    for record in results.records:
        assert record.run.received == record.run.deliveries > 0, record
        assert not record.run.lost, record
        assert not record.run.disorder, record
        assert record.run.cpu > 0, record


KINDS = [str(kind) for scenario in SCENARIOS if scenario.job == "clients" for kind in scenario.options]


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_python_clients(place: Path, kind: str) -> None:
    receivers = 3 if kind == "many" else 1
    with daemons.hub(str(place / "bus")) as hub:
        run = clients.run(kind, hub.address, hub.pids, 300, receivers=receivers)
    assert (run.messages, run.received, run.lost) == (300, 300 * receivers, 0)
    assert run.seconds > 0
    assert run.cpu > 0


def test_without_a_compiler(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBUS_SYSCALLS", "plain")
    results = measure(place, ["dealt", "churn", "stopped", "trip"], "")
    assert results.left_out == ["the forwarder and other brokers under load: there is no C compiler (cc)"]
    assert {record.target for record in results.records} == {"hub"}
    assert len(results.records) == 4
    for record in results.records:
        assert record.run.received == record.run.deliveries > 0, record
        assert not record.run.disorder, record


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
def test_streams(place: Path, tools: Tools, receivers: int) -> None:
    echo = Echo(place)
    run = echo.run(tools.load, 500, receivers=receivers)
    echo.close()
    assert (run.messages, run.deliveries, run.received, run.lost) == (500, 500 * receivers, 500 * receivers, 0)


@needs_compiler
def test_round_trips_over_streams(place: Path, tools: Tools) -> None:
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
def test_a_broker_that_is_installed(running: Broker, tools: Tools) -> None:
    assert running.version()
    for size, receivers in ((100, 1), (8_192, 3)):
        run = running.run(tools.load, 200, receivers=receivers, size=size)
        assert (run.received, run.lost, run.disorder) == (200 * receivers, 0, 0)
    assert running.run(tools.load, 20, trips=True).received == 40
    for kind, (name, distribution) in clients.KINDS.items():
        if name == running.name and is_installed(distribution):
            run = clients.run(kind, running.address, running.pids, 100)
            assert (run.received, run.lost) == (100, 0)


def test_a_broker_that_is_not_installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    for make in (brokers.Redis, brokers.Nats, brokers.Mosquitto):
        with pytest.raises(NotInstalledError, match="is not installed"):
            make(place).command()


def test_a_client_that_fails_says_why(place: Path) -> None:
    with pytest.raises(StateError, match="no hub at"):
        clients.run("blocking", str(place / "none"), [os.getpid()], 10)


def test_a_load_that_fails_says_why(place: Path, tools: Tools) -> None:
    with pytest.raises(StateError, match="No such file"):
        Tools(place, "").load("trip", "-a", place / "none")
    if COMPILER is not None:
        with pytest.raises(StateError, match="No such file"):
            tools.load("packets", "-a", place / "none", "-P", os.getpid())


@needs_compiler
def test_the_load_finds_the_daemon_by_its_socket(place: Path, tools: Tools) -> None:
    with HubThread(str(place / "bus")):
        run = tools.load("packets", "-a", place / "bus", "-n", 200)
        assert (run.received, run.lost) == (200, 0)
        assert run.cpu > 0
        assert daemons.other(str(place / "bus")).pids == [os.getpid()]


def test_what_the_kernel_tells() -> None:
    before = cpu_seconds([os.getpid()])
    assert before > 0
    assert cpu_seconds([os.getpid(), os.getpid()]) >= 2 * before
    assert resident_bytes(os.getpid()) > 1_000_000
    machine = describe_machine()
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert os.uname().nodename not in (machine.kernel, machine.processor)
