"""Keys against patterns in Spark, by the package's own index.

Whoever calls groups by key in the JVM first: what comes here are distinct keys, of which there are far fewer than
messages. They go through :class:`~sbuslib.matcher.Subscriptions` in Python, so a pattern means in a report just what it
means on the bus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..matcher import SEPARATOR, Subscriptions, check_separator

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame

__all__ = ["by_key", "each_match", "is_message", "packet_bytes", "with_matches"]

_SECRET = b"!"


@lru_cache(maxsize=1)
def _index(patterns: tuple[bytes, ...], separator: bytes) -> Subscriptions[int]:
    from .workers import settle

    # Spark uses a worker process for one task after the other, so the next finds the index made.
    index: Subscriptions[int] = Subscriptions(separator)
    for number, pattern in enumerate(patterns):
        index.add(pattern, number)
    settle()
    return index


def is_message() -> Column:
    """Whether a row is a message, and not a gap."""
    from pyspark.sql import functions as f

    return f.expr("kind = 'message'")


def packet_bytes() -> Column:
    """Bytes of the packet that a row's message is on a link: ``MSG``, a blank, the key, NUL and the payload."""
    from pyspark.sql import functions as f

    return f.lit(5) + f.length("key") + f.col("size")


def by_key(rows: DataFrame) -> DataFrame:
    """What was published under each key: ``key``, ``messages``, ``bytes`` (of payloads) and ``largest`` (payload).

    :param rows: of a lake or journal; of these, ``key`` and ``size`` are used.
    """
    from pyspark.sql import functions as f

    # As text: a column that is made in Python is some calls into Java, and each of them takes most of a millisecond.
    counts = ("count(1) AS messages", "sum(size) AS bytes", "max(size) AS largest")
    # Gaps have no key; to know them by that is a column less to read.
    return rows.where("key IS NOT NULL").groupBy("key").agg(*map(f.expr, counts))


def _find(
    keys: Any, patterns: tuple[bytes, ...], separator: bytes, keyless: Iterable[int] = ()
) -> tuple[list[int], list[int]]:
    """The numbers of the patterns that match each of an Arrow array of keys, and where those of each key end.

    What stands in for a key that is null is ``keyless``.
    """
    start = separator.join((_SECRET, b""))
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
    """``frame`` with a column more, ``matched``: the numbers of the ``patterns`` that match ``key``, ascending.

    A number is an index into ``patterns``. Secret keys, of which a recording has none, match nothing, nor does null.

    :param frame: with a column ``key`` (binary), best of distinct keys.
    """
    from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

    wanted = tuple(patterns)
    check_separator(separator)

    def match(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        from .arrays import integers, lists

        for batch in batches:
            ends, numbers = _find(batch.column("key"), wanted, separator)
            found = lists(ends, integers(numbers))
            yield pa.RecordBatch.from_arrays([*batch.columns, found], [*batch.schema.names, "matched"])

    column = StructField("matched", ArrayType(IntegerType(), False), False)
    return frame.mapInArrow(match, StructType([*frame.schema.fields, column]))


def each_match(frame: DataFrame, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> DataFrame:
    """A row for each of the ``patterns`` that matches ``key``: ``pattern``, and the columns of ``frame`` but ``key``.

    As :func:`with_matches`, where nothing is to be made of a key's matches but such rows. A row without a key stands
    for all patterns, and so has a row for each.
    """
    from pyspark.sql.types import BinaryType, StructField, StructType

    wanted = tuple(patterns)
    check_separator(separator)

    def match(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import numpy
        import pyarrow as pa

        from .arrays import binary, integers, numbers

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
