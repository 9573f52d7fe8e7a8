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
        Meta(description="Bytes of a journal that one task reads. A task costs some 0.1 s, so small ones are waste."),
    ] = 67_108_864
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
    known_keys: Annotated[
        int, Meta(description="Distinct keys for which a task remembers whether the pattern asked for matches them.")
    ] = 65_536
