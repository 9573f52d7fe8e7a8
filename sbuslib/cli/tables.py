"""Tables of counts for ``sbus stat``, ``sbus top`` and others: one list of columns, and the columns of each table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ..kernel import users
from ..wire.text import escape

if TYPE_CHECKING:
    from ..monitor.rates import Look, Row

_TITLES: Final = {
    "who": "CLIENT",
    "name": "HUB",
    "direction": "LINK",
    "modes": "SOFT, HARD, ORDER",
    "connections": "CLIENTS",
    "waiting_bytes": "BYTES WAITING",
    "waiting_peak": "AT MOST",
    "causes": "LOST",
}
"""Titles of columns that are not called as in a :data:`~sbuslib.monitor.rates.Row`."""

TABLES: Final = {
    "stat users": "user connections patterns published delivered waiting causes",
    "stat worst": "who modes user program published delivered waiting waiting_peak causes",
    "stat clients": "who modes user program number patterns published delivered waiting causes",
    "stat links": "direction address user state mode patterns up down waiting uncertain lag causes",
    "top clients": "who user program published_rate delivered_rate waiting lost_rate lost patterns modes",
    "top users": "user published_rate delivered_rate waiting lost_rate lost patterns connections waiting_bytes",
    "top links": "name up_rate down_rate waiting lost_rate lost direction state",
}
"""The columns of each table. The first one says whom a row is about."""

KINDS: Final = ("clients", "users", "links")
"""The kinds of rows of ``sbus top``."""

_TEXTS: Final = {"who", "user", "program", "name", "direction", "address", "state", "mode", "modes", "causes"}


def show_json(value: object) -> None:
    """Print a value as JSON in one line, in ASCII, so that it cannot steer a terminal either."""
    import msgspec

    print(json.dumps(msgspec.to_builtins(value)), flush=True)


def plain(text: str) -> str:
    """Escape a stranger's text, so that it cannot steer a terminal."""
    return "".join(map(escape, text))


def columns(table: Sequence[Sequence[object]], left: int = 1) -> list[str]:
    """Format a table as lines. Its first row is the head. The first ``left`` columns and the last are text."""
    cells = [[f"{cell:,}" if isinstance(cell, (int, float)) else plain(str(cell)) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if n < left or n == len(row) - 1 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def title(column: str) -> str:
    """Return the title of a column."""
    return _TITLES.get(column) or column.upper().replace("_RATE", "/S")


def table(name: str, rows: Sequence[Row]) -> list[str]:
    """Format one of :data:`TABLES` as lines, the head first."""
    names = TABLES[name].split()
    texts = next((place for place, column in enumerate(names) if column not in _TEXTS), 0)
    return columns([[*map(title, names)], *([_cell(row, column) for column in names] for row in rows)], texts)


def _cell(row: Row, column: str) -> object:
    return losses(row[column]) if column == "causes" else row[column]


def losses(lost: Mapping[str, int]) -> str:
    """Format how much was lost, and why."""
    causes = ", ".join(f"{plain(cause)} {count:,}" for cause, count in lost.items() if count)
    return f"{sum(lost.values()):,}" + (f" ({causes})" if causes else "")


def name_of_user(uid: int) -> str:
    """Return the name of a user, or its id where there is no name."""
    return plain(users.name_of_user(uid))


class View:
    """Selection of rows in ``sbus top``: of ``kind``, those with ``wanted`` in one of their texts, sorted by a column.

    The largest numbers come first; texts go from A to Z.
    """

    def __init__(self, kind: str = "clients", sort: str = "", reverse: bool = False, wanted: str = "") -> None:
        self.kind = kind
        #: The column that rows are sorted by.
        self.sort = sort if sort in self.columns else self.columns[0] if sort == "name" else self._busiest
        self.reverse = reverse
        self.wanted = wanted

    @property
    def columns(self) -> list[str]:
        return TABLES[f"top {self.kind}"].split()

    @property
    def _busiest(self) -> str:
        """Return the column that rows are sorted by first."""
        return "up_rate" if self.kind == "links" else "published_rate"

    def change(self, kind: str) -> None:
        """Show another kind, sorted as before if it has that column."""
        self.kind = kind
        if self.sort not in self.columns:
            self.sort = self._busiest

    def sort_by_next(self, step: int) -> None:
        """Sort by a column beside the one that rows are sorted by now."""
        self.sort = self.columns[(self.columns.index(self.sort) + step) % len(self.columns)]

    def rows(self, look: Look) -> list[Row] | None:
        """Return the rows in their order; ``None`` if the hub was not asked for them."""
        found: list[Row] | None = getattr(look, self.kind)
        if found is None:
            return None
        texts = [column for column in self.columns if column in ("who", "user", "program", "name")]
        chosen = [row for row in found if any(self.wanted.casefold() in row[text].casefold() for text in texts)]
        chosen.sort(key=lambda row: row[texts[0]])
        is_text = self.sort in _TEXTS
        chosen.sort(key=lambda row: row[self.sort], reverse=self.reverse if is_text else not self.reverse)
        return chosen
