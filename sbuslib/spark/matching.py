"""Keys against patterns in Spark, by the package's own index.

Whoever calls groups by key in the JVM first: what comes here are distinct keys, of which there are far fewer than
messages. They go through :class:`~sbuslib.matcher.Subscriptions` in Python, so a pattern means in a report just what it
means on the bus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ..matcher import SEPARATOR, Subscriptions, check_separator

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame

__all__ = ["by_key", "is_message", "packet_bytes", "with_matches"]

_SECRET = b"!"


@lru_cache(maxsize=1)
def _index(patterns: tuple[bytes, ...], separator: bytes) -> Subscriptions[int]:
    # Spark uses a worker process for one task after the other, so the next finds the index made.
    index: Subscriptions[int] = Subscriptions(separator)
    for number, pattern in enumerate(patterns):
        index.add(pattern, number)
    return index


def is_message() -> Column:
    """Whether a row is a message, and not a gap."""
    from pyspark.sql import functions as f

    return f.col("kind") == "message"


def packet_bytes() -> Column:
    """Bytes of the packet that a row's message is on a link: ``MSG``, a blank, the key, NUL and the payload."""
    from pyspark.sql import functions as f

    return f.lit(5) + f.length("key") + f.col("size")


def by_key(rows: DataFrame) -> DataFrame:
    """What was published under each key: ``key``, ``messages``, ``bytes`` (of payloads) and ``largest`` (payload).

    :param rows: of a lake or journal; of these, ``kind``, ``key`` and ``size`` are used.
    """
    from pyspark.sql import functions as f

    return (
        rows.where(is_message())
        .groupBy("key")
        .agg(f.count(f.lit(1)).alias("messages"), f.sum("size").alias("bytes"), f.max("size").alias("largest"))
    )


def with_matches(frame: DataFrame, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> DataFrame:
    """``frame`` with a column more, ``matched``: the numbers of the ``patterns`` that match ``key``, ascending.

    A number is an index into ``patterns``. Secret keys, of which a recording has none, match nothing.

    :param frame: with a column ``key`` (binary), best of distinct keys.
    """
    from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

    wanted = tuple(patterns)
    start = separator.join((_SECRET, b""))
    check_separator(separator)

    def match(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        subscribers = _index(wanted, separator).subscribers
        for batch in batches:
            offsets, numbers = [0], list[int]()
            for key in batch.column("key").to_pylist():
                if not key.startswith(start):
                    numbers.extend(sorted(subscribers(key)))
                offsets.append(len(numbers))
            found = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(numbers, pa.int32()))
            yield pa.RecordBatch.from_arrays([*batch.columns, found], [*batch.schema.names, "matched"])

    column = StructField("matched", ArrayType(IntegerType(), False), False)
    return frame.mapInArrow(match, StructType([*frame.schema.fields, column]))
