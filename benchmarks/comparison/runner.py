"""Other brokers as part of a run of :class:`sbuslib.bench.runner.Bench`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator

from sbuslib.bench.results import Run
from sbuslib.bench.runner import Bench, Case
from sbuslib.bench.scenarios import Scenario
from sbuslib.errors import StateError

from . import clients
from .broker import Broker
from .brokers import BROKERS

__all__ = ["BESIDE", "COMPARED", "OtherBrokers"]

COMPARED = ("one", "ten", "large", "trip", "python")
"""The scenarios that other brokers are measured in."""

BESIDE = {"one": ("batched", "many"), "ten": ("batched-ten", "many-ten")}
"""Scenarios whose figures of the hub are shown beside these: the same work, done in another way."""


class OtherBrokers:
    """The brokers that are installed. Implements :class:`sbuslib.bench.runner.Others`."""

    def __init__(self) -> None:
        self._brokers: list[Broker] = []

    def start(self, bench: Bench) -> None:
        """Start them, to end with the bench; what is not installed, or does not start, is left out and told."""
        for make in BROKERS:
            folder = bench.folder / make.name
            folder.mkdir()
            broker = make(folder)
            try:
                bench.versions[broker.title] = broker.version()
                self._brokers.append(bench.stack.enter_context(broker.running()))
            except StateError as error:
                bench.omitted.append(f"{broker.title}: {error}")

    def cases(self, bench: Bench, scenario: Scenario) -> Iterator[Case]:
        """A scenario against each broker, or against each Python client of one."""
        if scenario.name not in COMPARED:
            return
        if scenario.job == "clients":
            yield from self._client_cases(bench, scenario)
        else:
            for broker in self._brokers:
                yield Case(scenario, broker.name, _broker_run(bench, scenario, broker))

    def _client_cases(self, bench: Bench, scenario: Scenario) -> Iterator[Case]:
        brokers = {broker.name: broker for broker in self._brokers}
        for kind, (name, distribution) in clients.KINDS.items():
            if name not in brokers:
                continue
            try:
                bench.versions[distribution] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                bench.omitted.append(f"Python clients, {kind}: {distribution} is not installed")
                continue
            yield Case(scenario, kind, _client_run(bench, scenario, kind, brokers[name]))


def _broker_run(bench: Bench, scenario: Scenario, broker: Broker) -> Callable[[int], Run]:
    def run(count: int) -> Run:
        size, trips = bench.size(scenario), scenario.job == "trip"
        return broker.run(bench.tools.load, count, receivers=scenario.receivers, size=size, trips=trips)

    return run


def _client_run(bench: Bench, scenario: Scenario, kind: str, broker: Broker) -> Callable[[int], Run]:
    def run(count: int) -> Run:
        size = bench.size(scenario)
        return clients.run(kind, broker.address, broker.pids, count, size=size, receivers=scenario.receivers)

    return run
