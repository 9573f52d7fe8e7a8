"""A self-contained page of HTML with plots and tables, which a reader can search, sort and zoom without a network.

Keys, senders and causes are bytes from strangers. So jinja2 escapes every value, and the page forbids the browser to
load anything, or to run anything but the page's own script.
"""

from __future__ import annotations

import base64
import grp
import hashlib
import pwd
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from ..wire.text import printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["Kind", "Page", "called", "duration", "figure", "heading", "human", "shown", "table"]

_NOTHING = "\N{EN DASH}"
"""Shown in place of a value that is missing."""

_SHOWN = 160
"""Characters of a key or sender that are shown. The tooltip has the rest."""


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


Kind: TypeAlias = Literal["text", "id", "count", "bytes", "time", "user", "group"]
"""How a column is shown: ``count``, ``bytes`` and ``time`` (nanoseconds) are shortened, ``user`` and ``group`` named as
this machine knows them."""


class _Cell(NamedTuple):
    """A value in a table: what is shown, what the tooltip says, what sorts it, and the length of its bar in percent."""

    text: str
    tip: str = ""
    order: str = ""
    bar: str = ""


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    static = Path(__file__).with_name("static")
    found = Environment(loader=FileSystemLoader(static), autoescape=True, undefined=StrictUndefined)
    style, script = ((static / name).read_text("utf-8") for name in ("page.css", "page.js"))
    # A second line of defence, if a value should get into the page unescaped: nothing else runs.
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    found.globals |= {"style": _safe(style), "script": _safe(script), "allowed": allowed}
    return found


def _safe(html: str) -> Markup:
    from markupsafe import Markup

    return Markup(html)  # callers pass text of this package, or pictures that matplotlib has escaped


class Page:
    """A page, which is built from top to bottom.

    :param lead: one sentence below the title that says what the page shows.
    """

    def __init__(self, title: str, lead: str) -> None:
        self._title = title
        self._lead = lead
        self._tiles: list[tuple[str, str, bool]] = []
        self._sections: list[tuple[str, str, tuple[Markup, ...]]] = []

    def tile(self, figure: str, what: str, bad: bool = False) -> None:
        """Add a figure at the top, with what it counts; ``bad`` makes it red."""
        self._tiles.append((figure, what, bad))

    def section(self, title: str, text: str, *parts: Markup) -> None:
        """Add a section: a heading, a sentence, and what :func:`figure`, :func:`table` and :func:`heading` give."""
        self._sections.append((title, text, parts))

    def html(self) -> str:
        """The whole page."""
        made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        page = _templates().get_template("page.html")
        return page.render(title=self._title, lead=self._lead, tiles=self._tiles, sections=self._sections, made=made)


def figure(picture: Iterable[str]) -> Markup:
    """A picture as a part of a section."""
    return _safe(f"<figure>{''.join(picture)}</figure>")


def heading(text: str) -> Markup:
    """A heading within a section."""
    return _safe("<h3>{}</h3>").format(text)


def table(
    rows: Sequence[Sequence[object]], *columns: tuple[str, Kind], more: bool = False, barred: int | None = None
) -> Markup:
    """A table as a part of a section.

    :param columns: for each column, its heading and how it is shown.
    :param more: there are more rows than these, and a note below the table says so.
    :param barred: the column whose values are drawn as bars in the first column.
    """
    kinds = [kind for _, kind in columns]
    cells = [[_cell(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in rows]
    if barred is not None:
        values = [row[barred] for row in rows]
        largest = max((value for value in values if isinstance(value, (int, float))), default=0) or 1
        for line, value in zip(cells, values, strict=True):
            if isinstance(value, (int, float)):
                line[0] = line[0]._replace(bar=f"{max(0.3, 100 * value / largest):.1f}")
    return _safe(_templates().get_template("table.html").render(columns=columns, rows=cells, more=more))


_NUMBERS: dict[Kind, Callable[[float], str]] = {
    "count": human,
    "bytes": lambda value: human(value, "B"),
    "time": duration,
    "id": str,
    "user": lambda uid: _named(uid, lambda: pwd.getpwuid(int(uid)).pw_name),
    "group": lambda gid: _named(gid, lambda: grp.getgrgid(int(gid)).gr_name),
}


def _named(number: float, name: Callable[[], str]) -> str:
    try:
        return f"{number} {shown(name())}"
    except (KeyError, OverflowError):
        return str(number)


def _cell(value: object, kind: Kind) -> _Cell:
    if kind != "text" and isinstance(value, (int, float)):
        return _Cell(_NUMBERS[kind](value), shown(value) if kind in ("count", "bytes", "time") else "", str(value))
    text = shown(value)
    if len(text) > _SHOWN:
        return _Cell(f"{text[:_SHOWN]}\N{HORIZONTAL ELLIPSIS}", text[: 10 * _SHOWN])
    return _Cell(text)
