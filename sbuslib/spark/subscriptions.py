"""What each pattern would have received, which patterns match nothing, and which are covered by others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..covering import covers
from ..errors import KeyFormatError, UsageError
from ..matcher import SEPARATOR, Subscriptions, matches
from ..wire.packets import check_key
from .matching import each_match

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["coverage", "read_patterns", "received"]


def read_patterns(path: str) -> list[bytes]:
    """The patterns in a file, one a line, in order and without duplicates.

    Empty lines and lines that begin with ``#`` are left out. The empty pattern, which matches everything, is written
    ``""``. Raises :exc:`~sbuslib.errors.UsageError`, with the number of the line, for a wrong pattern, and
    :exc:`OSError`.
    """
    found: dict[bytes, None] = {}
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        pattern = b"" if line == b'""' else line
        if line and not line.startswith(b"#"):
            try:
                check_key(pattern, "pattern")
            except KeyFormatError as error:
                raise UsageError(f"{path}, line {number}: {error}") from None
            found[pattern] = None
    return list(found)


def received(keys: DataFrame, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> DataFrame:
    """``pattern``, ``messages``, ``bytes`` and ``keys`` that each pattern would have received, the busiest first.

    Every pattern has a row, with zeros where nothing matched it.

    :param keys: what :func:`~sbuslib.spark.matching.by_key` gives.
    :param patterns: distinct patterns.
    """
    from pyspark.sql import functions as f

    # A row of zeros goes to every pattern, so patterns that match nothing have a row without a join.
    zeros = keys.sparkSession.sql("SELECT CAST(NULL AS BINARY) AS key, 0L AS messages, 0L AS bytes")
    counted = keys.select("key", "messages", "bytes").unionAll(zeros)
    matched = each_match(counted, patterns, separator)
    sums = ("sum(messages) AS messages", "sum(bytes) AS bytes", "count_if(messages > 0) AS keys")
    # One row for each pattern is left. Sorting them in one task is cheaper than a shuffle.
    whole = matched.groupBy("pattern").agg(*map(f.expr, sums)).coalesce(1)
    return whole.sortWithinPartitions(f.desc("messages"), f.desc("bytes"), "pattern")


def _witness(pattern: bytes, separator: bytes) -> bytes:
    """A key that ``pattern`` matches. Every pattern that covers ``pattern`` matches it, too, so the index finds it."""
    segments = pattern.split(separator)
    below = not segments[-1]
    if below:
        segments.pop()
    key = [
        segment if not segment.endswith(b"*") else segment[:-1] + b"\1"  # only a star at the end is a wildcard
        for segment in segments
    ]
    return separator.join([*key, b"\1"] if below else key)


def coverage(patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> list[list[bytes]]:
    """For each pattern, the others that match every key that it matches, in order.

    A client that holds both needs only the one that covers the other. The empty pattern is left out: it covers all.
    """
    index: Subscriptions[bytes] = Subscriptions(separator)
    for pattern in filter(None, patterns):
        index.add(pattern, pattern)
    found = []
    for pattern in patterns:
        witness = _witness(pattern, separator)
        assert matches(pattern, witness, separator), pattern
        others = index.subscribers(witness)
        found.append(sorted(other for other in others if other != pattern and covers(other, pattern, separator)))
    return found
