"""``JournalLimits``: the numbers that an operator of a recorder may set, each with the reason for its default."""

from __future__ import annotations

from ..limits import _Numbers


class JournalLimits(_Numbers, frozen=True, kw_only=True):
    """The limits of a recorder. Immutable; derive another with ``msgspec.structs.replace``.

    Raises :exc:`~sbuslib.errors.UsageError` when a number is not positive.
    """

    block_records: int = 1_024
    """Messages that are handed to the writer at once. With so many, the cost of a block and of switching to the
    writer's thread is small."""
    block_bytes: int = 1_048_576
    """Bytes of messages that are handed to the writer at once, however few they are."""
    block_seconds: float = 0.05
    """Seconds after which fewer messages are handed over. A crash may lose those of so many seconds."""
    queued_records: int = 131_072
    """Messages that may wait for the writer before publishers are held: half a second of them."""
    queued_bytes: int = 67_108_864
    """Bytes that may wait for the writer: half a second of what a good disk takes."""
    segment_bytes: int = 67_108_864
    """Size at which a segment is closed. A task of Spark reads one in about a second."""
    segment_seconds: float = 86_400.0
    """Age at which a segment is closed, if it was not at midnight, in UTC. Retention by age is exact to this, or to a
    quarter of that age."""
    sync_seconds: float = 1.0
    """Seconds between two syncs with durability interval. A power cut may lose the rows of so many seconds."""
    stop_seconds: float = 30.0
    """Seconds for which a recorder that stops waits for the disk."""
