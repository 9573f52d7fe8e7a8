"""Reads sealed files and live tails with the engines of Python: Arrow, pandas, Polars and DuckDB.

The sealed files are read by the engine itself, which skips files and row groups by their statistics. The live tail is
decoded here, and is a table in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow

from ..errors import CorruptJournalError, JournalError
from ..segments.directory import OnCorrupt
from .pieces import batches, chosen, expression, parquet_format, pieces, plan
from .places import Sealed, filesystem_of
from .rows import SCHEMA, Filter

if TYPE_CHECKING:
    import duckdb
    import polars
    from pandas import DataFrame

__all__ = ["read_arrow", "read_duckdb", "read_pandas", "read_polars"]

_ATTEMPTS = 10
"""How often files may vanish between listing and reading: a sealer replaces segments, retention deletes old files."""

T = TypeVar("T")


def _tried(read: Callable[[list[Sealed], Any], T], places: Sequence[str], wanted: Filter, options: _Options) -> T:
    """Call ``read`` with the sealed files and the table of the live tail, again where a file has vanished meanwhile."""
    for attempt in range(_ATTEMPTS):
        try:
            found = plan(places, options.durable_only)
            some = [
                batch
                for place, least in found.tails.items()
                for batch in batches(
                    pieces(place, options.durable_only, least), options.schema, wanted, options.on_corrupt
                )
            ]
            return read(found.sealed, pyarrow.Table.from_batches(some, options.schema))
        except CorruptJournalError:
            raise
        except (JournalError, FileNotFoundError) as error:
            if attempt == _ATTEMPTS - 1 or "no such directory" in str(error):
                raise
    raise AssertionError


class _Options:
    def __init__(self, columns: Sequence[str] | None, durable_only: bool, on_corrupt: OnCorrupt) -> None:
        self.schema = SCHEMA if columns is None else pyarrow.schema([SCHEMA.field(name) for name in columns])
        self.durable_only = durable_only
        self.on_corrupt: OnCorrupt = on_corrupt


def read_arrow(
    places: Sequence[str],
    wanted: Filter,
    columns: Sequence[str] | None = None,
    durable_only: bool = False,
    on_corrupt: OnCorrupt = "error",
) -> pyarrow.Table:
    """The wanted rows as a table. Raises :exc:`~sbuslib.errors.JournalError`."""
    import pyarrow.dataset

    options = _Options(columns, durable_only, on_corrupt)
    names = [*dict.fromkeys([*options.schema.names, *(["key", "kind"] if wanted.by_key else [])])]

    def read(sealed: list[Sealed], tail: Any) -> Any:
        tables = []
        for filesystem, paths in _by_filesystem(sealed):
            source = pyarrow.dataset.dataset(paths, SCHEMA, parquet_format(), filesystem)
            try:
                rows = source.to_table(columns=names, filter=expression(wanted))
            except FileNotFoundError:
                raise
            except (OSError, pyarrow.ArrowException) as error:
                raise CorruptJournalError(" ".join(str(error).split()), 0, _damaged(sealed)) from None
            tables.append(chosen(rows, wanted).select(options.schema.names))
        return pyarrow.concat_tables([*(table.cast(options.schema) for table in tables), tail])

    return _tried(read, places, wanted, options)


def _damaged(sealed: list[Sealed]) -> str:
    """The path of the first sealed file that cannot be read to its end."""
    import pyarrow.dataset

    for one in sealed:
        filesystem, path = filesystem_of(one.path)
        try:
            source = pyarrow.dataset.dataset(path, SCHEMA, parquet_format(), filesystem)
            for _ in source.to_batches():
                pass
        except (OSError, pyarrow.ArrowException):
            return one.path
    return sealed[0].path


def _by_filesystem(sealed: list[Sealed]) -> list[tuple[Any, list[str]]]:
    found: list[tuple[Any, list[str]]] = []
    known: dict[str, int] = {}
    for one in sealed:
        filesystem, path = filesystem_of(one.path)
        root = one.path.removesuffix(path)
        if root not in known:
            known[root] = len(found)
            found.append((filesystem, []))
        found[known[root]][1].append(path)
    return found


def read_pandas(places: Sequence[str], wanted: Filter, **options: Any) -> DataFrame:
    """The wanted rows as a frame of pandas. Raises as :func:`read_arrow`."""
    return read_arrow(places, wanted, **options).to_pandas()


def _keys(places: Sequence[str], wanted: Filter, **options: Any) -> list[bytes] | None:
    """The distinct keys that a pattern or a prefix lets through; ``None`` if all do."""
    if not wanted.by_key:
        return None
    keys = read_arrow(places, wanted, columns=["key"], **options).column("key").unique().to_pylist()
    return [key for key in keys if key is not None]


def read_polars(
    places: Sequence[str], wanted: Filter, columns: Sequence[str] | None = None, **options: Any
) -> polars.LazyFrame:
    """The wanted rows as a lazy frame of Polars. Raises as :func:`read_arrow`."""
    import polars

    keys = _keys(places, wanted, **options)
    low, high = wanted.key_range()

    def read(sealed: list[Sealed], tail: Any) -> Any:
        frames = [polars.from_arrow(tail).lazy()]  # type: ignore[union-attr]
        if sealed:
            frame = polars.scan_parquet([one.path for one in sealed])
            if wanted.start_ns is not None:
                frame = frame.filter(polars.col("time_ns") >= wanted.start_ns)
            if wanted.end_ns is not None:
                frame = frame.filter(polars.col("time_ns") < wanted.end_ns)
            if keys is not None:
                key = polars.col("key")
                of_key = key.is_in(polars.Series(keys, dtype=polars.Binary).implode())
                if low:
                    of_key &= key >= low
                if high is not None:
                    of_key &= key < high
                frame = frame.filter(of_key | key.is_null())
            frames.insert(0, frame.select(tail.schema.names))
        return polars.concat(frames)

    frame: polars.LazyFrame = _tried(read, places, wanted, _Options(columns, **_defaults(options)))
    return frame


def _defaults(options: dict[str, Any]) -> dict[str, Any]:
    return {"durable_only": False, "on_corrupt": "error", **options}


def read_duckdb(
    places: Sequence[str],
    wanted: Filter,
    columns: Sequence[str] | None = None,
    connection: duckdb.DuckDBPyConnection | None = None,
    **options: Any,
) -> duckdb.DuckDBPyRelation:
    """The wanted rows as a relation of DuckDB, in ``connection`` if one is given. Raises as :func:`read_arrow`."""
    import duckdb

    base = connection if connection is not None else duckdb.connect()
    keys = _keys(places, wanted, **options)
    low, high = wanted.key_range()

    def read(sealed: list[Sealed], tail: Any) -> Any:
        rows = base.from_arrow(tail)
        if not sealed:
            return rows
        relation = base.read_parquet([one.path for one in sealed])
        if wanted.start_ns is not None:
            relation = relation.filter(f"time_ns >= {wanted.start_ns}")
        if wanted.end_ns is not None:
            relation = relation.filter(f"time_ns < {wanted.end_ns}")
        if keys is not None:
            terms = [f"key IN ({', '.join(map(_blob, keys))})"] if keys else ["false"]
            terms += [f"key >= {_blob(low)}"] if low else []
            terms += [f"key < {_blob(high)}"] if high is not None else []
            relation = relation.filter(f"key IS NULL OR ({' AND '.join(terms)})")
        relation = relation.select(*(duckdb.ColumnExpression(name) for name in tail.schema.names))
        return relation.union(rows) if tail.num_rows else relation

    relation: duckdb.DuckDBPyRelation = _tried(read, places, wanted, _Options(columns, **_defaults(options)))
    return relation


def _blob(key: bytes) -> str:
    return f"from_hex('{key.hex()}')"
