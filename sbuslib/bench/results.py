"""Results as values: the runs, the machine, and the figures and ratios computed from them. Pure.

Figures are medians over the rounds, with quartiles. A ratio is computed within each round, between two runs that were
close together in time. The result is the median of these ratios, so a disturbance of the machine affects both runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import msgspec

from ..malformed import MALFORMED

FORMAT = 1
"""The version of the JSON. Readers refuse other versions."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of a load.

    ``messages`` is how many were published, and ``deliveries`` how many should have come. ``received`` came, ``lost``
    did not, and ``disorder`` came out of the publisher's order or with a wrong length. ``seconds`` is the time from the
    first to the last message, ``cpu`` the CPU time of the daemon in seconds. ``median`` and ``p99`` are the seconds of
    a round trip, and ``one_core`` whether load and daemon shared a core when it ended. ``churned`` is how many patterns
    were subscribed to during the run.
    """

    messages: int
    deliveries: int
    received: int
    seconds: float
    cpu: float
    lost: int = 0
    disorder: int = 0
    churned: int = 0
    median: float | None = None
    p99: float | None = None
    one_core: bool | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a measurement. Without host name and paths."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    load: float
    """Processes that were running or waiting to, on average over the last minute."""


class Summary(msgspec.Struct, frozen=True):
    """The median and the quartiles of so many values."""

    median: float
    low: float
    high: float
    count: int


def summarize(values: Iterable[float]) -> Summary | None:
    """Compute the median and the quartiles; ``None`` without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    if len(ordered) == 1:
        return Summary(ordered[0], ordered[0], ordered[0], 1)
    low, middle, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return Summary(middle, low, high, len(ordered))


def _rate(run: Run) -> float | None:
    return run.received / run.seconds if run.seconds > 0 else None


def _cpu(run: Run) -> float | None:
    return run.cpu / run.messages * 1e6 if run.cpu > 0 else None


def _trip(run: Run) -> float | None:
    return run.median * 1e6 if run.median is not None else None


def _late(run: Run) -> float | None:
    return run.p99 * 1e6 if run.p99 is not None else None


METRICS: dict[str, Callable[[Run], float | None]] = {"rate": _rate, "cpu": _cpu, "trip": _trip, "late": _late}
"""``rate``: deliveries a second, as the receivers saw them. ``cpu``: microseconds of the daemon's CPU for each
message that was published. ``trip`` and ``late``: microseconds of a round trip, at the median and at the 99th
percentile."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a scenario against a target in a round."""

    scenario: str
    target: str
    round: int
    run: Run


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Amount of measurement: rounds, the planned seconds of a run, and the bytes of a payload."""

    rounds: int = 7
    seconds: float = 0.5
    minutes: float = 7.5
    """No round begins that would end later than this after the start."""
    payload: int = 100
    idle_clients: int = 10_000
    idle_patterns: int = 100_000
    fill: int = 67_000
    """Messages until the queue of a receiver that never reads is full: ``Limits.queued_packets`` and what the kernel
    holds."""


class Results(msgspec.Struct, kw_only=True):
    """All that a report holds."""

    format: int = FORMAT
    started: str
    """Time of the start, as ISO 8601 in UTC."""
    machine: Machine
    plan: Plan
    versions: dict[str, str]
    """Of the programs that were measured."""
    omitted: list[str] = msgspec.field(name="left_out")
    """Cases that were not measured, each a line with the reason."""
    records: list[Measurement]

    def runs(self, scenario: str, target: str) -> dict[int, Run]:
        """Return the runs of a scenario against a target, by round."""
        return {
            record.round: record.run
            for record in self.records
            if record.scenario == scenario and record.target == target
        }

    def targets(self, scenario: str) -> list[str]:
        """Return the targets of a scenario, in the order of their first runs."""
        return list(dict.fromkeys(record.target for record in self.records if record.scenario == scenario))

    def figure(self, scenario: str, target: str, metric: str) -> Summary | None:
        """Compute a figure of :data:`METRICS`; ``None`` where it was not measured."""
        values = [METRICS[metric](run) for run in self.runs(scenario, target).values()]
        return summarize(value for value in values if value is not None)

    def ratio(self, over: tuple[str, str], under: tuple[str, str], metric: str) -> Summary | None:
        """Divide the figure of one scenario and target by that of another in each round; ``None`` without rounds."""
        dividends, divisors = self.runs(*over), self.runs(*under)
        ratios = []
        for number in sorted(dividends.keys() & divisors.keys()):
            a, b = METRICS[metric](dividends[number]), METRICS[metric](divisors[number])
            if a is not None and b:
                ratios.append(a / b)
        return summarize(ratios)

    def lost(self, scenario: str, target: str) -> int:
        """Count the deliveries lost in all rounds."""
        return sum(run.lost for run in self.runs(scenario, target).values())

    def disorder(self, scenario: str, target: str) -> int:
        """Count the deliveries out of order or of a wrong length, in all rounds."""
        return sum(run.disorder for run in self.runs(scenario, target).values())


def encode(results: Results) -> bytes:
    """Encode the raw figures as JSON."""
    return msgspec.json.format(msgspec.json.encode(results)) + b"\n"


def decode(data: bytes) -> Results:
    """Decode raw figures from JSON. Raises :exc:`ValueError` for anything else."""
    try:
        results = msgspec.json.decode(data, type=Results)
    except MALFORMED as error:
        raise ValueError(f"no figures of this program: {error}") from None
    if results.format != FORMAT:
        raise ValueError(f"figures of another form, {results.format} and not {FORMAT}")
    return results
