"""Counts by key, level and pattern, made in Python over the distinct keys: they are far fewer than messages.

So a pattern means the same in a report as on the bus, and a key need not be text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import UsageError
from ..keys.covering import covers
from ..matcher import Pattern, Subscriptions, check_separator, matches
from ..secrets import Namespace
from .sql import Recorded


class KeyCount(NamedTuple):
    """Counts of one ``key``. ``bytes`` and ``largest`` are of payloads."""

    key: bytes
    messages: int
    bytes: int
    largest: int


def by_key(recorded: Recorded) -> list[KeyCount]:
    """Count the messages under each key, in no order."""
    rows = recorded.query(
        "SELECT key, COUNT(*), CAST(SUM(size) AS BIGINT), MAX(size) FROM sbus_recorded WHERE key IS NOT NULL "
        "GROUP BY key"
    )
    return [KeyCount(*row) for row in rows]


def by_level(counts: Iterable[KeyCount], levels: int, separator: bytes) -> list[tuple[Any, ...]]:
    """Sum up by the first segments of keys: level, prefix, messages, bytes, keys, and the largest payload.

    Level 1 is the first segment alone. A prefix of longer keys ends in the separator, so it is the pattern that matches
    these keys. Ordered by level, the busiest first.
    """
    if levels < 1:
        raise UsageError(f"levels are counted from 1, not {levels}")
    check_separator(separator)
    by_prefix: dict[tuple[int, bytes], list[int]] = {}
    for key, messages, size, largest in counts:
        at = -1
        for level in range(1, levels + 1):
            at = key.find(separator, at + 1)
            sums = by_prefix.setdefault((level, key[: at + 1] if at >= 0 else key), [0, 0, 0, 0])
            sums[0] += messages
            sums[1] += size
            sums[2] += 1
            sums[3] = max(sums[3], largest)
            if at < 0:  # the key has no more segments
                break

    rows: list[tuple[Any, ...]] = [(level, prefix, *sums) for (level, prefix), sums in by_prefix.items()]
    return sorted(rows, key=lambda row: (row[0], -row[2], -row[3], row[1]))


def by_pattern(counts: Iterable[KeyCount], patterns: Sequence[bytes], separator: bytes) -> list[tuple[Any, ...]]:
    """Sum up what each of distinct patterns would have received: pattern, messages, bytes, keys; the busiest first."""
    index = _index(patterns, separator)
    received = {pattern: [0, 0, 0] for pattern in patterns}
    is_secret = Namespace(separator).is_secret
    for key, messages, size, _ in counts:
        if not is_secret(key):
            for pattern in index.subscribers(key):
                sums = received[pattern]
                sums[0] += messages
                sums[1] += size
                sums[2] += 1
    rows: list[tuple[Any, ...]] = [(pattern, *sums) for pattern, sums in received.items()]
    return sorted(rows, key=lambda row: (-row[1], -row[2], row[0]))


def _index(patterns: Iterable[bytes], separator: bytes) -> Subscriptions[bytes]:
    index: Subscriptions[bytes] = Subscriptions(check_separator(separator))
    for pattern in patterns:
        index.add(Pattern(pattern, separator), pattern)
    return index


def coverage(patterns: Sequence[bytes], separator: bytes) -> dict[bytes, list[bytes]]:
    """Map each pattern to the others that match every key that it matches, in order.

    A client that holds both needs only the one that covers the other. The empty pattern is left out: it covers all.
    """
    index = _index(filter(None, patterns), separator)
    covering = {}
    for pattern in patterns:
        witness = _witness(pattern, separator)
        assert matches(pattern, witness, separator), pattern
        others = index.subscribers(witness)
        covering[pattern] = sorted(other for other in others if other != pattern and covers(other, pattern, separator))
    return covering


def _witness(pattern: bytes, separator: bytes) -> bytes:
    """Make a key that ``pattern`` matches. Every covering pattern matches it, too, so the index finds those."""
    segments = pattern.split(separator)
    below = not segments[-1]
    if below:
        segments.pop()
    key = [
        segment if not segment.endswith(b"*") else segment[:-1] + b"\1"  # only a star at the end is a wildcard
        for segment in segments
    ]
    return separator.join([*key, b"\1"] if below else key)
