"""Selection of recorded rows by time and key, a value that every reader takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ...errors import UsageError
from ...matcher import matches

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Selection:
    """Selection of rows. A selection by key keeps all gap rows: the lost messages may have had a wanted key.

    ``start_ns`` and ``end_ns`` are nanoseconds since the epoch; ``end_ns`` is not included. A key has to match one of
    ``patterns``; ``None``: any key does.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    patterns: tuple[bytes, ...] | None = None

    @property
    def by_key(self) -> bool:
        """Whether only certain keys are wanted."""
        return self.patterns is not None and b"" not in self.patterns

    @property
    def by_time(self) -> bool:
        """Whether only certain times are wanted."""
        return self.start_ns is not None or self.end_ns is not None

    def wants(self, key: bytes, separator: bytes) -> bool:
        """Whether messages under this key are wanted."""
        return self.patterns is None or any(matches(pattern, key, separator) for pattern in self.patterns)

    def has(self, time_ns: int) -> bool:
        """Whether rows of this time are wanted."""
        return self.overlaps(time_ns, time_ns + 1)

    def overlaps(self, start_ns: int, end_ns: int) -> bool:
        """Whether a row from ``start_ns`` to before ``end_ns`` may be wanted."""
        return (self.end_ns is None or start_ns < self.end_ns) and (self.start_ns is None or end_ns > self.start_ns)

    def covers(self, start_ns: int, end_ns: int) -> bool:
        """Whether all rows from ``start_ns`` to before ``end_ns`` are wanted, as far as the time goes."""
        return (self.start_ns is None or start_ns >= self.start_ns) and (self.end_ns is None or end_ns <= self.end_ns)

    def key_range(self) -> tuple[bytes, bytes | None]:
        """Inclusive lower and exclusive upper bound of wanted keys; ``None``: no upper bound."""
        low = _common([pattern.partition(b"*")[0] for pattern in self.patterns or (b"",)])
        stem = low.rstrip(b"\xff")
        return low, stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _common(stems: list[bytes]) -> bytes:
    """Longest common prefix."""
    low, high = min(stems), max(stems)
    same = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]


EVERYTHING = Selection()


def nanoseconds(name: str, moment: datetime | str | int | None) -> int | None:
    """Convert nanoseconds since the epoch, a time, or ISO 8601 (in UTC unless it has an offset) to nanoseconds.

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
