"""Journals for tests, encoded directly, so that every byte is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from segments.journals import block

from sbuslib.segments.encoding import encode_end, encode_gaps
from sbuslib.segments.layout import Record, SegmentHeader, segment_name

__all__ = ["SALT", "START_NS", "Row", "message_block", "rows", "segment"]

SALT = 0x5EED
START_NS = 1_750_000_000_000_000_000  # 2025-06-15T15:06:40Z
SENDER = b"!/cred/100/1000/4711"


class Row(NamedTuple):
    """A message in a test's journal."""

    key: bytes
    payload: bytes
    time_ns: int
    sender: bytes | None = SENDER
    ids: tuple[int, int, int] = (100, 1000, 4711)


def rows(count: int, first: int = 1, keys: int = 7) -> list[Row]:
    """``count`` messages, one a second. Their payloads are their numbers, from ``first`` on."""
    return [
        Row(b"room/%d/temp" % (number % keys), b"%d" % number, START_NS + number * 1_000_000_000)
        for number in range(first, first + count)
    ]


def message_block(first: int, messages: Sequence[Row]) -> bytes | bytearray:
    """A block of messages numbered from ``first`` on."""
    numbered = enumerate(messages, first)
    return block(
        [Record(row.time_ns, n, "message", row.key, row.payload, row.sender, *row.ids) for n, row in numbered], SALT
    )


def segment(
    directory: Path,
    first: int,
    *blocks: Sequence[Row] | tuple[int, str, int | None],
    sealed: bool = True,
    hub: str = "hub-1",
    journal: str = "0123456789abcdef",
) -> Path:
    """Write a segment whose first row is numbered ``first``: each block a list of messages, or one gap.

    A gap is a time, a cause and a count, ``None`` where nobody knows it.
    """
    directory.mkdir(exist_ok=True)
    path = directory / segment_name(first)
    data = SegmentHeader(journal, hub, b"/", START_NS, first, SALT).encode()
    for one in blocks:
        if isinstance(one, tuple):
            data += encode_gaps(SALT, first, [one])
            first += 1
        else:
            data += message_block(first, one)
            first += len(one)
    if sealed:
        data += encode_end(SALT, first)
    path.write_bytes(data)
    return path
