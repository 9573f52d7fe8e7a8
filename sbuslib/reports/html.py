"""Self-contained HTML page with curves and tables, which a reader can search and sort without a network.

Keys, senders and causes are bytes from strangers. So jinja2 escapes every value, and the page forbids the browser to
load anything, or to run anything but the page's own script.
"""

from __future__ import annotations

import base64
import grp
import hashlib
import pwd
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from ..errors import StateError
from ..wire.text import printable
from .exports import Table

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_NOTHING = "\N{EN DASH}"
"""Shown in place of a value that is missing."""

_SHOWN = 160
"""Characters of a key or sender that are shown. The tooltip has the rest."""

_ROWS = 500
"""Rows of a table in a page: as many as are worth a search. The page shows the first 25, and the rest when asked."""


class Report(NamedTuple):
    """A report: its ``tables`` by name, and ``page``, which makes the HTML."""

    tables: dict[str, Table]
    page: Callable[[], str]


def human(value: float, unit: Literal["", "B"] = "") -> str:
    """A count or rate in few characters: ``1,234``, ``56.7 k``, ``8.90 M``; bytes in powers of 1,024, as ``5.4 KiB``.

    >>> human(1.618), human(1234), human(56_700), human(8_900_000), human(5_500, "B")
    ('1.6', '1,234', '56.7 k', '8.90 M', '5.37 KiB')
    """
    step = 1_024 if unit else 1_000
    if abs(value) < 10 and value != int(value):
        return f"{value:.2g} {unit}".rstrip()
    if abs(value) < (step if unit else 10_000):
        return f"{value:,.0f}{' ' + unit if unit else ''}"
    names = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei") if unit else ("k", "M", "G", "T", "P", "E")
    for name in names:
        value /= step
        if abs(value) < step or name == names[-1]:
            break
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f} {name}{unit}"


def duration(seconds: float) -> str:
    """A time in few characters.

    >>> duration(0.0456), duration(78), duration(5_400), duration(100_000)
    ('46 ms', '78 s', '90 min', '28 h')
    """
    for size, most, unit in ((0.001, 1.0, "ms"), (1, 120, "s"), (60, 7_200, "min"), (3_600, 172_800, "h")):
        if seconds < most:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds / 86_400:,.0f} days"


def shown(value: object) -> str:
    """Any value as text that prints: bytes as :func:`~sbuslib.wire.text.printable`, numbers with commas."""
    match value:
        case None:
            return _NOTHING

        # Text may have come from the bus, so that nothing in it may act as markup or control a terminal.
        case bytes() | bytearray():
            return printable(bytes(value))
        case str():
            return printable(value.encode("utf-8", "surrogateescape"))

        case bool():  # before ``int``: bool is a subclass of it
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S")
        case list() | tuple():
            return ", ".join(shown(item) or '""' for item in value) if value else _NOTHING
    return printable(str(value).encode("utf-8", "surrogateescape"))


Kind: TypeAlias = Literal["text", "moment", "count", "bytes", "user", "group"]
"""Format of a column: ``count`` and ``bytes`` are shortened, ``user`` and ``group`` get their names on this machine,
and a ``moment`` is a ``datetime``."""

Column: TypeAlias = "tuple[str, str, Kind]"
"""Column in a page: its name in the table, its heading, and its format."""


class _Cell(NamedTuple):
    """A value in a table: its text, its tooltip, its sort key, and the length of its bar in percent."""

    text: str
    tip: str = ""
    order: str = ""
    bar: str = ""


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    static = Path(__file__).with_name("static")
    environment = Environment(loader=FileSystemLoader(static), autoescape=True, undefined=StrictUndefined)
    style, script = ((static / name).read_text("utf-8") for name in ("page.css", "page.js"))
    # A second line of defence, if a value should get into the page unescaped: nothing else runs.
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {"style": _safe(style), "script": _safe(script), "allowed": allowed}
    return environment


def _safe(html: str) -> Markup:
    from markupsafe import Markup

    return Markup(html)  # callers pass text of this package


def check_page() -> None:
    """Raise :exc:`~sbuslib.errors.StateError`, with the command to install it, if a library for pages is missing."""
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise StateError(f"{error.name} is missing: pip install 'sbuslib[report]'") from None


def render(template: str, **values: object) -> Markup:
    """Make a part of a section from the file ``template``. All values are escaped."""
    return _safe(_templates().get_template(template).render(**values))


class HtmlPage:
    """A page, which is built from top to bottom.

    :param lead: one sentence below the title that describes the page.
    :param engine: the program that did the counting; empty where there was none.
    """

    def __init__(self, title: str, lead: str, engine: str = "") -> None:
        self._title = title
        self._lead = lead
        self._engine = engine
        self._tiles: list[tuple[str, str, bool]] = []
        """Figures at the top: the figure, its label, and whether it is bad."""
        self._sections: list[tuple[str, str, tuple[Markup, ...]]] = []
        """Heading, text and parts of each section."""

    def tile(self, figure: str, label: str, bad: bool = False) -> None:
        """Add a figure at the top, with a label; ``bad`` makes it red."""
        self._tiles.append((figure, label, bad))

    def section(self, title: str, text: str, *parts: Markup) -> None:
        """Add a section: a heading, a sentence, and parts made by :func:`show`, :func:`heading` and others."""
        self._sections.append((title, text, parts))

    def html(self) -> str:
        """Make the whole page."""
        made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        page = render(
            "page.html",
            title=self._title,
            lead=self._lead,
            tiles=self._tiles,
            sections=self._sections,
            made=made,
            engine=self._engine,
        )
        return str(page)


def heading(text: str) -> Markup:
    """Make a heading within a section."""
    return _safe("<h3>{}</h3>").format(text)


def losses(known: int, unknown: int, label: str) -> tuple[str, str, bool]:
    """Make a tile of lost messages: a known number, and the number of gaps of unknown size.

    >>> losses(17, 2, "lost")
    ('17 + ?', 'lost, and 2 times nobody knows how many', True)
    """
    if not unknown:
        return human(known), label, known > 0
    times = "once" if unknown == 1 else f"{human(unknown)} times"
    if not known:
        return "?", f"{label}: {times}, and nobody knows how many", True
    return f"{human(known)} + ?", f"{label}, and {times} nobody knows how many", True


def show(whole: Table, *columns: Column, barred: str | None = None) -> Markup:
    """The first rows of a table as a part of a section; a note below says if there are more.

    :param barred: the column whose values are drawn as bars in the first column.
    """
    at = {name: number for number, name in enumerate(whole.columns)}
    rows = whole.rows[:_ROWS]
    cells = [[_cell(row[at[name]], kind) for name, _, kind in columns] for row in rows]
    if barred is not None:
        values = [row[at[barred]] or 0 for row in rows]
        largest = max(values, default=0) or 1
        for line, value in zip(cells, values, strict=True):
            line[0] = line[0]._replace(bar=f"{max(0.3, 100 * value / largest):.1f}")
    shown_columns = [(title, kind) for _, title, kind in columns]
    return render(
        "table.html", columns=shown_columns, rows=cells, more=len(whole.rows) > _ROWS, numbers=("count", "bytes")
    )


_NUMBERS: dict[Kind, Callable[[float], str]] = {
    "count": human,
    "bytes": lambda value: human(value, "B"),
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
        return _Cell(_NUMBERS[kind](value), shown(value) if kind in ("count", "bytes") else "", str(value))
    text = shown(value)
    if len(text) > _SHOWN:
        return _Cell(f"{text[:_SHOWN]}\N{HORIZONTAL ELLIPSIS}", text[: 10 * _SHOWN])
    return _Cell(text)
