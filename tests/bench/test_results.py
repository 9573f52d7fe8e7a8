"""Medians, ratios, the tables made of them, and the form of the raw figures."""

from __future__ import annotations

import msgspec
import pytest

from sbuslib.bench import tables
from sbuslib.bench.results import Machine, Plan, Record, Results, Run, Summary, decode, encode, summarize
from sbuslib.bench.scenarios import SCENARIOS, find

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
        left_out=["NATS: nats-server is not installed"],
        records=[
            Record(scenario=scenario, target=target, round=number, run=one) for scenario, target, number, one in records
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


def test_medians_and_quartiles_are_computed() -> None:
    assert summarize([]) is None
    assert summarize([7]) == Summary(7, 7, 7, 1)
    assert summarize([5, 1, 2, 4, 3]) == Summary(3, 2, 4, 5)
    assert summarize([1, 2]) == Summary(1.5, 1.25, 1.75, 2)


def test_figures_are_written_short() -> None:
    told = measured()
    assert told.figure("one", "hub", "rate") == Summary(2_000, 1_500, 2_500, 3)
    cpu = told.figure("one", "forwarder", "cpu")
    assert cpu is not None
    assert (cpu.median, cpu.low, cpu.high) == pytest.approx((3, 2.5, 3.5))
    assert told.figure("one", "hub", "trip") is None
    assert told.figure("one", "nats", "rate") is None
    trip = told.figure("trip", "hub", "trip")
    assert trip is not None
    assert trip.median == pytest.approx(40)
    assert told.lost("one", "hub") == 3
    assert told.disorder("one", "hub") == 0


def test_ratios_are_taken_within_a_round() -> None:
    told = results(
        ("one", "hub", 0, run(100, 1)),
        ("one", "hub", 1, run(10, 10)),  # when the whole machine was slow
        ("one", "hub", 2, run(100, 1)),
        ("one", "forwarder", 0, run(200, 0.5)),
        ("one", "forwarder", 1, run(20, 5)),
        ("four", "hub", 0, run(50, 2)),
    )
    ratio = told.ratio(("one", "hub"), ("one", "forwarder"), "rate")
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high, ratio.count) == pytest.approx((0.5, 0.5, 0.5, 2))
    speed = told.ratio(("one", "forwarder"), ("one", "hub"), "cpu")
    assert speed is not None
    assert speed.median == pytest.approx(0.5)
    assert told.ratio(("one", "hub"), ("one", "nats"), "rate") is None
    only = told.ratio(("four", "hub"), ("one", "hub"), "cpu")
    assert only is not None
    assert only.median == pytest.approx(2)
    assert only.count == 1


def test_a_figure_that_was_not_measured_makes_no_ratio() -> None:
    told = results(("one", "hub", 0, run(100, 0)), ("one", "forwarder", 0, run(100, 0)))
    assert told.figure("one", "hub", "cpu") is None
    assert told.ratio(("one", "hub"), ("one", "forwarder"), "cpu") is None


def test_raw_figures_are_read_back() -> None:
    assert decode(encode(measured())) == measured()
    for data in (b"", b"{}", b"\xff", b"[1]"):
        with pytest.raises(ValueError, match="no figures"):
            decode(data)
    newer = msgspec.json.decode(encode(measured())) | {"format": 2}
    with pytest.raises(ValueError, match="another form"):
        decode(msgspec.json.encode(newer))


def test_the_format_of_raw_figures_is_stable() -> None:
    """Programs read this JSON: a change of it needs another ``FORMAT``."""
    told = msgspec.json.decode(msgspec.json.encode(results(("trip", "hub", 0, run(1_000, 2, trip=0.5)))))
    assert told == {
        "format": 1,
        "started": "2026-01-02T03:04:05+00:00",
        "machine": {
            "processor": "One",
            "cores": 2,
            "memory_gib": 4.0,
            "kernel": "Linux 6",
            "python": "CPython 3.11",
            "load": 0.5,
        },
        "plan": {
            "rounds": 3,
            "seconds": 0.5,
            "minutes": 7.5,
            "payload": 100,
            "idle_clients": 10_000,
            "idle_patterns": 100_000,
            "fill": 67_000,
        },
        "versions": {"sbuslib": "1"},
        "left_out": ["NATS: nats-server is not installed"],
        "records": [
            {
                "scenario": "trip",
                "target": "hub",
                "round": 0,
                "run": {
                    "messages": 1_000,
                    "deliveries": 1_000,
                    "received": 1_000,
                    "seconds": 1.0,
                    "cpu": 0.002,
                    "lost": 0,
                    "disorder": 0,
                    "churned": 0,
                    "median": 0.5,
                    "p99": 0.5,
                },
            }
        ],
    }


def test_the_table_of_the_hub_has_a_line_for_each_scenario() -> None:
    table = {row[0]: row[1:] for row in tables.rows(measured())}
    assert table["one to one"] == [
        "2,000 (1,500-2,500)",
        "4.00",
        "0.75 (0.62-0.88)",
        "0.50 (0.38-0.62)",
        "-",
        "-",
        "3",
    ]
    assert table["beside 1,000 new patterns a second"][4:6] == ["2.00 of one", "0.50 (0.42-0.75)"]
    assert table["round trip"][:4] == ["40.00 µs", "20.00", "0.25", "0.50"]
    assert table["Python client to Python client"][0] == "300 k"


def test_every_case_is_in_the_table() -> None:
    heading, *body = tables.everything(measured())
    assert {len(row) for row in body} == {len(heading)}
    faster = {(row[0], row[1]): row[-1] for row in body}
    assert faster["one to one", "sbuslib"] == "-"
    assert faster["one to one", "redis"] == "4.00 (3.00-5.00)"
    assert faster["round trip", "C forwarder"] == "0.50"
    assert faster["Python client to Python client", "zeromq"] == "2.00"
    text = tables.terminal(measured())
    assert "One, 2 cores" in text
    assert "left out: NATS: nats-server is not installed" in text


def test_scenarios_refer_to_existing_scenarios() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    for scenario in SCENARIOS:
        assert find(scenario.name) is scenario
        assert scenario.base is None or scenario.base in names
    with pytest.raises(KeyError):
        find("none")
