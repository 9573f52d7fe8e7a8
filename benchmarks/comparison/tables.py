"""Results beside other brokers as tables, for the pages of the documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from sbuslib.bench.results import Results, Summary
from sbuslib.bench.scenarios import Scenario
from sbuslib.bench.tables import HEADING, TITLES, count, describe, micro, rows, scenarios_of, spread, times

from .runner import COMPARED

__all__ = ["BEGIN", "END", "markdown", "replace_block", "title_of"]

BEGIN = "<!-- figures: begin -->"
END = "<!-- figures: end -->"
"""The lines between which :func:`replace_block` writes."""

_ALL_TITLES = {
    **TITLES,
    "redis": "Redis",
    "nats": "NATS",
    "mosquitto": "Mosquitto",
    "zeromq": "ZeroMQ proxy",
    "zeromq-frame": "ZeroMQ proxy, one frame",
    "rabbitmq": "RabbitMQ",
    "dbus": "D-Bus",
}
"""Of each target, in the order in which they are shown."""

_CLIENTS = {
    "redis": "redis-py, pipelines of 100",
    "nats": "nats-py",
    "zeromq": "pyzmq, key and payload apart",
    "zeromq-frame": "pyzmq, both in one frame",
    "mosquitto": "paho-mqtt",
}


_SHORT = ("one", "trip", "python")
"""The scenarios of the README."""


def title_of(scenario: Scenario, target: str) -> str:
    """What a target is called in a scenario."""
    clients = _CLIENTS if scenario.job == "clients" else {}
    return clients.get(target, _ALL_TITLES.get(target, target))


def _table(heading: list[str], body: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (heading, ["---"] * len(heading), *body)]


def markdown(results: Results, *, short: bool) -> str:
    """The table of a page. ``short``: what the README shows, medians alone; else everything, with quartiles."""
    if not short:
        ours = _table(list(HEADING), rows(results))
        others = _table(*_beside(results, spread, COMPARED))
        return "\n".join([_wrapped(describe(results)), "", *ours, "", *others]) + "\n"

    def middle(summary: Summary | None, form: Callable[[float], str]) -> str:
        return form(summary.median) if summary is not None else "-"

    return "\n".join([*_table(*_beside(results, middle, _SHORT)), "", _wrapped(describe(results))]) + "\n"


def _beside(
    results: Results,
    show: Callable[[Summary | None, Callable[[float], str]], str],
    names: tuple[str, ...],
) -> tuple[list[str], list[list[str]]]:
    """Scenarios down, targets across: rates, or times of round trips; and how we compare with the forwarder."""
    targets = [target for target in _ALL_TITLES if target != "daemon" and "-" not in target]
    there = [target for target in targets if any(record.target == target for record in results.records)]
    heading = ["deliveries/s", *(_ALL_TITLES[target] for target in there), "speed by CPU, of the forwarder's"]
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
