"""Journals and lakes as frames of Spark, and ingestion into a lake on a cluster.

A lake is a directory of sealed files, of any number of journals: see :mod:`sbuslib.journal.read.sealing`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from ..journal.format.decoding import OnCorrupt
from ..journal.read.readers import Wish
from ..journal.read.schema import SCHEMA
from ..journal.read.sealing import Failure, Written, attempt
from ..journal.read.units import Unit
from .reader import encode_plan
from .sessions import session as any_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_frame(wish: Wish, session: SparkSession | None = None) -> DataFrame:
    """Make a frame of the wanted rows: Spark's own reader for sealed files that are wanted whole, else the data source.

    The data source gets the planned ranges. It finds the rows of a file that was sealed or deleted meanwhile, so no row
    is missed or read twice. Raises :exc:`~sbuslib.errors.JournalError`.
    """
    spark = session if session is not None else any_session()
    runs = wish.runs(check=False)  # Spark checks each page that it reads, and keeps no order
    whole, others = (
        [file for run in runs for file in run.files],
        [row_range for run in runs if not run.files for row_range in run.row_ranges],
    )

    frames = []
    if whole:
        source = spark.read.schema(from_arrow_schema(SCHEMA)).option("parquet.page.verify-checksum.enabled", "true")
        frames.append(source.parquet(*map(_literal, whole)).select(*wish.schema.names))
    if others or not whole:
        options = {"onCorrupt": wish.on_corrupt, "plan": encode_plan(others, wish.selection)}
        source = spark.read.format("sbus").schema(from_arrow_schema(wish.schema))
        frames.append(source.options(**options).load(wish.places))
    return reduce(DataFrame.unionByName, frames)


def _literal(path: str) -> str:
    """Return the pattern of Hadoop that matches one path."""
    return re.sub(r"[\\*?{}\[\]]", r"\\\g<0>", path)


def on_spark(spark: SparkSession) -> Callable[[list[Unit], OnCorrupt], Iterable[Written | Failure]]:
    """Make the ``run`` argument for :func:`sbuslib.journal.read.sealing.ingest` on Spark: each file is a task."""

    def run(units: list[Unit], on_corrupt: OnCorrupt) -> Iterable[Written | Failure]:
        if not units:
            return []
        work: Any = spark.sparkContext.parallelize(units, len(units)).flatMap(lambda unit: attempt(unit, on_corrupt))
        made: list[Written | Failure] = work.collect()
        return made

    return run
