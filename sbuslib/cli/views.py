"""What ``sbus top`` shows of a look at a hub: which rows and columns, and in which order."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ..rates import Look, Row
from .tables import name_of_user

__all__ = ["COLUMNS", "View"]

_name_of_user = lru_cache(name_of_user)

_COUNTS = {"in": "IN/S", "out": "OUT/S", "queued": "WAITING", "losing": "LOST/S", "lost": "LOST"}

COLUMNS: Final[dict[str, dict[str, str]]] = {
    "clients": {"who": "CLIENT", **_COUNTS, "patterns": "PATTERNS", "modes": "SOFT, HARD, ORDER"},
    "users": {
        "user": "USER",
        **_COUNTS,
        "patterns": "PATTERNS",
        "connections": "CLIENTS",
        "queued_bytes": "BYTES WAITING",
    },
    "links": {"name": "HUB", **_COUNTS, "direction": "DIRECTION", "state": "STATE"},
}
"""Per client, user or link: the columns, and their titles. The first one says whom a row is about."""


class View:
    """Which rows are shown: of ``kind`` (clients, users or links), those with ``wanted`` in their first column, sorted
    by a column. The largest numbers come first; texts go from A to Z."""

    def __init__(self, kind: str = "clients", sort: str = "in", reverse: bool = False, wanted: str = "") -> None:
        self.kind = kind
        self.sort = sort if sort in COLUMNS[kind] else "in"
        self.reverse = reverse
        self.wanted = wanted

    @property
    def columns(self) -> dict[str, str]:
        return COLUMNS[self.kind]

    def change(self, kind: str) -> None:
        """Show another kind, sorted as before if it has that column."""
        self.kind = kind
        if self.sort not in self.columns:
            self.sort = "in"

    def sort_by_next(self, step: int) -> None:
        """Sort by a column beside the one that rows are sorted by now."""
        names = [*self.columns]
        self.sort = names[(names.index(self.sort) + step) % len(names)]

    def rows(self, look: Look) -> list[Row] | None:
        """The rows in their order; ``None`` if the hub was not asked for them."""
        found: list[Row] | None = getattr(look, self.kind)
        if found is None:
            return None
        if self.kind == "users":
            found = [{"user": _name_of_user(row["uid"]), **row} for row in found]
        name = next(iter(self.columns))
        chosen = [row for row in found if self.wanted.casefold() in row[name].casefold()]
        chosen.sort(key=lambda row: row[name])
        is_text = bool(chosen) and isinstance(chosen[0][self.sort], str)
        chosen.sort(key=lambda row: row[self.sort], reverse=self.reverse if is_text else not self.reverse)
        return chosen

    def cells(self, row: Row) -> list[str]:
        """The texts of a row, in the order of the columns."""
        values = (row[column] for column in self.columns)
        return [value if isinstance(value, str) else f"{value:,}" for value in values]
