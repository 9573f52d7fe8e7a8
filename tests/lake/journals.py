"""Journals for tests, encoded directly, so that every byte is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sbuslib.segments.encoding import encode_block, encode_end, encode_gaps
from sbuslib.segments.layout import NULL, SegmentHeader, pack, segment_name

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
    names = list(
        dict.fromkeys([row.key for row in messages] + [row.sender for row in messages if row.sender is not None])
    )
    numbers = {name: number for number, name in enumerate(names)}
    return encode_block(
        SALT,
        first,
        pack("q", [row.time_ns for row in messages]),
        pack("q", [row.ids[0] for row in messages]),
        pack("q", [row.ids[1] for row in messages]),
        pack("q", [row.ids[2] for row in messages]),
        pack("i", [numbers[row.key] for row in messages]),
        pack("i", [NULL if row.sender is None else numbers[row.sender] for row in messages]),
        names,
        [row.payload for row in messages],
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
    data = SegmentHeader(journal, hub, b"/", START_NS, first, SALT).encode()
    for block in blocks:
        if isinstance(block, tuple):
            data += encode_gaps(SALT, first, [block])
            first += 1
        else:
            data += message_block(first, block)
            first += len(block)
    if sealed:
        data += encode_end(SALT, first)
    path = directory / segment_name(first_of(data))
    path.write_bytes(data)
    return path


def first_of(data: bytes) -> int:
    """The number of the first row of a segment."""
    return SegmentHeader.decode(data).first_sequence
