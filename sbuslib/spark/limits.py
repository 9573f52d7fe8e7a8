"""``SparkLimits``: every number that bounds what is read into Spark or written from it, each with its reason."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..limits import _Numbers

__all__ = ["SparkLimits"]


class SparkLimits(_Numbers, frozen=True, kw_only=True):
    """What the data source and the lake allow themselves. Immutable, as :class:`~sbuslib.limits.Limits`.

    Raises :exc:`~sbuslib.errors.UsageError` when a number is not positive.
    """

    partition_bytes: Annotated[
        int,
        Meta(
            description="Bytes of a journal that one task reads, as many as Spark takes of other files. A task costs "
            "some 0.1 s, so small ones are waste."
        ),
    ] = 134_217_728
    read_bytes: Annotated[
        int,
        Meta(
            description="Bytes of a segment that a task has in memory at once, unless a block or a damage spans more: "
            "few enough for the processor's cache."
        ),
    ] = 1_048_576
    batch_rows: Annotated[
        int, Meta(description="Rows of which blocks are merged before they are decoded, and handed to Spark together.")
    ] = 32_768
    batch_bytes: Annotated[
        int,
        Meta(
            description="Bytes of such rows with their keys written out: a long key that many rows share must not "
            "become gigabytes at once."
        ),
    ] = 33_554_432
    ingest_rows: Annotated[
        int,
        Meta(description="Rows of a journal that are taken into a lake at once: what is done again after a kill."),
    ] = 5_000_000
    follow_seconds: Annotated[
        float, Meta(description="Seconds between two batches of a lake that follows a journal: each makes files.")
    ] = 10.0
    compact_batches: Annotated[
        int, Meta(description="Batches after which a lake that follows a journal is compacted.")
    ] = 100
    file_bytes: Annotated[
        int, Meta(description="Bytes of a file of a lake; half of it is small, and rewritten together with others.")
    ] = 134_217_728
    retired_seconds: Annotated[
        float, Meta(description="Seconds for which files that were rewritten are kept for jobs that read them.")
    ] = 3600.0
    stop_seconds: Annotated[int, Meta(description="Seconds after which it is seen that a stream is to end.")] = 1
    known_keys: Annotated[
        int, Meta(description="Distinct keys for which a task remembers whether the pattern asked for matches them.")
    ] = 65_536
