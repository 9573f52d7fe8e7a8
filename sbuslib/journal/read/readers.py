"""Readers of journals for :func:`sbuslib.read`, into Arrow, pandas, Polars and DuckDB.

Arrow and pandas get a table in memory. Polars and DuckDB get a lazy frame or a relation: they scan sealed (Parquet)
files themselves if all rows of a file are wanted, and get all other rows as record batches, decoded while the query
runs, so that the unsealed tail of a journal is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial, reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow

from ...errors import CorruptJournalError, JournalError
from ..format.decoding import OnCorrupt
from .arrow_batches import batches
from .footer import footer_of
from .journal_files import Sealed, looked_again
from .parquet import checked
from .read_plan import RowRange, plan
from .schema import SCHEMA
from .selection import EVERYTHING, Selection

if TYPE_CHECKING:
    import duckdb
    import polars
    from pandas import DataFrame


class Wish(NamedTuple):
    """Arguments of :func:`sbuslib.read`."""

    places: list[str]
    selection: Selection
    columns: Sequence[str] | None = None
    durable_only: bool = False
    on_corrupt: OnCorrupt = "error"

    @property
    def schema(self) -> Any:
        """The columns, as Arrow's schema."""
        return SCHEMA if self.columns is None else pyarrow.schema([SCHEMA.field(name) for name in self.columns])

    def row_ranges(self) -> list[RowRange]:
        """Plan the read. Raises :exc:`~sbuslib.errors.JournalError`."""
        plans = plan(self.places, self.selection, durable_only=self.durable_only)
        return [row_range for row_ranges in plans.values() for row_range in row_ranges]

    def batches(self, row_ranges: list[RowRange]) -> Iterator[Any]:
        """Read some ranges. Raises :exc:`~sbuslib.errors.JournalError`."""
        return batches(row_ranges, self.schema, self.selection, self.on_corrupt)

    @looked_again
    def runs(self, *, check: bool = True) -> list[tuple[list[str], list[RowRange]]]:
        """Group the ranges in their order: runs of sealed files whose rows are all wanted, and runs of other ranges.

        Those files are checked, unless the engine does it. Raises :exc:`~sbuslib.errors.JournalError`.
        """
        runs = list[tuple[list[str], list[RowRange]]]()
        for is_whole, row_ranges in groupby(self.row_ranges(), self._is_whole):
            run = list(row_ranges)
            files = [row_range.file for row_range in run if isinstance(row_range.file, Sealed)] if is_whole else []
            for file in files:
                footer_of(file)
                if check:
                    checked(file)
            runs.append(([file.path for file in files], [] if is_whole else run))
        return runs

    def _is_whole(self, row_range: RowRange) -> bool:
        file, wanted = row_range.file, self.selection
        if not isinstance(file, Sealed) or not row_range.is_whole or wanted.by_key:
            return False
        return wanted.covers(file.start_ns, file.end_ns)


def separators(places: Sequence[str], hub: str | None = None) -> set[bytes]:
    """Find the key separators of journals, of one hub if it is given. Raises as :meth:`Wish.row_ranges`."""
    headers = []
    for row_range in Wish([*places], EVERYTHING).row_ranges():
        with suppress(CorruptJournalError):  # reading it reports that
            if isinstance(row_range.file, Sealed):
                headers.append(footer_of(row_range.file).header)
            elif row_range.file is not None:
                headers.append(row_range.file.header)
    return {header.separator for header in headers if hub is None or header.hub == hub}


def read_arrow(wish: Wish) -> pyarrow.Table:
    """Read the wanted rows as a table. Raises :exc:`~sbuslib.errors.JournalError`."""
    return pyarrow.Table.from_batches(wish.batches(wish.row_ranges()), wish.schema)


def read_pandas(wish: Wish) -> DataFrame:
    """Read the wanted rows as a frame of pandas, with ``None`` for no text. Raises as :func:`read_arrow`."""
    import pandas

    with pandas.option_context("future.infer_string", False):  # else pandas 3 gives NaN
        return read_arrow(wish).to_pandas()


def read_polars(wish: Wish) -> polars.LazyFrame:
    """Make a lazy frame of Polars of the wanted rows. Raises as :func:`read_arrow`."""
    import polars
    from polars.io.plugins import register_io_source

    def read(
        row_ranges: list[RowRange],
        columns: list[str] | None,
        predicate: polars.Expr | None,
        most: int | None,
        _: int | None,
    ) -> Iterator[polars.DataFrame]:
        chosen = wish._replace(columns=columns if columns is not None else wish.schema.names)
        for batch in chosen.batches(row_ranges):
            frame = polars.DataFrame(polars.from_arrow(batch))
            if predicate is not None:
                frame = frame.filter(predicate)
            frame = frame if most is None else frame.head(most)
            most = None if most is None else most - frame.height
            yield frame
            if most == 0:
                return

    empty = polars.DataFrame(polars.from_arrow(wish.schema.empty_table()))
    frames = [
        polars.scan_parquet(files).select(wish.schema.names)
        if files
        else register_io_source(partial(read, row_ranges), schema=empty.schema)
        for files, row_ranges in wish.runs() or [([], [])]
    ]
    return polars.concat(frames)


def journal_error(error: Exception) -> JournalError | None:
    """Extract our error from one of DuckDB, whose text ends with a traceback; ``None`` if it has none of ours."""
    _, ours, text = str(error).rpartition("\nsbuslib.errors.")
    return JournalError(text.partition(": ")[2].strip()) if ours else None


class _Stream:
    """Record batches that an engine may read repeatedly."""

    def __init__(self, wish: Wish, row_ranges: list[RowRange]) -> None:
        self._wish = wish
        self._row_ranges = row_ranges

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pyarrow.RecordBatchReader.from_batches(self._wish.schema, self._wish.batches(self._row_ranges))
        return reader.__arrow_c_stream__(requested_schema)


def read_duckdb(wish: Wish, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
    """Make a relation of DuckDB of the wanted rows, in ``connection`` if one is given. Raises as :func:`read_arrow`.

    Damage in a segment raises an error of DuckDB when the relation is used: see :func:`journal_error`.
    """
    import duckdb

    base = connection if connection is not None else duckdb.connect()
    names = [*map(duckdb.ColumnExpression, wish.schema.names)]
    relations = [
        base.read_parquet(files).select(*names) if files else base.from_arrow(_Stream(wish, row_ranges))
        for files, row_ranges in wish.runs() or [([], [])]
    ]
    return reduce(duckdb.DuckDBPyRelation.union, relations)
