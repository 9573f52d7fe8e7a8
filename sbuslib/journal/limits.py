"""``JournalLimits``: the numbers that an operator of a recorder may set, each with the reason for its default."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..limits import _Numbers

__all__ = ["JournalLimits"]


class JournalLimits(_Numbers, frozen=True, kw_only=True):
    """The limits of a recorder. Immutable; derive another with ``msgspec.structs.replace``.

    Raises :exc:`~sbuslib.errors.UsageError` when a number is not positive.
    """

    block_records: Annotated[
        int,
        Meta(
            description="Messages that are handed to the writer at once: enough that a block's own cost, and that of "
            "taking turns with the writer's thread, hardly shows."
        ),
    ] = 1_024
    block_bytes: Annotated[
        int, Meta(description="Bytes of messages that are handed to the writer at once, however few they are.")
    ] = 1_048_576
    block_seconds: Annotated[
        float, Meta(description="Seconds after which fewer are handed over: what a crash may cost while little comes.")
    ] = 0.05
    queued_records: Annotated[
        int,
        Meta(description="Messages that may wait for the writer before publishers are held: half a second of them."),
    ] = 131_072
    queued_bytes: Annotated[
        int, Meta(description="Bytes that may wait for the writer: half a second of what a good disk takes.")
    ] = 67_108_864
    segment_bytes: Annotated[
        int, Meta(description="Size at which a segment is closed: what one task of Spark reads in a second or so.")
    ] = 67_108_864
    segment_seconds: Annotated[
        float, Meta(description="Age at which a segment is closed: what retention by age is exact to.")
    ] = 3_600.0
    sync_seconds: Annotated[
        float, Meta(description="Seconds between two syncs with durability interval: what a power cut may cost.")
    ] = 1.0
    stop_seconds: Annotated[
        float, Meta(description="Seconds for which a recorder that stops waits until the disk has taken what is left.")
    ] = 30.0
