"""Figures of runs that never were, for the tests of results and tables."""

from __future__ import annotations

from sbuslib.bench.results import Machine, Measurement, Plan, Results, Run

MACHINE = Machine(processor="One", cores=2, memory_gib=4.0, kernel="Linux 6", python="CPython 3.11", load=0.5)


def run(rate: float, cpu: float, *, lost: int = 0, trip: float | None = None) -> Run:
    """A run of 1,000 messages in so many messages a second, at so many microseconds of CPU each."""
    return Run(
        messages=1_000,
        deliveries=1_000 + lost,
        received=1_000,
        lost=lost,
        seconds=1_000 / rate,
        cpu=cpu * 1_000 / 1e6,
        median=trip,
        p99=trip,
    )


def results(*records: tuple[str, str, int, Run]) -> Results:
    return Results(
        started="2026-01-02T03:04:05+00:00",
        machine=MACHINE,
        plan=Plan(rounds=3),
        versions={"sbuslib": "1"},
        omitted=["NATS: nats-server is not installed"],
        records=[
            Measurement(scenario=scenario, target=target, round=number, run=one)
            for scenario, target, number, one in records
        ],
    )


def measured() -> Results:
    return results(
        *(("one", "hub", n, run(1_000 * (n + 1), 4, lost=n)) for n in range(3)),
        *(("one", "forwarder", n, run(4_000, 2 + n)) for n in range(3)),
        *(("one", "redis", n, run(500, 10)) for n in range(3)),
        *(("churn", "hub", n, run(1_000, 8)) for n in range(3)),
        *(("trip", "hub", n, run(1_000, 20, trip=40e-6)) for n in range(3)),
        *(("trip", "forwarder", n, run(2_000, 5, trip=20e-6)) for n in range(3)),
        *(("many", "hub", n, run(1_500, 1)) for n in range(3)),
        ("python", "hub", 0, run(300_000, 3)),
        ("python", "hub-aio", 0, run(100_000, 3)),
        ("python", "zeromq", 0, run(150_000, 1)),
        ("python", "zeromq-frame", 0, run(400_000, 1)),
    )
