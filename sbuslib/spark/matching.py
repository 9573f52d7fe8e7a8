"""Matches keys against patterns in Spark, with :class:`~sbuslib.matcher.Subscriptions`.

So a pattern means the same in a report as on the bus. Matching runs in Python. Callers group by key in the JVM first,
as there are far fewer distinct keys than messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..matcher import SEPARATOR, Subscriptions, check_separator
from ..secrets import RESERVED

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame

__all__ = ["by_key", "each_match", "is_message", "with_matches"]


@lru_cache(maxsize=1)
def _index(patterns: tuple[bytes, ...], separator: bytes) -> Subscriptions[int]:
    from .workers import settle

    # A worker process runs one task after the other, so the next task finds the index made.
    index: Subscriptions[int] = Subscriptions(separator)
    for number, pattern in enumerate(patterns):
        index.add(pattern, number)
    settle()
    return index


def is_message() -> Column:
    """A column: whether a row is a message and not a gap."""
    from pyspark.sql import functions as f

    return f.expr("kind = 'message'")


def by_key(rows: DataFrame) -> DataFrame:
    """What was published under each key: ``key``, ``messages``, ``bytes`` (of payloads) and ``largest`` (payload).

    :param rows: the rows of a lake or journal, with ``key`` and ``size``.
    """
    from pyspark.sql import functions as f

    # As text: a column made in Python takes several calls into Java, each of nearly a millisecond.
    counts = ("count(1) AS messages", "sum(size) AS bytes", "max(size) AS largest")
    # Gaps have no key, so the column ``kind`` need not be read.
    return rows.where("key IS NOT NULL").groupBy("key").agg(*map(f.expr, counts))


def _find(
    keys: Any, patterns: tuple[bytes, ...], separator: bytes, keyless: Iterable[int] = ()
) -> tuple[list[int], list[int]]:
    """Where the matches of each key in an Arrow array end, and the numbers of the patterns that match, for all keys.

    The numbers for a key that is null are ``keyless``.
    """
    start = RESERVED + separator
    subscribers = _index(patterns, separator).subscribers
    ends, numbers = list[int](), list[int]()
    for key in keys.to_pylist():
        if key is None:
            numbers.extend(keyless)
        elif not key.startswith(start):
            numbers.extend(sorted(subscribers(key)))
        ends.append(len(numbers))
    return ends, numbers


def with_matches(frame: DataFrame, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> DataFrame:
    """``frame`` with another column, ``matched``: the numbers of the ``patterns`` that match ``key``, ascending.

    A number is an index into ``patterns``. Secret keys and null match nothing.

    :param frame: has a column ``key`` (binary). Distinct keys are fastest.
    """
    from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

    wanted = tuple(patterns)
    check_separator(separator)

    def match(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        from ..lake.arrays import integers, lists

        for batch in batches:
            ends, numbers = _find(batch.column("key"), wanted, separator)
            found = lists(ends, integers(numbers))
            yield pa.RecordBatch.from_arrays([*batch.columns, found], [*batch.schema.names, "matched"])

    column = StructField("matched", ArrayType(IntegerType(), False), False)
    return frame.mapInArrow(match, StructType([*frame.schema.fields, column]))


def each_match(frame: DataFrame, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> DataFrame:
    """For each row, one row for each of the ``patterns`` that matches its ``key``.

    Such a row has ``pattern`` and the columns of ``frame`` except ``key``. A row without a key gives a row for every
    pattern. Faster than exploding the column of :func:`with_matches`.
    """
    from pyspark.sql.types import BinaryType, StructField, StructType

    wanted = tuple(patterns)
    check_separator(separator)

    def match(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import numpy
        import pyarrow as pa

        from ..lake.arrays import binary, integers, numbers

        sizes = numpy.fromiter(map(len, wanted), numpy.int64, len(wanted))
        every = binary(sizes, wanted)
        for batch in batches:
            ends, found = _find(batch.column("key"), wanted, separator, range(len(wanted)))
            rows = numpy.repeat(numpy.arange(len(ends)), numpy.diff(ends, prepend=0))
            others = batch.drop_columns(["key"]).take(numbers(rows, pa.int64()))
            columns = [every.take(integers(found)), *others.columns]
            yield pa.RecordBatch.from_arrays(columns, ["pattern", *others.schema.names])

    others = [field for field in frame.schema.fields if field.name != "key"]
    return frame.mapInArrow(match, StructType([StructField("pattern", BinaryType(), False), *others]))
