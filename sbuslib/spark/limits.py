"""``SparkLimits``: every number that bounds what is read into Spark or written from it, each with its reason."""

from __future__ import annotations

from ..limits import _Numbers

__all__ = ["SparkLimits"]


class SparkLimits(_Numbers, frozen=True, kw_only=True):
    """What the data source and the lake allow themselves. Immutable, as :class:`~sbuslib.limits.Limits`.

    Raises :exc:`~sbuslib.errors.UsageError` when a number is not positive.
    """

    partition_bytes: int = 134_217_728
    """Bytes of a journal that one task reads, as many as Spark takes of other files. A task costs some 0.1 s, so small
    ones are waste."""
    read_bytes: int = 1_048_576
    """Bytes of a segment that a task has in memory at once, unless a block or a damage spans more: few enough for the
    processor's cache."""
    batch_rows: int = 32_768
    """Rows of which blocks are merged before they are decoded, and handed to Spark together."""
    batch_bytes: int = 33_554_432
    """Bytes of such rows with their keys written out: a long key that many rows share must not become gigabytes at
    once."""
    ingest_rows: int = 5_000_000
    """Rows of a journal that are taken into a lake at once: what is done again after a kill."""
    follow_seconds: float = 10.0
    """Seconds between two batches of a lake that follows a journal: each makes files."""
    compact_batches: int = 100
    """Batches after which a lake that follows a journal is compacted."""
    file_bytes: int = 134_217_728
    """Bytes of a file of a lake; half of it is small, and rewritten together with others."""
    retired_seconds: float = 3600.0
    """Seconds for which files that were rewritten are kept for jobs that read them."""
    stop_seconds: int = 1
    """Seconds after which it is seen that a stream is to end."""
    known_keys: int = 65_536
    """Distinct keys for which a task remembers whether the pattern asked for matches them."""
