"""Runner of a plan: it starts the daemons, finds how many messages each run needs, and runs all cases in turns.

All hubs, forwarders and brokers are started first and stay until the end. In each round, each scenario is run against
each of its targets, in an order that changes from round to round.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import msgspec

from ..errors import SbusError, StateError
from . import daemons, python_clients
from .native import Tools
from .process import describe_machine, raise_descriptor_limit
from .results import Measurement, Plan, Results, Run
from .scenarios import Scenario

HUB = "hub"
"""The target that is a hub of this package. With a Python client other than gevent's it is ``hub-<kind>``."""
FORWARDER = "forwarder"
OTHER = "daemon"
_SPARE_DESCRIPTORS = 256
_LEAST = 64
"""Messages of the shortest run."""
_TRIAL = 10
"""The first run of each case does not count. It has this part of the expected number of messages."""


class Case(msgspec.Struct, frozen=True):
    """A scenario against a target. ``run`` runs it with a number of messages, and raises the errors of the load."""

    scenario: Scenario
    target: str
    run: Callable[[int], Run]


class Others(Protocol):
    """Further targets in the same run, for example other brokers."""

    def start(self, bench: Bench) -> None:
        """Start the targets. The bench calls it once."""

    def cases(self, bench: Bench, scenario: Scenario) -> Iterator[Case]:
        """Return the cases of a scenario."""


