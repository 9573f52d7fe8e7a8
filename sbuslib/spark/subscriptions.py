"""What each pattern would have received, which patterns match nothing, and which are covered by others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..covering import covers
from ..errors import KeyFormatError, UsageError
from ..matcher import SEPARATOR, Subscriptions, matches
from ..wire.packets import check_key
from .matching import each_match

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["coverage", "read_patterns", "received"]

_TASK = 1_024
"""How many patterns one task checks for coverage, in some milliseconds."""


def read_patterns(path: str) -> list[bytes]:
    """The patterns in a file, one a line, in order and without duplicates.

    Empty lines and lines that begin with ``#`` are left out. The empty pattern, which matches everything, is written
    ``""``. Raises :exc:`~sbuslib.errors.UsageError`, with the number of the line, for a wrong pattern, and
    :exc:`OSError`.
    """
    found: dict[bytes, None] = {}
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        pattern = b"" if line == b'""' else line
        if line and not line.startswith(b"#"):
            try:
                check_key(pattern, "pattern")
            except KeyFormatError as error:
                raise UsageError(f"{path}, line {number}: {error}") from None
            found[pattern] = None
    return list(found)


def received(keys: DataFrame, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> DataFrame:
    """``pattern``, ``messages``, ``bytes`` and ``keys`` that each pattern would have received, the busiest first.

    Every pattern has a row, with zeros where nothing matched it.

    :param keys: what :func:`~sbuslib.spark.matching.by_key` gives.
    :param patterns: distinct patterns.
    """
    from pyspark.sql import functions as f

    # A row of zeros goes to every pattern, so patterns that match nothing have a row without a join.
    zeros = keys.sparkSession.sql("SELECT CAST(NULL AS BINARY) AS key, 0L AS messages, 0L AS bytes")
    counted = keys.select("key", "messages", "bytes").unionAll(zeros)
    matched = each_match(counted, patterns, separator)
    sums = ("sum(messages) AS messages", "sum(bytes) AS bytes", "count_if(messages > 0) AS keys")
    # One row for each pattern is left. Sorting them in one task is cheaper than a shuffle.
    whole = matched.groupBy("pattern").agg(*map(f.expr, sums)).coalesce(1)
    return whole.sortWithinPartitions(f.desc("messages"), f.desc("bytes"), "pattern")


def _frame(spark: SparkSession, patterns: Sequence[bytes]) -> DataFrame:
    import pyarrow as pa

    return spark.createDataFrame(pa.table({"pattern": pa.array(patterns, pa.binary())}))


def _witness(pattern: bytes, separator: bytes) -> bytes:
    """A key that ``pattern`` matches. Every pattern that covers ``pattern`` matches it, too, so the index finds it."""
    segments = pattern.split(separator)
    below = not segments[-1]
    if below:
        segments.pop()
    key = [
        segment if not segment.endswith(b"*") else segment[:-1] + b"\1"  # only a star at the end is a wildcard
        for segment in segments
    ]
    return separator.join([*key, b"\1"] if below else key)


def coverage(spark: SparkSession, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> DataFrame:
    """``pattern`` and ``covered_by``: the other ``patterns`` that match every key that it matches, in order.

    A client that holds both patterns needs only the one that covers the other.
    """
    from pyspark.sql.types import ArrayType, BinaryType, StructField, StructType

    every = tuple(patterns)

    def find(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        index: Subscriptions[bytes] = Subscriptions(separator)
        for pattern in every:
            index.add(pattern, pattern)
        for batch in batches:
            found: list[list[bytes]] = []
            for pattern in batch.column("pattern").to_pylist():
                witness = _witness(pattern, separator)
                assert matches(pattern, witness, separator), pattern
                others = index.subscribers(witness)
                found.append(sorted(p for p in others if p != pattern and covers(p, pattern, separator)))
            yield pa.RecordBatch.from_arrays(
                [batch.column("pattern"), pa.array(found, pa.list_(pa.binary()))], ["pattern", "covered_by"]
            )

    schema = StructType(
        [
            StructField("pattern", BinaryType(), False),
            StructField("covered_by", ArrayType(BinaryType(), False), False),
        ]
    )
    frame = _frame(spark, patterns).repartition(max(1, len(every) // _TASK))
    return frame.mapInArrow(find, schema)
