"""Curves of rates over time, as SVG inside a page, with the page's colours and width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from .exports import Table
from .html import human, render, shown
from .outages import Outage

if TYPE_CHECKING:
    from markupsafe import Markup

_STEPS = 1_000
"""Most steps of a curve. With more periods, one step is the mean of several."""

_SECOND = 1_000_000_000

_LINES = 5
"""Hubs that have a line of their own: the busiest. All others have one together."""


class _Line(NamedTuple):
    """One line of a curve: its name, its value at each step, *None* where it is unknown, and the path that draws it."""

    name: str
    values: list[float | None]
    path: str


class _Steps:
    """The steps of the curves over a table: periods, or several of them together."""

    def __init__(self, starts: list[datetime], period: int) -> None:
        self.first = min(starts)
        """The start of the first step."""
        count = round((max(starts) - self.first).total_seconds()) // period + 1
        self.seconds = period * -(-count // _STEPS)
        """The length of a step."""
        self.count = -(-count * period // self.seconds)
        """Number of steps."""

    def number(self, start: datetime) -> int:
        return round((start - self.first).total_seconds()) // self.seconds

    def during(self, outage: Outage) -> range:
        """The numbers of all steps that have a part in an outage."""
        first, length = round(self.first.timestamp()) * _SECOND, self.seconds * _SECOND
        last = self.count - 1 if outage.end_ns is None else (outage.end_ns - first) // length
        return range(max(0, (outage.first_ns - first) // length), min(self.count - 1, last) + 1)

    def labels(self) -> list[str]:
        """Make the times below the curve, evenly spread from its start to its end."""
        whole = timedelta(seconds=self.seconds * self.count)
        form = "%Y-%m-%d" if whole > timedelta(days=8) else "%m-%d %H:%M" if whole > timedelta(days=1) else "%H:%M:%S"
        return [(self.first + whole * n / 4).strftime(form) for n in range(5)]


def curves(over_time: Table, period: int, outages: Sequence[Outage] = ()) -> list[Markup]:
    """Draw messages and bytes a second of each hub, and mark times of losses.

    :param over_time: rows of ``hub``, ``start``, ``messages``, ``bytes``, ``lost`` and ``unknown``; those without a
        start are left out.
    :param period: the seconds from one start to the next.
    :param outages: times in which the rate of a hub is unknown, unless something was recorded: its line has a break.
    """
    rows = [row for row in over_time.rows if row[1] is not None]
    if not rows:
        return []
    steps = _Steps([row[1] for row in rows], period)

    # 1. The hubs that have a line of their own.
    by_hub = Counter[str | None]()
    for hub, _, messages, *_ in rows:
        by_hub[hub] += messages
    own = [hub for hub, _ in by_hub.most_common(_LINES if len(by_hub) <= _LINES else _LINES - 1)]
    names = {hub: shown(hub) for hub in own}

    # 2. The sums of each step.
    sums: tuple[dict[str, Counter[int]], dict[str, Counter[int]]] = ({}, {})
    lost, unknown = Counter[int](), Counter[int]()
    for hub, start, messages, size, known, times in rows:
        at = steps.number(start)
        for by_name, count in zip(sums, (messages, size), strict=True):
            by_name.setdefault(names.get(hub, "others"), Counter())[at] += count
        lost[at] += known or 0
        unknown[at] += times

    # 3. Steps of which nothing is known, by the name of the line.
    silent: set[tuple[str, int]] = set()
    for outage in outages:
        for at in steps.during(outage):
            unknown[at] += 1
            silent.update((names[hub], at) for hub in outage.hubs if hub in names)

    # 4. One picture of messages, one of bytes, and in both the steps in which something was lost.
    gaps = {at: (lost[at], unknown[at]) for at in range(steps.count) if lost[at] or unknown[at]}

    def curve(title: str, unit: Literal["", "B"], by_name: dict[str, Counter[int]]) -> Markup:
        return _curve(title, unit, {name: _rates(name, by_name[name], steps, silent) for name in by_name}, steps, gaps)

    messages, payloads = sums
    return [curve("messages a second", "", messages), curve("payloads a second", "B", payloads)]


def _rates(name: str, counts: Counter[int], steps: _Steps, silent: set[tuple[str, int]]) -> list[float | None]:
    """The rates of one line; nothing that was counted is left out."""
    return [
        None if (name, at) in silent and not counts[at] else counts[at] / steps.seconds for at in range(steps.count)
    ]


def _curve(
    title: str,
    unit: Literal["", "B"],
    rates: dict[str, list[float | None]],
    steps: _Steps,
    gaps: dict[int, tuple[int, int]],
) -> Markup:
    largest = max((value for values in rates.values() for value in values if value is not None), default=0)
    top = _round_up(largest, 1_024 if unit else 1_000)

    # ``lines`` is drawn. ``series`` has the same values for the script, which shows those under the pointer.
    return render(
        "curve.html",
        title=title,
        lines=[_Line(name, values, _path(values, top)) for name, values in rates.items()],
        steps=steps,
        marks=[human(top * part, unit) for part in (1, 0.5, 0)],
        times=steps.labels(),
        gaps=gaps,
        series={
            "start": round(steps.first.timestamp() * 1000),
            "step": steps.seconds * 1000,
            "lines": [
                [name, ["?" if value is None else human(value, unit) for value in values]]
                for name, values in rates.items()
            ],
            "lost": {at: _lost(*gap) for at, gap in gaps.items()},
        },
    )


def _lost(known: int, unknown: int) -> str:
    return " and ".join([f"{known:,}"] * bool(known) + ["nobody knows how many"] * bool(unknown))


def _round_up(value: float, step: int) -> float:
    """The least of 1, 2 and 5 times a power of ten, in units of a power of ``step``, that is not below ``value``."""
    if value <= 0:
        return 1.0
    unit = 1.0
    while value / unit >= step:
        unit *= step
    power = 1.0
    while value / unit > 10 * power:
        power *= 10
    while value / unit <= power:
        power /= 10
    return unit * power * next(n for n in (1, 2, 5, 10) if value / unit <= n * power)


def _path(values: list[float | None], top: float) -> str:
    """A line of steps with a break where a value is unknown, in a picture one unit wide for each value, and 100 units
    high.
    """
    parts: list[str] = []
    last: float | None = None  # no line is being drawn
    for at, value in enumerate(values):
        if value == last:
            continue
        if last is None:
            parts.append(f"M{at},100")
        parts.append(f"H{at}V{100 if value is None else 100 - 100 * value / top:.4g}")
        last = value
    if last is not None:
        parts.append(f"H{len(values)}V100")
    return "".join(parts)
