"""Scenarios, clients in Python and daemons are measured, with tiny numbers."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import HubThread

from sbuslib.bench import daemons, python_clients
from sbuslib.bench.native import Tools
from sbuslib.bench.process import cpu_seconds, describe_machine, resident_bytes
from sbuslib.bench.results import Plan
from sbuslib.bench.runner import Bench
from sbuslib.bench.scenarios import SCENARIOS, find
from sbuslib.errors import StateError

TINY = Plan(rounds=1, seconds=0.001, idle_clients=20, idle_patterns=50, fill=200)
KINDS = {str(kind) for scenario in SCENARIOS if scenario.job == "clients" for kind in scenario.options}


def test_scenarios_refer_to_existing_scenarios() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    for scenario in SCENARIOS:
        assert find(scenario.name) is scenario
        assert scenario.base is None or scenario.base in names


def test_each_scenario_can_be_run(place: Path, tools: Tools) -> None:
    scenarios = [scenario for scenario in SCENARIOS if scenario.job != "clients"]
    with ExitStack() as stack:
        results = Bench(stack, place, TINY, print, version="1").measure(scenarios)
    assert results.omitted == []
    cases = {(record.scenario, record.target) for record in results.records}
    for scenario in scenarios:
        assert (scenario.name, "hub") in cases
        assert ((scenario.name, "forwarder") in cases) == (scenario.limit is not None)
    for record in results.records:
        assert record.run.received == record.run.deliveries > 0, record
        assert not record.run.lost, record
        assert not record.run.disorder, record
        assert record.run.cpu > 0, record


def test_without_a_compiler_it_says_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with ExitStack() as stack, pytest.raises(StateError, match="needs a C compiler, cc: apt-get install gcc"):
        Bench(stack, place, TINY, print, version="1")


def test_a_load_that_fails_says_why(place: Path, tools: Tools) -> None:
    with pytest.raises(StateError, match="No such file"):
        tools.load("packets", "-a", place / "none", "-P", os.getpid())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_python_clients_are_measured(place: Path, kind: str) -> None:
    receivers = 3 if kind == "many" else 1
    with daemons.hub(str(place / "bus")) as hub:
        run = python_clients.run(kind, hub.address, hub.pids, 300, receivers=receivers)
    assert (run.messages, run.received, run.lost) == (300, 300 * receivers, 0)
    assert min(run.seconds, run.cpu) > 0


def test_a_client_that_fails_says_why(place: Path) -> None:
    with pytest.raises(StateError, match="no hub at"):
        python_clients.run("blocking", str(place / "none"), [os.getpid()], 10)


def test_the_process_of_a_daemon_is_found_by_its_socket(place: Path, tools: Tools) -> None:
    with HubThread(str(place / "bus")):
        run = tools.load("packets", "-a", place / "bus", "-n", 200)
        assert (run.received, run.lost) == (200, 0)
        assert run.cpu > 0
        assert daemons.other(str(place / "bus")).pids == [os.getpid()]


def test_cpu_time_and_memory_of_a_process_are_read() -> None:
    before = cpu_seconds([os.getpid()])
    assert cpu_seconds([os.getpid(), os.getpid()]) >= 2 * before > 0
    assert resident_bytes(os.getpid()) > 1_000_000
    machine = describe_machine()
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert os.uname().nodename not in (machine.kernel, machine.processor)
