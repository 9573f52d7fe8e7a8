"""Scenarios run, with tiny numbers, with the load in C and with the one in Python."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from sbuslib.bench import daemons
from sbuslib.bench.results import Plan, Results
from sbuslib.bench.runner import Bench
from sbuslib.bench.scenarios import SCENARIOS

TINY = Plan(rounds=1, seconds=0.001, idle_clients=20, idle_patterns=50, fill=200)


COMPILER = shutil.which("cc")


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


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


def test_without_a_compiler_the_load_is_in_python(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBUS_SYSCALLS", "plain")
    results = measure(place, ["dealt", "churn", "stopped", "trip"], "")
    assert results.left_out == ["what needs the load in C, such as the forwarder: there is no C compiler (cc)"]
    assert {record.target for record in results.records} == {"hub"}
    assert len(results.records) == 4
    for record in results.records:
        assert record.run.received == record.run.deliveries > 0, record
        assert not record.run.disorder, record
