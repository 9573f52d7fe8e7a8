"""Journals and lakes as frames of Spark, and the work of taking journals into a lake on a cluster.

A lake is a directory of sealed files, of any number of journals: see :mod:`sbuslib.lake.sealing`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, functions
from pyspark.sql.pandas.types import from_arrow_schema

from ..lake.parquet import header_of
from ..lake.pieces import Piece
from ..lake.places import Sealed, absolute, looked_again
from ..lake.readers import Wish
from ..lake.rows import SCHEMA
from ..lake.sealing import Failure, Unit, Written, attempt
from ..lake.selection import EVERYTHING, Selection
from ..matcher import SEPARATOR, Pattern
from ..segments.decoding import OnCorrupt
from .reader import encode_plan
from .sessions import session as any_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["on_spark", "read", "read_frame", "regex"]


def read(spark: SparkSession, *places: str | os.PathLike[str]) -> DataFrame:
    """All rows of lakes and journals, as :func:`sbuslib.read` with this session."""
    return read_frame(Wish([absolute(place) for place in places], EVERYTHING), spark)


@looked_again
def read_frame(wish: Wish, session: SparkSession | None = None) -> DataFrame:
    """The wanted rows: whole sealed files by Spark's own reader, and all others by the data source.

    The data source is told the pieces. A file that is gone when the frame is used has been sealed or deleted meanwhile,
    so no row is missed or read twice. Raises :exc:`~sbuslib.errors.JournalError`.
    """
    # 1. What Spark reads by itself: sealed files of which all rows are asked, by the separator of their keys.
    spark = session if session is not None else any_session()
    schema = from_arrow_schema(wish.schema)
    by_separator: dict[bytes, list[str]] = {}
    others: list[Piece] = []
    for piece in wish.pieces():
        if isinstance(piece.file, Sealed) and piece.is_whole:
            separator = header_of(piece.file).separator if wish.selection.by_key else SEPARATOR
            by_separator.setdefault(separator, []).append(piece.file.path)
        else:
            others.append(piece)

    # 2. A frame for each separator, and one for all other rows.
    frames = []
    for separator, paths in by_separator.items():
        source = spark.read.schema(from_arrow_schema(SCHEMA)).option("parquet.page.verify-checksum.enabled", "true")
        frames.append(_chosen(source.parquet(*paths), wish.selection, separator).select(*schema.names))
    if others or not frames:
        options = {"onCorrupt": wish.on_corrupt, "plan": encode_plan(others, wish.selection)}
        frames.append(spark.read.format("sbus").schema(schema).options(**options).load(wish.places))
    return reduce(DataFrame.unionByName, frames)


def _chosen(frame: DataFrame, wanted: Selection, separator: bytes) -> DataFrame:
    """The wanted rows of a frame, and its gaps."""
    if wanted.start_ns is not None:
        frame = frame.where(functions.col("time_ns") >= wanted.start_ns)
    if wanted.end_ns is not None:
        frame = frame.where(functions.col("time_ns") < wanted.end_ns)
    if wanted.by_key:
        key = functions.col("key")

        # Latin-1 gives each byte one character, so that the expression sees bytes.
        low, high = wanted.key_range()
        either = "|".join(regex(pattern, separator) for pattern in wanted.patterns or (b"",))
        of_key = functions.decode(key, "ISO-8859-1").rlike(rf"(?s)\A(?:{either})\z")

        # Bounds of keys let Spark leave out groups of rows.
        if low:
            of_key &= key >= functions.lit(bytearray(low))
        if high is not None:
            of_key &= key < functions.lit(bytearray(high))
        frame = frame.where(key.isNull() | of_key)
    return frame


def regex(pattern: bytes, separator: bytes = SEPARATOR) -> str:
    """A regular expression that a key, read as Latin-1, matches as a whole where ``pattern`` matches it.

    It says what :meth:`sbuslib.matcher.Pattern.matches` does.
    """
    cut = Pattern(pattern, separator)
    between = re.escape(separator.decode("latin-1"))
    parts = []
    for number, segment in enumerate(cut.segments):
        stem = segment.rstrip(b"*")
        stars = len(segment) - len(stem)
        literal, start = _escaped(segment), _escaped(stem)
        if not stars:
            parts.append(literal)
        elif number == len(cut.segments) - 1 and not cut.below:
            parts.append(rf"(?:{literal}|{start}\*{{{stars - 1}}}[^*{between}][^{between}]*)")
        else:
            parts.append(rf"(?:{literal}|{start}(?!\*{{{stars}}})[^{between}]*)")
    return between.join([*parts, "(?:.|\n)*"] if cut.below else parts)


def _escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def on_spark(spark: SparkSession) -> Callable[[list[Unit], OnCorrupt], Iterable[Written | Failure]]:
    """What lets :func:`sbuslib.lake.sealing.ingest` work on Spark: each file is a task."""

    def run(units: list[Unit], on_corrupt: OnCorrupt) -> Iterable[Written | Failure]:
        if not units:
            return []
        work: Any = spark.sparkContext.parallelize(units, len(units)).map(lambda unit: attempt(unit, on_corrupt))
        made: list[Written | Failure] = work.collect()
        return made

    return run
