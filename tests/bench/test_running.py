"""Each scenario runs, with tiny numbers, with the load in C and with the one in Python."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import HubThread

from sbuslib.bench import clients, daemons
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
def test_each_scenario_can_be_run(place: Path) -> None:
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
def test_python_clients_are_measured(place: Path, kind: str) -> None:
    receivers = 3 if kind == "many" else 1
    with daemons.hub(str(place / "bus")) as hub:
        run = clients.run(kind, hub.address, hub.pids, 300, receivers=receivers)
    assert (run.messages, run.received, run.lost) == (300, 300 * receivers, 0)
    assert run.seconds > 0
    assert run.cpu > 0


def test_without_a_compiler_the_load_is_in_python(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBUS_SYSCALLS", "plain")
    results = measure(place, ["dealt", "churn", "stopped", "trip"], "")
    assert results.left_out == ["what needs the load in C, such as the forwarder: there is no C compiler (cc)"]
    assert {record.target for record in results.records} == {"hub"}
    assert len(results.records) == 4
    for record in results.records:
        assert record.run.received == record.run.deliveries > 0, record
        assert not record.run.disorder, record


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(tmp_path_factory.mktemp("tools"))


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
def test_the_process_of_a_daemon_is_found_by_its_socket(place: Path, tools: Tools) -> None:
    with HubThread(str(place / "bus")):
        run = tools.load("packets", "-a", place / "bus", "-n", 200)
        assert (run.received, run.lost) == (200, 0)
        assert run.cpu > 0
        assert daemons.other(str(place / "bus")).pids == [os.getpid()]


def test_cpu_time_and_memory_of_a_process_are_read() -> None:
    before = cpu_seconds([os.getpid()])
    assert before > 0
    assert cpu_seconds([os.getpid(), os.getpid()]) >= 2 * before
    assert resident_bytes(os.getpid()) > 1_000_000
    machine = describe_machine()
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert os.uname().nodename not in (machine.kernel, machine.processor)
