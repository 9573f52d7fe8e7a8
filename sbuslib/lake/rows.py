"""The columns of what was recorded, and which of the rows are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow

from ..errors import UsageError
from ..matcher import matches

__all__ = ["SCHEMA", "Filter", "nanoseconds"]

SCHEMA = pyarrow.schema(
    [
        ("time", pyarrow.timestamp("us", tz="UTC")),
        ("time_ns", pyarrow.int64()),
        ("journal", pyarrow.string()),
        ("hub", pyarrow.string()),
        ("sequence", pyarrow.int64()),
        ("kind", pyarrow.string()),
        ("key", pyarrow.binary()),
        ("payload", pyarrow.binary()),
        ("size", pyarrow.int64()),
        ("sender", pyarrow.binary()),
        ("gid", pyarrow.int64()),
        ("uid", pyarrow.int64()),
        ("pid", pyarrow.int64()),
        ("lost", pyarrow.int64()),
        ("cause", pyarrow.string()),
    ]
)
"""All columns of the data source, in Arrow's types."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def nanoseconds(name: str, moment: datetime | str | int | None) -> int | None:
    """A time as nanoseconds since the epoch: these, or a time or ISO 8601, which are in UTC unless they have an offset.

    Raises :exc:`~sbuslib.errors.UsageError`.
    """
    if moment is None or isinstance(moment, int):
        return moment
    try:
        if isinstance(moment, str):
            if moment.isascii() and moment.isdigit():
                return int(moment)
            moment = datetime.fromisoformat(moment)
        return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1) * 1000
    except (ValueError, AttributeError):
        raise UsageError(
            f"{name} is a time such as 2026-03-01T12:00:00+01:00, or nanoseconds since 1970, not {moment!r}"
        ) from None


@dataclass(frozen=True)
class Filter:
    """Which rows are wanted. A filter by key keeps all gap rows: the lost messages may have had a wanted key.

    ``start_ns`` and ``end_ns`` are nanoseconds since the epoch; ``end_ns`` is not included.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    key_prefix: bytes | None = None
    pattern: bytes | None = None

    @property
    def by_key(self) -> bool:
        """Whether only certain keys are wanted."""
        return self.key_prefix is not None or self.pattern is not None

    @property
    def by_time(self) -> bool:
        """Whether only certain times are wanted."""
        return self.start_ns is not None or self.end_ns is not None

    def wants(self, key: bytes, separator: bytes) -> bool:
        """Whether messages under this key are wanted."""
        prefix, pattern = self.key_prefix, self.pattern
        return (prefix is None or key.startswith(prefix)) and (pattern is None or matches(pattern, key, separator))

    def key_range(self) -> tuple[bytes, bytes | None]:
        """Bytes that no wanted key is less than, and bytes that all are less than, if there are such."""
        low = max(self.key_prefix or b"", (self.pattern or b"").partition(b"*")[0])
        stem = low.rstrip(b"\xff")
        return low, stem[:-1] + bytes([stem[-1] + 1]) if stem else None
