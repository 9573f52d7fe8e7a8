"""The plots of reports, drawn by matplotlib as SVG.

Labels are bytes from strangers, so matplotlib's notation for mathematics is off.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import StateError
from .page import called, human, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "BARS",
    "bars",
    "check_plots",
    "plot",
    "rates",
    "sizes",
    "volumes",
]

_Row: TypeAlias = Mapping[str, Any]
"""A row of a table of a report, by the names of its columns."""

BARS = 12
"""How many bars a plot has at most."""

_COLOURS = ("#2563a8", "#d9822b", "#3a8a5f", "#8a4fa3", "#b03a48", "#5b7083")
"""Colours that people with red-green blindness can tell apart, too. The fifth is for losses."""


def check_plots() -> None:
    """Raise :exc:`~sbuslib.errors.StateError`, whose message names what to install, when a library is missing."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise StateError(f"{error.name} is missing: pip install 'sbuslib[report]'") from None


_PLOT_STYLE: Any = {
    # A dollar in a key does not begin a formula.
    "text.parse_math": False,
    # Text stays text: the browser chooses the font, and a reader can search.
    "svg.fonttype": "none",
    "svg.hashsalt": "sbus",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa6b2",
    "axes.labelcolor": "#5c6a79",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlecolor": "#1d2733",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6eaee",
    "grid.linewidth": 0.8,
    "xtick.color": "#5c6a79",
    "ytick.color": "#5c6a79",
    "legend.frameon": False,
    "date.converter": "concise",
}


@contextmanager
def plot(height: float = 2.6, columns: int = 1) -> Iterator[tuple[Any, list[str]]]:
    """Axes to draw into. After the block the list holds the picture, an SVG element.

    ::

        with plot() as (axes, picture):
            axes.plot(times, rates)
        page.section("Rates", "Messages a second.", figure(picture))

    :param height: in inches; the width is 10.
    :param columns: how many axes stand side by side. With more than one, ``axes`` is a list.

    Raises :exc:`~sbuslib.errors.StateError` when matplotlib is missing.
    """
    check_plots()
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_PLOT_STYLE):
        figure = Figure(figsize=(10, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(1, columns, squeeze=False)[0]
        picture: list[str] = []
        yield (axes[0] if columns == 1 else list(axes)), picture
        drawn = io.StringIO()
        with warnings.catch_warnings():
            # The browser has fonts for glyphs that matplotlib's font lacks.
            warnings.filterwarnings("ignore", "Glyph .* missing")
            figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    text = drawn.getvalue()
    picture.append(text[text.index("<svg") :])


def _tick(value: float, place: object = None) -> str:
    """A number beside an axis."""
    return human(value) if value >= 100 or value == int(value) else f"{value:g}"


def _unit(most: float) -> tuple[float, str]:
    """The unit of bytes that suits values up to ``most``: its size and its name."""
    power = min(4, max(0, (int(most).bit_length() - 1) // 10))
    return 1 << 10 * power, ("bytes", "KiB", "MiB", "GiB", "TiB")[power]


def bars(axes: Axes, labels: Sequence[object], values: Sequence[float], colour: str = _COLOURS[0]) -> None:
    """Draw horizontal bars with their labels, the first at the top."""
    places = range(len(values))
    axes.barh(places, values, color=colour, height=0.68)
    axes.xaxis.set_major_formatter(_tick)
    axes.set_yticks(places, [text if len(text := called(label)) <= 34 else text[:33] + "…" for label in labels])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def rates(rows: Sequence[_Row], period: int) -> list[str]:
    """Messages and bytes a second of each hub, and losses, by periods of so many seconds."""
    rows = [row for row in rows if row["start"] is not None]
    if not rows:
        return []
    step = timedelta(seconds=period)
    hubs = list(dict.fromkeys(row["hub"] for row in rows))
    first, last = min(row["start"] for row in rows), max(row["start"] for row in rows)
    starts = [first + n * step for n in range(int((last - first) / step) + 1)]
    if len(starts) == 1:  # a line needs two points
        starts.append(first + step)
    scale, unit = _unit(max(row["bytes"] for row in rows) / period)
    with plot(2.8, columns=2) as (axes, picture):
        for at, hub in enumerate(hubs[: len(_COLOURS) - 1]):
            colour = _COLOURS[at if at < 4 else at + 1]
            found = {row["start"]: row for row in rows if row["hub"] == hub}
            for axis, name, one in ((axes[0], "messages", 1), (axes[1], "bytes", scale)):
                rates = [found[start][name] / period / one if start in found else 0.0 for start in starts]
                axis.fill_between(starts, rates, step="post", color=colour, alpha=0.12, linewidth=0)
                axis.step(starts, rates, where="post", color=colour, linewidth=1.3, label=shown(hub))
        lost: dict[datetime, int] = {}
        for row in rows:
            if row["lost"]:
                lost[row["start"]] = lost.get(row["start"], 0) + row["lost"]
        if lost:
            axes[0].plot(list(lost), [count / period for count in lost.values()], "v", color=_COLOURS[4], label="lost")
        axes[0].set_title("messages a second")
        axes[1].set_title(f"{unit} of payloads a second")
        for axis in axes:
            axis.set_ylim(bottom=0)
            axis.margins(x=0)
            axis.yaxis.set_major_formatter(_tick)
        if len(hubs) > 1 or lost:
            axes[0].legend(fontsize=8, loc="best")
    return picture


def volumes(rows: Sequence[_Row], label: str) -> list[str]:
    """The rows with most messages and those with most bytes, labelled by this column."""
    rows = rows[:BARS]
    with plot(0.7 + 0.24 * len(rows), columns=2) as (axes, picture):
        bars(axes[0], [row[label] for row in rows], [row["messages"] for row in rows])
        axes[0].set_title("messages")
        by_bytes = sorted(rows, key=lambda row: -row["bytes"])
        scale, unit = _unit(by_bytes[0]["bytes"])
        bars(axes[1], [row[label] for row in by_bytes], [row["bytes"] / scale for row in by_bytes], _COLOURS[1])
        axes[1].set_title(f"{unit} of payloads")
    return picture


def sizes(rows: Sequence[_Row]) -> list[str]:
    """Messages and bytes by the size of payloads."""
    scale, unit = _unit(max((row["bytes"] for row in rows), default=0))
    with plot(2.4, columns=2) as (axes, picture):
        names = [human(row["size_to"], "B") for row in rows]
        for axis, values, colour, title in (
            (axes[0], [row["messages"] for row in rows], _COLOURS[0], "messages"),
            (axes[1], [row["bytes"] / scale for row in rows], _COLOURS[1], unit),
        ):
            axis.bar(range(len(rows)), values, color=colour, width=0.75)
            axis.set_xticks(range(len(rows)), names, rotation=45, ha="right")
            axis.yaxis.set_major_formatter(_tick)
            axis.grid(axis="x", visible=False)
            axis.set_title(title)
    return picture
