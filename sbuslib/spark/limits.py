"""``SparkLimits``: the limits of the data source and the lake, each with its reason."""

from __future__ import annotations

from ..limits import _Numbers

__all__ = ["SparkLimits"]


class SparkLimits(_Numbers, frozen=True, kw_only=True):
    """The limits of the data source and the lake. Immutable, as :class:`~sbuslib.limits.Limits`.

    Raises :exc:`~sbuslib.errors.UsageError` when a number is not positive.
    """

    partition_bytes: int = 134_217_728
    """Bytes of a journal that one task reads: Spark's default for other files. A task costs some 0.1 s, so small tasks
    waste time."""
    read_bytes: int = 1_048_576
    """Bytes of a segment that a task has in memory at once, unless a block or damage is longer. They fit into the
    processor's cache."""
    batch_rows: int = 32_768
    """Rows that are decoded together and handed to Spark at once."""
    batch_bytes: int = 33_554_432
    """Bytes of such rows with their keys written out. A long key that many rows share must not become gigabytes."""
    ingest_rows: int = 5_000_000
    """Rows of a journal that are taken into a lake at once. After a kill, so many are taken in again."""
    follow_seconds: float = 10.0
    """Seconds between two batches of a lake that follows a journal. Each batch makes files."""
    compact_batches: int = 100
    """Batches after which a lake that follows a journal is compacted."""
    file_bytes: int = 134_217_728
    """Bytes of a file of a lake. Smaller files than half of this are rewritten together."""
    retired_seconds: float = 3600.0
    """Seconds for which rewritten files are kept for jobs that read them."""
    stop_seconds: int = 1
    """Seconds between two checks whether a stream should end."""
    known_keys: int = 65_536
    """Distinct keys for which a task remembers whether they are wanted."""
