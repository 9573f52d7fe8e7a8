"""One self-contained page of HTML with plots and tables: what people read of a report.

Keys, senders and causes are bytes from strangers. Whatever stands in a page goes through :func:`escaped`, plots are
drawn without the notation for mathematics, and the page forbids the browser to run or load anything.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..errors import StateError
from ..wire.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

__all__ = [
    "COLOURS",
    "Kind",
    "Page",
    "bars",
    "check_plots",
    "duration",
    "escaped",
    "figure",
    "human",
    "plot",
    "shown",
    "table",
]

_NOTHING = "\N{EN DASH}"
"""Stands where there is no value."""

_SHOWN = 160
"""Characters of a key or sender that are shown; the rest is in the text that comes up over it."""

COLOURS = ("#2563a8", "#d9822b", "#3a8a5f", "#8a4fa3", "#b03a48", "#5b7083")
"""Told apart by those who confuse red and green, too. The fifth is for what was lost."""

_STYLE = """
:root { color-scheme: light; --ink: #1d2733; --soft: #5c6a79; --line: #dfe4ea; --back: #f5f7f9; --mark: #2563a8 }
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", sans-serif }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px }
h1 { font-size: 27px; margin: 0 0 4px; letter-spacing: -.01em }
h2 { font-size: 18px; margin: 26px 0 4px }
h2:first-child { margin-top: 0 }
p { margin: 0 0 12px; color: var(--soft); max-width: 78ch }
nav { margin: 14px 0 0; font-size: 14px }
nav a { color: var(--mark); margin-right: 18px; text-decoration: none }
section { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 20px 22px; margin-top: 20px }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 20px }
.tile { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px }
.tile b { display: block; font-size: 23px; font-weight: 600; font-variant-numeric: tabular-nums }
.tile span { color: var(--soft); font-size: 13px }
.tile.bad b { color: #b03a48 }
figure { margin: 8px 0 0 }
figure svg { width: 100%; height: auto; display: block }
.wide { overflow-x: auto; margin-top: 10px }
table { border-collapse: collapse; width: 100%; font-size: 14px }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--line); padding: 5px 10px }
td { border-bottom: 1px solid #eef1f4; padding: 4px 10px; vertical-align: top }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td code { font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere }
td .bar { display: block; height: 4px; border-radius: 2px; background: var(--mark); opacity: .55; margin-top: 2px }
td em, figcaption { color: var(--soft) }
.note { margin: 10px 0 0; font-size: 13px }
footer { color: var(--soft); font-size: 13px; margin-top: 24px }
@media print { body { background: #fff } section { break-inside: avoid } nav { display: none } }
"""


def human(value: float, unit: Literal["", "B"] = "") -> str:
    """A count in few characters: ``1,234``, ``56.7 k``, ``8.90 M``; bytes in powers of 1,024, as ``5.4 KiB``.

    >>> human(1234), human(56_700), human(8_900_000), human(5_500, "B")
    ('1,234', '56.7 k', '8.90 M', '5.37 KiB')
    """
    step = 1_024 if unit else 1_000
    if abs(value) < (step if unit else 10_000):
        return f"{value:,.0f}{' ' + unit if unit else ''}"
    names = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei") if unit else ("k", "M", "G", "T", "P", "E")
    for name in names:
        value /= step
        if abs(value) < step or name == names[-1]:
            break
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f} {name}{unit}"


def duration(nanoseconds: float) -> str:
    """A time in few characters.

    >>> duration(850), duration(12_300), duration(4_560_000), duration(7.8e9)
    ('850 ns', '12.3 µs', '4.56 ms', '7.80 s')
    """
    for most, unit in ((1e3, "ns"), (1e6, "µs"), (1e9, "ms"), (float("inf"), "s")):
        if nanoseconds < most or unit == "s":
            value = nanoseconds / (most / 1e3 if unit != "s" else 1e9)
            digits = 0 if unit == "ns" or value >= 100 else 1 if value >= 10 else 2
            return f"{value:,.{digits}f} {unit}"
    raise AssertionError(nanoseconds)


def shown(value: object) -> str:
    """Any value as text that prints: bytes as :func:`~sbuslib.wire.text.printable`, numbers with commas."""
    match value:
        case None:
            return _NOTHING
        case bytes() | bytearray():
            return printable(bytes(value))
        case str():
            return printable(value.encode("utf-8", "surrogateescape"))
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S")
        case list() | tuple():
            return ", ".join(map(called, value)) if value else _NOTHING
    return printable(str(value).encode("utf-8", "surrogateescape"))


def called(value: object) -> str:
    """As :func:`shown`, for places where no text would look like nothing: the empty key is ``""``."""
    return shown(value) or '""'


def escaped(value: object, most: int = _SHOWN) -> str:
    """Any value as HTML: printable, escaped, and cut to ``most`` characters with the whole in its title."""
    text = shown(value)
    if len(text) <= most:
        return escape(text)
    return f'<span title="{escape(text[: 10 * most])}">{escape(text[:most])}…</span>'


def check_plots() -> None:
    """Raise :exc:`~sbuslib.errors.StateError`, whose message names what to install, when matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise StateError(f"{error.name} is missing: pip install 'sbuslib[report]'") from None


_PLOT_STYLE: Any = {
    # A key may hold any number of dollars, and none of them begins a formula.
    "text.parse_math": False,
    # Text stays text, so that the browser finds a font for it and a reader can search it.
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
    """Draw into the axes; afterwards the list holds the picture, an SVG element.

    ::

        with plot() as (axes, picture):
            axes.plot(times, rates)
        page.add("Rates", picture)

    :param height: inches, beside a width of 10.
    :param columns: how many axes stand side by side; with more than one, there is a list of them.

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
            # What its own font lacks, the browser's will have.
            warnings.filterwarnings("ignore", "Glyph .* missing")
            figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    text = drawn.getvalue()
    picture.append(text[text.index("<svg") :])


def bars(axes: Axes, labels: Sequence[object], values: Sequence[float], colour: str = COLOURS[0]) -> None:
    """Horizontal bars, the first at the top, each called by the bytes or text that it stands for."""
    places = range(len(values))
    axes.barh(places, values, color=colour, height=0.68)
    axes.set_yticks(places, [text if len(text := called(label)) <= 34 else text[:33] + "…" for label in labels])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


class Page:
    """A page that grows from top to bottom. :meth:`html` is the whole of it.

    :param title: of the page.
    :param lead: what it tells of, in a sentence.
    """

    def __init__(self, title: str, lead: str) -> None:
        self._title = title
        self._lead = lead
        self._tiles: list[str] = []
        self._sections: list[tuple[str, str]] = []

    def tile(self, figure: str, what: str, bad: bool = False) -> None:
        """A figure at the top, and what it counts; ``bad`` where it should not be."""
        self._tiles.append(f'<div class="tile{" bad" * bad}"><b>{escape(figure)}</b><span>{escape(what)}</span></div>')

    def section(self, title: str, text: str, *parts: str) -> None:
        """A part of the page: a heading, a sentence, and pictures and tables that are HTML already."""
        self._sections.append((title, f"<p>{escape(text)}</p>{''.join(parts)}"))

    def html(self) -> str:
        """The page."""
        contents = "".join(
            f'<a href="#part-{number}">{escape(title)}</a>' for number, (title, _) in enumerate(self._sections)
        )
        sections = "".join(
            f'<section id="part-{number}"><h2>{escape(title)}</h2>{body}</section>\n'
            for number, (title, body) in enumerate(self._sections)
        )
        made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return (
            "<!DOCTYPE html>\n"
            '<html lang="en"><head><meta charset="utf-8">\n'
            # Not that anything should get that far, but then it shall get no further.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head>\n"
            f"<body><main><header><h1>{escape(self._title)}</h1><p>{escape(self._lead)}</p><nav>{contents}</nav></header>\n"
            f'<div class="tiles">{"".join(self._tiles)}</div>\n{sections}'
            f"<footer>Made by sbus on {made}. Times are UTC.</footer></main></body></html>\n"
        )


def figure(picture: Iterable[str], caption: str = "") -> str:
    """A picture as a part of a section."""
    said = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{''.join(picture)}{said}</figure>"


Kind: TypeAlias = Literal["text", "id", "count", "bytes", "time"]


def _number(value: float, kind: Kind) -> str:
    match kind:
        case "count":
            return human(value)
        case "bytes":
            return human(value, "B")
        case "time":
            return duration(value)
    return str(value)


def table(
    rows: Sequence[Sequence[object]], *columns: tuple[str, Kind], more: bool = False, barred: int | None = None
) -> str:
    """A table as a part of a section.

    :param columns: of each column, its heading and how it is shown: ``count``, ``bytes`` and ``time`` (nanoseconds)
        shortened, ``id`` whole.
    :param more: there are more rows than these: told below the table.
    :param barred: the column whose share of the largest is drawn as a bar below the first.
    """
    head = "".join(
        f'<th class="number">{escape(name)}</th>' if kind != "text" else f"<th>{escape(name)}</th>"
        for name, kind in columns
    )
    values = [row[barred] for row in rows] if barred is not None else []
    largest = max((value for value in values if isinstance(value, (int, float))), default=0) or 1
    body = []
    for row in rows:
        cells = []
        for at, (value, (_, kind)) in enumerate(zip(row, columns, strict=True)):
            if kind == "text":
                inner = f"<code>{escaped(value)}</code>" if value not in (b"", "") else "<em>empty</em>"
                share = row[barred] if barred is not None and at == 0 else None
                if isinstance(share, (int, float)):
                    inner += f'<span class="bar" style="width:{max(0.3, 100 * share / largest):.1f}%"></span>'
                cells.append(f"<td>{inner}</td>")
            else:
                number = value if isinstance(value, (int, float)) else None
                text = escaped(value) if number is None else _number(number, kind)
                title = f' title="{escaped(value)}"' if number is not None else ""
                cells.append(f'<td class="number"{title}>{text}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    if not body:
        body.append(f'<tr><td colspan="{len(columns)}"><em>none</em></td></tr>')
    rest = f'<p class="note">The first {len(rows)} are shown. The tables for machines hold all.</p>' if more else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>{rest}'
