"""Readers of journals for :func:`sbuslib.read`, into Arrow, pandas, Polars and DuckDB.

Arrow and pandas get a table in memory. Polars and DuckDB get a lazy frame or a relation: they scan sealed (Parquet)
files themselves if all rows of a file are wanted, and get all other rows as record batches, decoded while the query
runs, so that the unsealed tail of a journal is never in memory as a whole.
"""

from __future__ import annotations

import re
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
from .journal_files import Sealed, is_local, looked_again
from .parquet import checked
from .read_plan import RowRange, plan
from .schema import SCHEMA
from .selection import EVERYTHING, Selection

if TYPE_CHECKING:
    import duckdb
    import polars
    from pandas import DataFrame


_PART_BYTES = 33_554_432
"""Bytes of sealed files that are in memory at once, where an engine is handed frames."""


class EngineRun(NamedTuple):
    """Ranges that are read together: each is one of the sealed ``files``, which an engine reads itself, or none is."""

    files: list[str]
    row_ranges: list[RowRange]

    def parts(self) -> Iterator[EngineRun]:
        """Divide a run so that the rows of each part fit in memory. Rows in no file come in pieces anyway."""
        begin = size = 0
        for at, row_range in enumerate(self.row_ranges if self.files else (), 1):
            size += row_range.size
            if size >= _PART_BYTES or at == len(self.files):
                yield EngineRun(self.files[begin:at], self.row_ranges[begin:at])
                begin, size = at, 0
        if not self.files:
            yield self


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
    def runs(self, *, check: bool = True) -> list[EngineRun]:
        """Group the ranges in their order: runs of sealed files whose rows are all wanted, and runs of other ranges.

        Those files are checked if they are on this machine, unless the engine does it: others are not fetched for that.
        Raises :exc:`~sbuslib.errors.JournalError`.
        """
        runs = list[EngineRun]()
        for is_whole, row_ranges in groupby(self.row_ranges(), self._is_whole):
            run = list(row_ranges)
            files = [row_range.file for row_range in run if isinstance(row_range.file, Sealed)] if is_whole else []
            for file in files:
                footer_of(file)
                if check and is_local(file.path):
                    checked(file)
            runs.append(EngineRun([file.path for file in files], run))
        return runs or [EngineRun([], [])]

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

    def native(
        part: EngineRun, names: list[str], predicate: polars.Expr | None, most: int | None
    ) -> polars.DataFrame | None:
        """Read a part as Polars does it; ``None`` if it cannot, also as a file has gone since it was listed."""
        if not part.files:
            return None
        frame = polars.scan_parquet(part.files, glob=False)
        frame = frame if predicate is None else frame.filter(predicate)
        with suppress(FileNotFoundError):
            return frame.select(names).head(most).collect() if most is not None else frame.select(names).collect()
        return None

    def decoded(part: EngineRun, names: list[str], predicate: polars.Expr | None) -> Iterator[polars.DataFrame]:
        for batch in wish._replace(columns=names).batches(part.row_ranges):
            frame = polars.DataFrame(polars.from_arrow(batch))
            yield frame if predicate is None else frame.filter(predicate)

    def read(
        run: EngineRun, columns: list[str] | None, predicate: polars.Expr | None, most: int | None, _: int | None
    ) -> Iterator[polars.DataFrame]:
        names = columns if columns is not None else wish.schema.names
        for part in run.parts():
            whole = native(part, names, predicate, most)
            for frame in [whole] if whole is not None else decoded(part, names, predicate):
                frame = frame if most is None else frame.head(most)
                most = None if most is None else most - frame.height
                yield frame
                if most == 0:
                    return

    empty = polars.DataFrame(polars.from_arrow(wish.schema.empty_table()))
    frames = [register_io_source(partial(read, run), schema=empty.schema) for run in wish.runs()]
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


def _literal(path: str) -> str:
    """Return the pattern of DuckDB that matches one path: it has no way to turn patterns off."""
    return re.sub(r"[*?[]", r"[\g<0>]", path)


def read_duckdb(wish: Wish, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
    """Make a relation of DuckDB of the wanted rows, in ``connection`` if one is given. Raises as :func:`read_arrow`.

    Damage in a segment raises an error of DuckDB when the relation is used: see :func:`journal_error`.
    """
    import duckdb

    base = connection if connection is not None else duckdb.connect()
    names = [*map(duckdb.ColumnExpression, wish.schema.names)]
    relations = [
        base.read_parquet([_literal(file) for file in files]).select(*names)
        if files
        else base.from_arrow(_Stream(wish, row_ranges))
        for files, row_ranges in wish.runs()
    ]
    return reduce(duckdb.DuckDBPyRelation.union, relations)
