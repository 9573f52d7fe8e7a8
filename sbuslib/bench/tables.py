"""Benchmark results as tables for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .results import Results, Summary
from .scenarios import SCENARIOS, Scenario

Title: TypeAlias = Callable[[Scenario, str], str]
"""Gives the title of a target in a scenario, as :func:`title_of` does."""

TITLES = {
    "hub": "sbuslib",
    "hub-blocking": "sbuslib, without gevent",
    "hub-aio": "sbuslib, asyncio",
    "forwarder": "C forwarder",
    "daemon": "the daemon given",
}
"""The title of each target, in the order in which they are shown."""


def title_of(scenario: Scenario, target: str) -> str:
    """Return the title of a target in a scenario."""
    return TITLES.get(target, target)


def scenarios_of(results: Results) -> list[Scenario]:
    """Return the scenarios that were run, in the order of :mod:`.scenarios`."""
    there = {record.scenario for record in results.records}
    return [scenario for scenario in SCENARIOS if scenario.name in there]


def count(value: float) -> str:
    """Format a rate in thousands, with three significant digits."""
    return f"{value / 1e6:.2f} M" if value >= 999_500 else f"{value / 1e3:.0f} k" if value >= 9_950 else f"{value:,.0f}"


def spread(summary: Summary | None, form: Callable[[float], str]) -> str:
    """Format a median and its quartiles, with the unit once: ``1.45 M (1.38-1.47)``. A dash if there is none."""
    if summary is None:
        return "-"
    middle, low, high = form(summary.median), form(summary.low), form(summary.high)

    # The unit of all three stands beside the median.
    unit = middle.partition(" ")[2]
    if unit and low.endswith(unit) and high.endswith(unit):
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    return middle if low == high else f"{middle} ({low}-{high})"


def micro(value: float) -> str:
    """Format a number of microseconds."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def times(value: float) -> str:
    """Format a ratio."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def describe(results: Results) -> str:
    """Describe the machine and the versions of programs, in one or two lines."""
    machine, plan = results.machine, results.plan
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return (
        f"{results.started[:10]}: {machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB, "
        f"{machine.kernel}, {machine.python}, load {machine.load:g} at the start; {plan.rounds} rounds of "
        f"{plan.seconds:g} s, payloads of {plan.payload} bytes unless said otherwise; {versions}."
    )


HEADING = ("scenario", "deliveries/s", "hub CPU, µs/message", "CPU, compared")


def rows(results: Results, target: str = "hub") -> list[list[str]]:
    """Make a row of cells for each scenario, with the hub's figures under :data:`HEADING`."""
    cells = []
    for scenario in scenarios_of(results):
        name = scenario.name
        if target not in results.targets(name):
            continue
        ours, limit = (name, target), (name, "forwarder")

        # A round trip's time, or else the rate; and the number of lost messages, if any.
        if scenario.job == "trip":
            shared = [run.one_core for run in results.runs(*ours).values() if run.one_core is not None]
            rate = spread(results.figure(*ours, "trip"), micro) + " µs"
            rate += f", {sum(shared)} of {len(shared)} on one core" if shared else ""
        else:
            rate = spread(results.figure(*ours, "rate"), count)
        if lost := results.lost(*ours):
            rate += f", {lost:,} lost"

        # Compared with the forwarder, or with the scenario to which this one adds something.
        speed = results.ratio(limit, ours, "cpu")
        cost = results.ratio(ours, (scenario.base or "", target), "cpu")
        compared = [f"speed {spread(speed, times)}"] if speed is not None else []
        compared += [f"cost {spread(cost, times)} of {scenario.base}"] if cost is not None else []
        used = spread(results.figure(*ours, "cpu"), micro)
        cells.append([scenario.title, rate, used, "; ".join(compared) or "-"])
    return cells


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def everything(results: Results, title: Title = title_of) -> list[list[str]]:
    """Make rows of cells for every scenario against every target, the heading first."""
    table = [["scenario", "target", "deliveries/s", "CPU, µs/message", "trip, µs", "lost", "ours, times as fast"]]
    for scenario in scenarios_of(results):
        name = scenario.name
        for target in results.targets(name):
            ours, other, faster = (name, "hub"), (name, target), None

            if target != "hub":
                trip = scenario.job == "trip"
                faster = results.ratio(other, ours, "trip") if trip else results.ratio(ours, other, "rate")
            table.append(
                [
                    scenario.title,
                    title(scenario, target),
                    spread(results.figure(*other, "rate"), count),
                    spread(results.figure(*other, "cpu"), micro),
                    spread(results.figure(*other, "trip"), micro),
                    f"{results.lost(*other):,}",
                    spread(faster, times),
                ]
            )
    return table


def terminal(results: Results, title: Title = title_of) -> str:
    """Format all figures as lines of text. ``title`` gives the title of a target."""
    lines = [describe(results), "", *_aligned(everything(results, title))]
    ours = rows(results) or rows(results, "daemon")
    if ours:
        lines += ["", *_aligned([list(HEADING), *ours])]
    lines += ["", *(f"left out: {line}" for line in results.omitted)] if results.omitted else []
    return "\n".join(lines) + "\n"
