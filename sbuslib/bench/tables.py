"""Results as tables: for a terminal, and for the pages of the documentation. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from .results import Results, Summary
from .scenarios import SCENARIOS, Scenario, find

__all__ = [
    "BEGIN",
    "END",
    "HEADING",
    "TITLES",
    "count",
    "describe",
    "everything",
    "in_batches",
    "markdown",
    "micro",
    "replace_block",
    "rows",
    "scenarios_of",
    "terminal",
    "times",
    "title_of",
]

BEGIN = "<!-- figures: begin -->"
END = "<!-- figures: end -->"
"""The lines between which :func:`replace_block` writes."""

TITLES = {
    "hub": "sbuslib",
    "hub-batch": "sbuslib, in a batch",
    "hub-blocking": "sbuslib, without gevent",
    "hub-aio": "sbuslib, asyncio",
    "forwarder": "C forwarder",
    "daemon": "the daemon given",
    "redis": "Redis",
    "nats": "NATS",
    "mosquitto": "Mosquitto",
    "zeromq": "ZeroMQ proxy",
    "zeromq-frame": "ZeroMQ proxy, one frame",
    "rabbitmq": "RabbitMQ",
}
"""Of each target, in the order in which they are shown."""

_CLIENTS = {
    "redis": "redis-py, pipelines of 100",
    "nats": "nats-py",
    "zeromq": "pyzmq, key and payload apart",
    "zeromq-frame": "pyzmq, both in one frame",
    "mosquitto": "paho-mqtt",
}


_SHORT = ("one", "four", "ten", "large", "batched", "batched-ten", "trip", "python", "many", "many-ten")
"""The scenarios of the README."""


def title_of(scenario: Scenario, target: str) -> str:
    """What a target is called in a scenario."""
    clients = _CLIENTS if scenario.job == "clients" else {}
    return clients.get(target, TITLES.get(target, target))


def scenarios_of(results: Results) -> list[Scenario]:
    """The scenarios that were run, in their order."""
    there = {record.scenario for record in results.records}
    return [scenario for scenario in SCENARIOS if scenario.name in there]


def count(value: float) -> str:
    """A rate: three digits that count, in thousands."""
    return f"{value / 1e6:.2f} M" if value >= 999_500 else f"{value / 1e3:.0f} k" if value >= 9_950 else f"{value:,.0f}"


def spread(summary: Summary | None, form: Callable[[float], str]) -> str:
    """A median and its quartiles; a dash where there is none."""
    if summary is None:
        return "-"
    middle, low, high = form(summary.median), form(summary.low), form(summary.high)
    return middle if low == high else f"{middle} ({low}-{high})"


def micro(value: float) -> str:
    """Microseconds."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def times(value: float) -> str:
    """A ratio."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def describe(results: Results) -> str:
    """The machine and what ran on it, in a line or two."""
    machine, plan = results.machine, results.plan
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return (
        f"{results.started[:10]}: {machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB, "
        f"{machine.kernel}, {machine.python}, load {machine.load:g} at the start; {plan.rounds} rounds of "
        f"{plan.seconds:g} s, payloads of {plan.payload} bytes unless said otherwise; {versions}."
    )


HEADING = (
    "scenario",
    "deliveries/s",
    "hub CPU, µs/message",
    "speed by CPU, of the forwarder's",
    "wall, of the forwarder's",
    "CPU, of the plain case's",
    "wall, of the plain case's",
    "lost",
)


def rows(results: Results, target: str = "hub") -> list[list[str]]:
    """A row of cells for each scenario: what the heading says, of a target of ours."""
    found = []
    for scenario in scenarios_of(results):
        name = scenario.name
        if target not in results.targets(name):
            continue
        ours, limit = (name, target), (name, "forwarder")
        rate = spread(results.figure(*ours, "rate"), count)
        if scenario.job == "trip":
            rate = spread(results.figure(*ours, "trip"), micro) + " µs"
            wall = results.ratio(limit, ours, "trip")
        else:
            wall = results.ratio(ours, limit, "rate")
        plain = (scenario.base or "", target)
        cost, slower = results.ratio(ours, plain, "cpu"), results.ratio(ours, plain, "rate")
        found.append(
            [
                scenario.title,
                rate,
                spread(results.figure(*ours, "cpu"), micro),
                spread(results.ratio(limit, ours, "cpu"), times),
                spread(wall, times),
                f"{spread(cost, times)} of {scenario.base}" if cost is not None else "-",
                spread(slower, times),
                f"{results.lost(*ours):,}",
            ]
        )
    return found


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def everything(results: Results) -> list[list[str]]:
    """Every scenario against every target: rows of cells, the heading first."""
    table = [["scenario", "target", "deliveries/s", "CPU, µs/message", "trip, µs", "lost", "ours, times as fast"]]
    for scenario in scenarios_of(results):
        name = scenario.name
        for target in sorted(results.targets(name), key=list(TITLES).index):
            ours, other, faster = (name, "hub"), (name, target), None
            if target != "hub":
                trip = scenario.job == "trip"
                faster = results.ratio(other, ours, "trip") if trip else results.ratio(ours, other, "rate")
            table.append(
                [
                    scenario.title,
                    title_of(scenario, target),
                    spread(results.figure(*other, "rate"), count),
                    spread(results.figure(*other, "cpu"), micro),
                    spread(results.figure(*other, "trip"), micro),
                    f"{results.lost(*other):,}",
                    spread(faster, times),
                ]
            )
    return table


def in_batches(results: Results) -> list[list[str]]:
    """How fast many messages in one packet are beside brokers with batched writes: rows of cells, the heading first.

    Empty where nothing of it was measured.
    """
    brokers = [target for target in TITLES if target not in ("forwarder", "daemon") and not target.startswith("hub")]
    there = [target for target in brokers if any(record.target == target for record in results.records)]
    body = []
    for scenario in scenarios_of(results):
        for other in scenario.beside:
            cells = [
                spread(results.ratio((other, "hub"), (scenario.name, target), "rate"), times)
                for target in there
                if "-" not in target
            ]
            if any(cell != "-" for cell in cells):
                body.append([f"{find(other).title}, to {scenario.title}", *cells])
    if not body:
        return []
    return [["times as fast as", *(TITLES[target] for target in there if "-" not in target)], *body]


def terminal(results: Results) -> str:
    """All figures as lines of text."""
    lines = [describe(results), "", *_aligned(everything(results))]
    ours = rows(results) or rows(results, "daemon")
    if ours:
        lines += ["", *_aligned([list(HEADING), *ours])]
    if batches := in_batches(results):
        lines += ["", *_aligned(batches)]
    lines += ["", *(f"left out: {line}" for line in results.left_out)] if results.left_out else []
    return "\n".join(lines) + "\n"


def _table(heading: list[str], body: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (heading, ["---"] * len(heading), *body)]


def markdown(results: Results, *, short: bool) -> str:
    """The table of a page. ``short``: what the README shows, medians alone; else everything, with quartiles."""
    if not short:
        ours = _table(list(HEADING), rows(results))
        others = _table(*_beside(results, spread, tuple(one.name for one in SCENARIOS if one.brokers)))
        heading, *body = in_batches(results) or [[]]
        batches = ["", *_table(heading, body)] if body else []
        return "\n".join([_wrapped(describe(results)), "", *ours, "", *others, *batches]) + "\n"

    def middle(summary: Summary | None, form: Callable[[float], str]) -> str:
        return form(summary.median) if summary is not None else "-"

    return "\n".join([*_table(*_beside(results, middle, _SHORT)), "", _wrapped(describe(results))]) + "\n"


def _beside(
    results: Results,
    show: Callable[[Summary | None, Callable[[float], str]], str],
    names: tuple[str, ...],
) -> tuple[list[str], list[list[str]]]:
    """Scenarios down, targets across: rates, or times of round trips; and how we compare with the forwarder."""
    targets = [target for target in TITLES if target != "daemon" and "-" not in target]
    there = [target for target in targets if any(record.target == target for record in results.records)]
    heading = ["deliveries/s", *(TITLES[target] for target in there), "speed by CPU, of the forwarder's"]
    body = []
    for scenario in scenarios_of(results):
        name = scenario.name
        if name not in names:
            continue
        cells = [scenario.title]
        for target in there:
            if scenario.job == "trip":
                time = show(results.figure(name, target, "trip"), micro)
                cells.append(f"{time} µs" if time != "-" else time)
            else:
                cells.append(show(results.figure(name, target, "rate"), count))
                for variant, how in (("batch", "in a batch"), ("frame", "in one frame")):
                    other = results.figure(name, f"{target}-{variant}", "rate")
                    if other is not None:
                        cells[-1] += f"; {show(other, count)} {how}"
        cells.append(show(results.ratio((name, "forwarder"), (name, "hub"), "cpu"), times))
        body.append(cells)
    return heading, body


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False))


def replace_block(page: str, table: str) -> str:
    """``page`` with ``table`` between the marks. Raises :exc:`ValueError` where they are not there once each."""
    before, found, rest = page.partition(BEGIN + "\n")
    _, also, after = rest.partition(END + "\n")
    if not found or not also or BEGIN in after or END in before:
        raise ValueError(f"a page has one {BEGIN} and one {END} after it, each a line")
    return f"{before}{BEGIN}\n{table}{END}\n{after}"
