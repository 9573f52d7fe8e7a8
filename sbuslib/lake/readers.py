"""Reads the rows of journals with the engines of Python: Arrow, pandas, Polars and DuckDB.

Polars and DuckDB read sealed files themselves where all rows are wanted. Every other row comes as record batches, a
little at a time: they are decoded when a query runs, so that no engine holds a live tail of any length. Arrow and
pandas make a table in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow

from ..segments.decoding import OnCorrupt
from .decode import batches
from .parquet import checked
from .pieces import Piece, plan
from .places import Sealed, looked_again
from .rows import SCHEMA
from .selection import Selection

if TYPE_CHECKING:
    import duckdb
    import polars
    from pandas import DataFrame

__all__ = ["Wish", "read_arrow", "read_duckdb", "read_pandas", "read_polars"]


class Wish(NamedTuple):
    """What is to be read: the arguments of :func:`sbuslib.read`."""

    places: list[str]
    selection: Selection
    columns: Sequence[str] | None = None
    durable_only: bool = False
    on_corrupt: OnCorrupt = "error"

    @property
    def schema(self) -> Any:
        """The columns, as Arrow's schema."""
        return SCHEMA if self.columns is None else pyarrow.schema([SCHEMA.field(name) for name in self.columns])

    def pieces(self) -> list[Piece]:
        """What there is to read. Raises :exc:`~sbuslib.errors.JournalError`."""
        found = plan(self.places, self.selection, durable_only=self.durable_only)
        return [piece for pieces in found.values() for piece in pieces]

    def batches(self, pieces: list[Piece]) -> Iterator[Any]:
        """The rows of some pieces. Raises :exc:`~sbuslib.errors.JournalError`."""
        return batches(pieces, self.schema, self.selection, self.on_corrupt)

    @looked_again
    def divided(self, *, check: bool = True) -> tuple[list[str], list[Piece]]:
        """The sealed files of which all rows are wanted, checked unless somebody else does it, and the other pieces.

        Raises :exc:`~sbuslib.errors.JournalError`.
        """
        whole, others, wanted = list[str](), list[Piece](), self.selection
        for piece in self.pieces():
            file = piece.file
            is_whole = isinstance(file, Sealed) and piece.is_whole and wanted.covers(file.start_ns, file.end_ns)
            if isinstance(file, Sealed) and is_whole and not wanted.by_key:
                if check:
                    checked(file)
                whole.append(file.path)
            else:
                others.append(piece)
        return whole, others


def read_arrow(wish: Wish) -> pyarrow.Table:
    """The wanted rows as a table. Raises :exc:`~sbuslib.errors.JournalError`."""
    return pyarrow.Table.from_batches(wish.batches(wish.pieces()), wish.schema)


def read_pandas(wish: Wish) -> DataFrame:
    """The wanted rows as a frame of pandas, with ``None`` for no text. Raises as :func:`read_arrow`."""
    import pandas

    with pandas.option_context("future.infer_string", False):  # else pandas 3 gives NaN
        return read_arrow(wish).to_pandas()


def read_polars(wish: Wish) -> polars.LazyFrame:
    """The wanted rows as a lazy frame of Polars. Raises as :func:`read_arrow`."""
    import polars
    from polars.io.plugins import register_io_source

    whole, others = wish.divided()

    def read(
        columns: list[str] | None, predicate: polars.Expr | None, most: int | None, _: int | None
    ) -> Iterator[polars.DataFrame]:
        chosen = wish._replace(columns=columns if columns is not None else wish.schema.names)
        for batch in chosen.batches(others):
            frame = polars.DataFrame(polars.from_arrow(batch))
            if predicate is not None:
                frame = frame.filter(predicate)
            frame = frame if most is None else frame.head(most)
            most = None if most is None else most - frame.height
            yield frame
            if most == 0:
                return

    frames = [polars.scan_parquet(whole).select(wish.schema.names)] if whole else []
    if others or not whole:
        empty = polars.DataFrame(polars.from_arrow(wish.schema.empty_table()))
        frames.append(register_io_source(read, schema=empty.schema))
    return polars.concat(frames)


class _Stream:
    """Record batches that an engine may ask for again and again."""

    def __init__(self, wish: Wish, pieces: list[Piece]) -> None:
        self._wish = wish
        self._pieces = pieces

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pyarrow.RecordBatchReader.from_batches(self._wish.schema, self._wish.batches(self._pieces))
        return reader.__arrow_c_stream__(requested_schema)


def read_duckdb(wish: Wish, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
    """The wanted rows as a relation of DuckDB, in ``connection`` if one is given. Raises as :func:`read_arrow`."""
    import duckdb

    base = connection if connection is not None else duckdb.connect()
    whole, others = wish.divided()
    rest = base.from_arrow(_Stream(wish, others))
    if not whole:
        return rest
    sealed = base.read_parquet(whole).select(*map(duckdb.ColumnExpression, wish.schema.names))
    return sealed.union(rest) if others else sealed
