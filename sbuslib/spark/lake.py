"""Journals and lakes as frames of Spark, and the work of taking journals into a lake on a cluster.

A lake is a directory of sealed files, of any number of journals: see :mod:`sbuslib.lake.sealing`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow
from pyspark.sql import functions
from pyspark.sql.pandas.types import from_arrow_schema

from ..lake.pieces import plan
from ..lake.places import absolute
from ..lake.rows import SCHEMA, Filter
from ..lake.sealing import Unit, Written, write
from ..matcher import SEPARATOR, cut
from ..segments.directory import OnCorrupt
from .sessions import session as any_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["on_spark", "read", "read_frame", "regex"]


def read(spark: SparkSession, *places: str | os.PathLike[str]) -> DataFrame:
    """All rows of lakes and journals, as :func:`sbuslib.read` with this session."""
    return read_frame([absolute(place) for place in places], Filter(), session=spark)


def read_frame(
    places: Sequence[str],
    wanted: Filter,
    *,
    columns: Sequence[str] | None = None,
    durable_only: bool = False,
    on_corrupt: OnCorrupt = "error",
    session: SparkSession | None = None,
) -> DataFrame:
    """The wanted rows: sealed files by Spark's own reader, and the rows that are not sealed by the data source.

    The data source is told with which row it begins, and looks for that row when the frame is used. So no row is missed
    or read twice if it has been sealed by then.
    """
    spark = session if session is not None else any_session()
    found = plan(places, durable_only)
    schema = from_arrow_schema(SCHEMA if columns is None else pyarrow.schema([SCHEMA.field(name) for name in columns]))
    frames = []
    if found.sealed:
        source = spark.read.schema(from_arrow_schema(SCHEMA)).option("parquet.page.verify-checksum.enabled", "true")
        frame = source.parquet(*(one.path for one in found.sealed))
        frames.append(_chosen(frame, wanted).select(*schema.names))
    if found.tails or not frames:
        options = {"onCorrupt": on_corrupt, "durableOnly": str(durable_only), "fromRow": json.dumps(found.tails)}
        for name, value in (("startTime", wanted.start_ns), ("endTime", wanted.end_ns)):
            options |= {} if value is None else {name: str(value)}
        options |= {} if wanted.pattern is None else {"pattern": os.fsdecode(wanted.pattern)}
        tails = [*found.tails] or [*places]
        frames.append(spark.read.format("sbus").schema(schema).options(**options).load(tails))
    return frames[0].unionByName(frames[1]) if frames[1:] else frames[0]


def _chosen(frame: DataFrame, wanted: Filter) -> DataFrame:
    if wanted.start_ns is not None:
        frame = frame.where(functions.col("time_ns") >= wanted.start_ns)
    if wanted.end_ns is not None:
        frame = frame.where(functions.col("time_ns") < wanted.end_ns)
    if wanted.pattern is not None:
        key = functions.col("key")
        low, high = wanted.key_range()
        of_key = functions.decode(key, "ISO-8859-1").rlike(rf"(?s)\A(?:{regex(wanted.pattern)})\z")
        if low:
            of_key &= key >= functions.lit(bytearray(low))
        if high is not None:
            of_key &= key < functions.lit(bytearray(high))
        frame = frame.where(key.isNull() | of_key)
    return frame


def regex(pattern: bytes, separator: bytes = SEPARATOR) -> str:
    """A regular expression that a key, read as Latin-1, matches as a whole where ``pattern`` matches it.

    It says what :func:`sbuslib.matcher.segments_match` does.
    """
    segments, below = cut(pattern, separator)
    between = re.escape(separator.decode("latin-1"))
    parts = []
    for number, segment in enumerate(segments):
        stem = segment.rstrip(b"*")
        stars = len(segment) - len(stem)
        literal, start = _escaped(segment), _escaped(stem)
        if not stars:
            parts.append(literal)
        elif number == len(segments) - 1 and not below:
            parts.append(rf"(?:{literal}|{start}\*{{{stars - 1}}}[^*{between}][^{between}]*)")
        else:
            parts.append(rf"(?:{literal}|{start}(?!\*{{{stars}}})[^{between}]*)")
    return between.join([*parts, "(?:.|\n)*"] if below else parts)


def _escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def on_spark(spark: SparkSession) -> Callable[[list[Unit], OnCorrupt], Iterable[Written]]:
    """What lets :func:`sbuslib.lake.sealing.ingest` work on Spark: each file is a task."""

    def run(units: list[Unit], on_corrupt: OnCorrupt) -> Iterable[Written]:
        if not units:
            return []
        work: Any = spark.sparkContext.parallelize(units, len(units)).map(lambda unit: write(unit, on_corrupt))
        made: list[Written] = work.collect()
        return made

    return run
