"""The tables of reports: Arrow tables in the memory of the driver, and their files, for machines."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..wire.text import printable

if TYPE_CHECKING:
    import pyarrow

__all__ = ["table_of", "write_csv", "write_parquet"]


def table_of(rows: Sequence[tuple[Any, ...]], columns: Mapping[str, str]) -> pyarrow.Table:
    """Rows as an Arrow table.

    :param columns: the name and the Arrow type of each column.
    """
    import pyarrow as pa

    values: Iterable[Iterable[Any]] = zip(*rows, strict=True) if rows else ((),) * len(columns)
    arrays = [pa.array(column, kind) for column, kind in zip(values, columns.values(), strict=True)]
    return pa.table(arrays, names=[*columns])


def write_parquet(tables: Mapping[str, pyarrow.Table], directory: str) -> None:
    """Write each table into the file ``directory/NAME.parquet``, which is replaced if it is there."""
    from pyarrow import parquet

    os.makedirs(directory, exist_ok=True)
    for name, table in tables.items():
        parquet.write_table(table, f"{directory}/{name}.parquet")


def write_csv(tables: Mapping[str, pyarrow.Table], directory: str) -> None:
    """Write each table into the file ``directory/NAME.csv``, which is replaced if it is there.

    Bytes are written as :func:`~sbuslib.wire.text.printable` text, and lists as their items with blanks between. In a
    list, a blank within an item is written as ``\\x20``, and an empty item as ``""``.
    """
    os.makedirs(directory, exist_ok=True)
    for name, table in tables.items():
        with open(f"{directory}/{name}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table.column_names)
            for batch in table.to_batches(max_chunksize=65_536):
                columns = [map(_as_text, column.to_pylist()) for column in batch.columns]
                writer.writerows(zip(*columns, strict=True))


def _as_text(value: object) -> object:
    match value:
        case list():
            return " ".join(str(_as_text(one)).replace(" ", "\\x20") or '""' for one in value)
        case bytes():
            return printable(value)
    return value
