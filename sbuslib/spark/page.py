"""A self-contained page of HTML with plots and tables.

Keys, senders and causes are bytes from strangers. So every value goes through :func:`escaped`, and the page forbids the
browser to run or load anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Literal, TypeAlias

from ..wire.text import printable

__all__ = ["Kind", "Page", "called", "duration", "escaped", "figure", "human", "shown", "table"]

_NOTHING = "\N{EN DASH}"
"""Shown in place of a value that is missing."""

_SHOWN = 160
"""Characters of a key or sender that are shown. The tooltip has the rest."""

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
td em { color: var(--soft) }
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
    """As :func:`shown`, but an empty text is shown as ``""``."""
    return shown(value) or '""'


def escaped(value: object) -> str:
    """Any value as HTML: printable, escaped, and cut, with more of it in the tooltip."""
    text = shown(value)
    if len(text) <= _SHOWN:
        return escape(text)
    return f'<span title="{escape(text[: 10 * _SHOWN])}">{escape(text[:_SHOWN])}…</span>'


class Page:
    """A page, which is built from top to bottom.

    :param lead: one sentence below the title that says what the page shows.
    """

    def __init__(self, title: str, lead: str) -> None:
        self._title = title
        self._lead = lead
        self._tiles: list[str] = []
        self._sections: list[tuple[str, str]] = []

    def tile(self, figure: str, what: str, bad: bool = False) -> None:
        """Add a figure at the top, with what it counts; ``bad`` makes it red."""
        self._tiles.append(f'<div class="tile{" bad" * bad}"><b>{escape(figure)}</b><span>{escape(what)}</span></div>')

    def section(self, title: str, text: str, *parts: str) -> None:
        """Add a section: a heading, a sentence, and pictures and tables in HTML."""
        self._sections.append((title, f"<p>{escape(text)}</p>{''.join(parts)}"))

    def html(self) -> str:
        """The whole page."""
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
            # A second line of defence, if a value should get into the page unescaped.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head>\n"
            f"<body><main><header><h1>{escape(self._title)}</h1><p>{escape(self._lead)}</p><nav>{contents}</nav></header>\n"
            f'<div class="tiles">{"".join(self._tiles)}</div>\n{sections}'
            f"<footer>Made by sbus on {made}. Times are UTC.</footer></main></body></html>\n"
        )


def figure(picture: Iterable[str]) -> str:
    """A picture as a part of a section."""
    return f"<figure>{''.join(picture)}</figure>"


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

    :param columns: for each column, its heading and how it is shown: ``count``, ``bytes`` and ``time`` (nanoseconds)
        are shortened, ``id`` is not.
    :param more: there are more rows than these, and a note below the table says so.
    :param barred: the column whose values are drawn as bars in the first column.
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
    rest = f'<p class="note">Only the first {len(rows)} rows are shown. --csv writes all.</p>' if more else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>{rest}'
