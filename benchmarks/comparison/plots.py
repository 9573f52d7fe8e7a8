"""Results as pictures: SVG by matplotlib, which the extra ``[bench]`` brings, to stand inside a page."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from sbuslib.bench.results import Results, Summary
from sbuslib.bench.scenarios import Scenario, find
from sbuslib.bench.tables import count, micro, scenarios_of, times
from sbuslib.errors import StateError

from .tables import title_of

__all__ = ["Picture", "against_the_forwarder", "beside_others", "what_it_costs"]

_OURS, _LIMIT, _OTHERS = "#1f5fa8", "#8a8a8a", "#d3a15f"
_WIDTH, _ROW, _FRAME = 8.4, 0.30, 1.05
"""Inches: of a picture, of each of its rows, and of what stands above and below them."""


class Picture:
    """A plot as the text of an ``<svg>`` element, and what it shows in words."""

    def __init__(self, svg: str, caption: str) -> None:
        self.svg = svg
        self.caption = caption


def _figure(rows: int, **options: Any) -> tuple[Any, Any]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise StateError("plots need matplotlib: pip install 'sbuslib[bench]'") from None
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "sbuslib",
            "font.family": "sans-serif",
            "font.size": 9.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    figure: Any = Figure(figsize=(_WIDTH, _FRAME + _ROW * rows), layout="constrained")
    return figure, figure.subplots(**options)


def _picture(figure: Any, caption: str) -> Picture:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return Picture(svg[svg.index("<svg") :], caption)


def _dots(axes: Any, labels: Sequence[str], values: Sequence[Summary], form: Callable[[float], str]) -> None:
    """A dot at each median, a line from quartile to quartile, from top to bottom."""
    places = range(len(labels), 0, -1)
    for place, value in zip(places, values, strict=True):
        axes.plot([value.low, value.high], [place, place], color=_OURS, alpha=0.35, linewidth=6, solid_capstyle="round")
        axes.plot([value.median], [place], "o", color=_OURS, markersize=6)
        axes.annotate(form(value.median), (value.high, place), (8, -3.5), textcoords="offset points")
    axes.set_yticks(list(places), labels)
    axes.set_ylim(0.4, len(labels) + 0.6)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.grid(axis="x", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.set_xlim(0, max(1.15, 1.12 * max(value.high for value in values)))


def against_the_forwarder(results: Results) -> Picture | None:
    """The hub's speed by CPU as part of the forwarder's; for round trips, and all the rest."""
    found = []
    for scenario in scenarios_of(results):
        ratio = results.ratio((scenario.name, "forwarder"), (scenario.name, "hub"), "cpu")
        if ratio is not None:
            found.append((scenario.title, ratio))
    if not found:
        return None
    figure, axes = _figure(len(found))
    _dots(axes, [title for title, _ in found], [ratio for _, ratio in found], times)
    axes.set_xlabel("speed by CPU time, of the forwarder's (1: as fast)")
    return _picture(figure, "How near the hub is to a forwarder that makes the same system calls and does not think.")


def what_it_costs(results: Results) -> Picture | None:
    """The CPU time of a message, over that of the scenario that differs in one thing."""
    found = []
    for scenario in scenarios_of(results):
        if scenario.base is None:
            continue
        ratio = results.ratio((scenario.name, "hub"), (scenario.base, "hub"), "cpu")
        if ratio is not None:
            found.append((f"{scenario.title} (to {find(scenario.base).title})", ratio))
    if not found:
        return None
    figure, axes = _figure(len(found))
    _dots(axes, [title for title, _ in found], [ratio for _, ratio in found], times)
    axes.set_xlabel("times the CPU time of a message")
    return _picture(
        figure, "What something beside the messages, or on their way, costs each: times the case in parentheses."
    )


def beside_others(results: Results, scenario: Scenario, also: Sequence[Scenario] = ()) -> Picture | None:
    """Every target of a scenario: rates, or times of round trips. ``also`` adds the hub's figures of further ones."""
    trip = scenario.job == "trip"
    metric, form = ("trip", micro) if trip else ("rate", count)
    bars: list[tuple[str, Summary, str]] = []
    for target in results.targets(scenario.name):
        value = results.figure(scenario.name, target, metric)
        if value is not None:
            colour = _OURS if target.startswith("hub") else _LIMIT if target == "forwarder" else _OTHERS
            bars.append((title_of(scenario, target), value, colour))
    for other in also:
        value = results.figure(other.name, "hub", metric)
        if value is not None:
            bars.append((f"sbuslib, {other.title}", value, _OURS))
    if len(bars) < 2:
        return None
    bars.sort(key=lambda bar: bar[1].median, reverse=not trip)
    figure, axes = _figure(len(bars))
    places = list(range(len(bars), 0, -1))
    scale = 1.0 if trip else 1e3
    for place, (_, value, colour) in zip(places, bars, strict=True):
        axes.barh([place], [value.median / scale], color=colour, height=0.62)
        axes.plot([value.low / scale, value.high / scale], [place, place], color="black", linewidth=1.2)
        end = max(value.high, value.median) / scale
        axes.annotate(form(value.median), (end, place), (6, -3.5), textcoords="offset points")
    axes.set_yticks(places, [title for title, _, _ in bars])
    axes.set_ylim(0.4, len(bars) + 0.6)
    axes.set_xlim(0, 1.12 * max(value.high for _, value, _ in bars) / scale)
    axes.set_xlabel("microseconds" if trip else "thousands of deliveries a second")
    return _picture(
        figure, f"{scenario.title[:1].upper()}{scenario.title[1:]}; the lines run from quartile to quartile."
    )
