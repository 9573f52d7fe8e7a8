"""Medians, ratios, and the form of the raw figures."""

from __future__ import annotations

import msgspec
import pytest
from bench.figures import measured, results, run

from sbuslib.bench.results import Summary, decode, encode, summarize


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


def test_raw_figures_are_read_back() -> None:
    assert decode(encode(measured())) == measured()
    for data in (b"", b"{}", b"\xff", b"[1]"):
        with pytest.raises(ValueError, match="no figures"):
            decode(data)
    newer = msgspec.json.decode(encode(measured())) | {"format": 2}
    with pytest.raises(ValueError, match="another form"):
        decode(msgspec.json.encode(newer))
