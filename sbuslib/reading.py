"""Reader of journals and lakes, with the engine of your choice: :func:`read`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, get_args

from .errors import StateError, UsageError
from .journal.format.decoding import OnCorrupt

__all__ = ["Engine", "read"]

Engine: TypeAlias = Literal["arrow", "pandas", "polars", "duckdb", "spark"]


def read(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    engine: Engine = "arrow",
    *,
    start: datetime | str | int | None = None,
    end: datetime | str | int | None = None,
    pattern: bytes | str | None = None,
    columns: Sequence[str] | None = None,
    durable_only: bool = False,
    on_corrupt: OnCorrupt = "error",
    **options: Any,
) -> Any:
    """Read the rows of journals and lakes, each once, also while they are recorded and sealed.

    Missing messages come as gap rows. Polars, DuckDB and Spark read when the frame or the relation is used, and read
    sealed files themselves where all rows are wanted.

    :param paths: directories or URIs of journals, and of folders of sealed files.
    :param engine: ``"arrow"`` gives a ``pyarrow.Table``, ``"pandas"`` a ``DataFrame``, ``"polars"`` a ``LazyFrame``,
        ``"duckdb"`` a relation (``connection=`` chooses where), and ``"spark"`` a ``DataFrame`` (``session=`` likewise;
        else that of this process, or a new one).
    :param start: leave out earlier rows: a time, in UTC unless it has a time zone, or nanoseconds since 1970.
    :param end: leave out rows from then on.
    :param pattern: the messages that a subscription to it would receive. Gap rows are never left out by their keys.
    :param columns: the columns that are read; all unless given.
    :param durable_only: without rows that the recorder does not call durable yet. By default all rows that are written
        are read.
    :param on_corrupt: ``"skip"`` reads a gap row in place of damaged rows of a segment.

    Raises :exc:`~sbuslib.errors.UsageError`, :exc:`~sbuslib.errors.StateError` when a library is missing, and
    :exc:`~sbuslib.errors.JournalError`, which names file and place where something is damaged.
    """
    if engine not in get_args(Engine):
        raise UsageError(f"engine is one of {', '.join(get_args(Engine))}, not {engine!r}")
    try:
        from .journal.read import readers
        from .journal.read.journal_files import absolute
        from .journal.read.schema import SCHEMA
        from .journal.read.selection import Selection, nanoseconds

        unknown = set(columns or ()) - set(SCHEMA.names)
        if unknown:
            raise UsageError(f"there is no column {min(unknown)!r}: there are {', '.join(SCHEMA.names)}")
        patterns = None if pattern is None else (pattern.encode() if isinstance(pattern, str) else pattern,)
        wanted = Selection(nanoseconds("start", start), nanoseconds("end", end), patterns=patterns)
        places = [absolute(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
        wish = readers.Wish(places, wanted, columns, durable_only, on_corrupt)
        if engine == "spark":
            from .spark.lake import read_frame

            return read_frame(wish, **options)
        return getattr(readers, f"read_{engine}")(wish, **options)
    except ImportError as error:
        extra = "spark" if engine == "spark" else "query"
        raise StateError(
            f"{(error.name or str(error)).partition('.')[0]} is missing: pip install 'sbuslib[{extra}]'"
        ) from None