class Bench:
    """Measures scenarios. The processes that it starts end with ``stack``, and its files are in ``folder``.

    ``address`` is a daemon that is measured in place of a hub, or, with ``beside``, in addition to it. ``others`` has
    further targets. ``version`` is the release of the hub. ``say`` is called with each line about progress.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        plan: Plan,
        say: Callable[[str], None],
        *,
        version: str,
        address: str | None = None,
        beside: bool = False,
        others: Others | None = None,
    ) -> None:
        self.stack = stack
        self.folder = folder
        self._plan = plan
        self._say = say
        self._address = address

        #: Whether a hub of this package is measured.
        self._own = address is None or beside
        #: A line for each case that was not measured.
        self.omitted: list[str] = []
        #: Of the packages and programs that are measured.
        self.versions = {"sbuslib": version, "gevent": importlib.metadata.version("gevent")}
        #: The programs in C.
        self.tools = Tools(folder)
        #: The daemons to measure, by name.
        self._places: dict[str, daemons.Daemon | None] = {}
        if address is not None:
            self._places[OTHER] = daemons.other(address)
        self._others = others
        if others is not None:
            others.start(self)

    # -- targets ------------------------------------------------------------------------------------------------

    def _place(self, name: str) -> daemons.Daemon | None:
        """Return the daemon of this kind. The first call starts it; ``None`` if that is impossible here."""
        if name not in self._places:
            try:
                self._places[name] = self._make_place(name)
            except (SbusError, OSError) as error:
                self.omitted.append(f"{name}: {error}")
                self._places[name] = None
        return self._places[name]

    def _make_place(self, name: str) -> daemons.Daemon:
        enter, path = self.stack.enter_context, str(self.folder / name)
        if name in ("all", "deal"):
            return enter(daemons.forwarder(self.tools.forwarder, path, deal=name == "deal"))
        if name == "relay":
            return enter(daemons.relayed(path, path + "-below"))
        hub = enter(daemons.hub(path))
        if name == "clients":
            room = raise_descriptor_limit() - _SPARE_DESCRIPTORS
            if room < self._plan.idle_clients:
                raise StateError(f"only {room:,} descriptors, {self._plan.idle_clients:,} are wanted (ulimit -n)")
            enter(daemons.idle_clients(path, self._plan.idle_clients))
        if name == "patterns":
            enter(daemons.idle_patterns(path, self._plan.idle_patterns))
        return hub

    def cases(self, scenarios: Sequence[Scenario]) -> list[Case]:
        """Return all scenarios against all their targets on this machine."""
        raise_descriptor_limit()
        return [case for scenario in scenarios for case in self._cases(scenario)]

    def _cases(self, scenario: Scenario) -> Iterator[Case]:
        yield from self._own_cases(scenario)
        if self._others is not None:
            yield from self._others.cases(self, scenario)

    def _own_cases(self, scenario: Scenario) -> Iterator[Case]:
        if scenario.job == "clients":
            yield from self._client_cases(scenario)
            return
        if self._own:
            yield from self._load_case(scenario, HUB, scenario.place)
        if self._address is not None and scenario.place == "hub":
            yield from self._load_case(scenario, OTHER, OTHER)
        if scenario.limit is not None:
            yield from self._load_case(scenario, FORWARDER, scenario.limit)

    def size(self, scenario: Scenario) -> int:
        """Return the bytes of a payload."""
        return scenario.size if scenario.size is not None else self._plan.payload

    def _load_case(self, scenario: Scenario, target: str, place: str) -> Iterator[Case]:
        daemon = self._place(place)
        if daemon is None:
            return
        if scenario.needs is not None and not daemon.offers(scenario.needs):
            self.omitted.append(f"{scenario.title}, {target}: no {scenario.needs.decode()}")
            return
        options = [*daemon.options(), "-r", scenario.receivers, "-s", self.size(scenario), *scenario.options]

        def run(count: int) -> Run:
            warm = self._plan.fill if scenario.fill else max(1, count // _TRIAL)
            return self.tools.load(scenario.job, "-n", count, "-w", warm, *options)

        yield Case(scenario, target, run)

    def _client_cases(self, scenario: Scenario) -> Iterator[Case]:
        def case(target: str, kind: str, address: str, pids: list[int]) -> Case:
            return Case(
                scenario,
                target,
                lambda count: python_clients.run(
                    kind, address, pids, count, size=self.size(scenario), receivers=scenario.receivers
                ),
            )

        daemon = self._place(scenario.place if self._own else OTHER)
        if daemon is not None:
            for number, kind in enumerate(map(str, scenario.options)):
                yield case(f"{HUB}-{kind}" if number else HUB, kind, daemon.address, daemon.pids)

    # -- measuring ------------------------------------------------------------------------------------------------

    def measure(self, scenarios: Sequence[Scenario]) -> Results:
        """Measure the scenarios. Cases that fail are left out, with a message."""
        # 1. The cases. Each is tried once, so that rounds have only cases that work.
        end = time.monotonic() + 60 * self._plan.minutes
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        machine = describe_machine()
        cases = self.cases(scenarios)
        self._say(f"{len(cases)} cases, {self._plan.rounds} rounds; first each is tried once, which does not count")
        counts = {id(case): count for case in cases if (count := self._try(case))}
        cases = [case for case in cases if id(case) in counts]

        # 2. In rounds, so that other load on the machine falls on all cases alike.
        records: list[Measurement] = []
        before, longest = time.monotonic(), 0.0
        for number in range(self._plan.rounds):
            now = time.monotonic()
            longest, before = max(longest, now - before), now
            if number and now + longest > end:
                self._say("no time for another round")
                self.omitted.append(f"rounds after {number}: they would have taken longer than the plan allows")
                break
            self._say(f"round {number + 1} of {self._plan.rounds}")
            for case in _turned(cases, number):
                run = self._run(case, counts[id(case)])
                if run is not None:
                    records.append(Measurement(scenario=case.scenario.name, target=case.target, round=number, run=run))

        # 3. In the order of the table.
        order = {(case.scenario.name, case.target): n for n, case in enumerate(cases)}
        records.sort(key=lambda record: (record.round, order[record.scenario, record.target]))
        return Results(
            started=started,
            machine=machine,
            plan=self._plan,
            versions=self.versions,
            omitted=[self._without_paths(line) for line in self.omitted],
            records=records,
        )

    def _without_paths(self, line: str) -> str:
        """Remove paths from an error: results are shared, and should not reveal details of the machine."""
        line = line.replace(f"{self.folder}/", "")
        return line.replace(self._address, "the address given") if self._address else line

    def _try(self, case: Case) -> int | None:
        """Find the number of messages for a run of the planned length; ``None`` when the case fails."""
        guess = int(case.scenario.count * self._plan.seconds / 0.5)
        run = self._run(case, max(_LEAST, guess // _TRIAL))
        if run is None:
            return None
        if not run.seconds:
            self.omitted.append(f"{case.scenario.title}, {case.target}: nothing came")
            return None
        trips = 2 if case.scenario.job == "trip" else 1
        count = max(_LEAST, int(run.messages / trips / run.seconds * self._plan.seconds))
        return min(count, case.scenario.most) if case.scenario.most is not None else count

    def _run(self, case: Case, count: int) -> Run | None:
        try:
            return case.run(count)
        except (SbusError, OSError) as error:
            line = f"{case.scenario.title}, {case.target}: {error}"
            if line not in self.omitted:
                self.omitted.append(line)
                self._say(line)
            return None


def _turned(cases: list[Case], number: int) -> Iterator[Case]:
    """Yield the cases in their order. In each round, another case of each scenario comes first."""
    by_scenario: dict[str, list[Case]] = {}
    for case in cases:
        by_scenario.setdefault(case.scenario.name, []).append(case)
    for alternatives in by_scenario.values():
        turn = number % len(alternatives)
        yield from alternatives[turn:]
        yield from alternatives[:turn]
