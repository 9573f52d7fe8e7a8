"""Tables of reports, and their files for machines."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from datetime import datetime
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..kernel.regular_files import make_folder, open_emptied
from ..wire.text import printable

if TYPE_CHECKING:
    import pyarrow

_FORMULAS: Final = ("=", "+", "-", "@")
"""With these begins what a spreadsheet takes for a formula."""


class Table(NamedTuple):
    """Rows in memory.

    Times are of type ``datetime``, binary values ``bytes``, and lists ``list``.
    """

    columns: dict[str, str]
    """The Arrow type of each column, by its name."""

    rows: list[tuple[Any, ...]]

    def column(self, name: str) -> list[Any]:
        """The values of a column."""
        at = [*self.columns].index(name)
        return [row[at] for row in self.rows]

    def total(self, name: str) -> int:
        """The sum of a column's numbers, nulls left out."""
        return sum(filter(None, self.column(name)))

    def to_arrow(self) -> pyarrow.Table:
        """Convert to an Arrow table."""
        import pyarrow as pa

        kinds = {"time": pa.timestamp("us", tz="UTC"), "keys": pa.list_(pa.binary())}
        schema = pa.schema([(name, kinds.get(kind, kind)) for name, kind in self.columns.items()])
        return pa.Table.from_arrays([pa.array(self.column(item.name), item.type) for item in schema], schema=schema)


def as_json(table: Table) -> Iterator[dict[str, object]]:
    """Yield the rows of a table for JSON: bytes as :func:`~sbuslib.wire.text.printable` text, times as ISO 8601."""

    def plain(value: object) -> object:
        match value:
            case bytes():
                return printable(value)
            case datetime():
                return value.isoformat()
            case list():
                return [plain(item) for item in value]
        return value

    for row in table.rows:
        yield {name: plain(value) for name, value in zip(table.columns, row, strict=True)}


def write_parquet(tables: Mapping[str, Table], directory: str) -> None:
    """Write each table into the file ``directory/NAME.parquet``, which is replaced if it is there."""
    from pyarrow import parquet

    make_folder(directory)
    for name, table in tables.items():
        with open_emptied(f"{directory}/{name}.parquet") as file:
            parquet.write_table(table.to_arrow(), file)


def write_csv(tables: Mapping[str, Table], directory: str) -> None:
    """Write each table into the file ``directory/NAME.csv``, which is replaced if it is there.

    Bytes are written as :func:`~sbuslib.wire.text.printable` text, and lists as their items with blanks between. In a
    list, a blank within an item is written as ``\\x20``, and an empty item as ``""``. An unknown value is empty.
    Spreadsheets run texts that begin with ``=``, ``+``, ``-`` or ``@``, so that byte is escaped, too: ``\\x3d``.
    """
    make_folder(directory)
    for name, table in tables.items():
        with TextIOWrapper(open_emptied(f"{directory}/{name}.csv"), "utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table.columns)
            writer.writerows(map(_cell, row) for row in table.rows)


def _cell(value: object) -> object:
    """A value for a file. Texts may be a stranger's, and none is a formula."""
    text = _as_text(value)
    return f"\\x{ord(text[0]):02x}{text[1:]}" if isinstance(text, str) and text.startswith(_FORMULAS) else text


def _as_text(value: object) -> object:
    match value:
        case list():
            return " ".join(str(_as_text(item)).replace(" ", "\\x20") or '""' for item in value)
        case bytes():
            return printable(value)
    return value
