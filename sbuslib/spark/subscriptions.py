"""What each of many patterns would have received, which of them match nothing, and which others cover each."""

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
"""Patterns whose covers one task looks for: it takes some milliseconds."""


def read_patterns(path: str) -> list[bytes]:
    """The patterns in a file, one a line, each once and in order; empty lines and those from ``#`` on are left out.

    The empty pattern, which matches everything, is written ``""``. Raises :exc:`~sbuslib.errors.UsageError`, with the
    line, for what is no pattern, and :exc:`OSError`.
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

    # With a row of zeros for all patterns: so one sum does for those that match nothing as well, and no join.
    zeros = keys.sparkSession.sql("SELECT CAST(NULL AS BINARY) AS key, 0L AS messages, 0L AS bytes")
    counted = keys.select("key", "messages", "bytes").unionAll(zeros)
    matched = each_match(counted, patterns, separator)
    sums = ("sum(messages) AS messages", "sum(bytes) AS bytes", "count_if(messages > 0) AS keys")
    # The rows that are left, one a pattern, are cheaper to sort in one place than to share out for it.
    whole = matched.groupBy("pattern").agg(*map(f.expr, sums)).coalesce(1)
    return whole.sortWithinPartitions(f.desc("messages"), f.desc("bytes"), "pattern")


def _frame(spark: SparkSession, patterns: Sequence[bytes]) -> DataFrame:
    import pyarrow as pa

    return spark.createDataFrame(pa.table({"pattern": pa.array(patterns, pa.binary())}))


def _witness(pattern: bytes, separator: bytes) -> bytes:
    """Some key that ``pattern`` matches: whatever covers the pattern matches it, so the index finds what may."""
    segments = pattern.split(separator)
    below = not segments[-1]
    if below:
        segments.pop()
    key = [
        segment if not segment.endswith(b"*") else segment[:-1] + b"\1"  # all stars but the last equal themselves
        for segment in segments
    ]
    return separator.join([*key, b"\1"] if below else key)


def coverage(spark: SparkSession, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> DataFrame:
    """``pattern`` and ``covered_by``: the others of ``patterns`` that match whatever it matches, in order.

    A pattern that another covers brings its holder nothing that the other would not bring.
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
