"""Reads the blocks of a segment, checks them, and finds the next whole one after damage.

Anybody may have written a segment: its CRC shows damage, not malice. So each number in a block is checked against its
bounds before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple
from zlib import crc32

from ..errors import CorruptJournalError
from .layout import (
    BLOCK_HEADER,
    BLOCK_HEADER_BYTES,
    ENDS_MAGIC,
    GAPS_MAGIC,
    KINDS,
    MESSAGES_MAGIC,
    MOST_ROWS,
    NAME_COUNT,
    SEGMENT_HEADER_BYTES,
    SEQUENCE,
    Block,
    Buffer,
    Column,
    End,
    Extent,
    Skipped,
    block_length,
    numbers,
    padded,
)

__all__ = ["decode_block", "read_blocks", "sound_blocks", "walk"]


class _Header(NamedTuple):
    """A block's header, whose numbers agree with each other."""

    magic: bytes
    length: int
    crc: int
    rows: int
    names: int
    names_bytes: int
    payload_bytes: int


def _peek(data: Buffer, at: int, left: int, position: int) -> _Header:
    """The header of the block at ``data[at]``, with its count of names; ``left`` bytes of the segment are left there.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`, also where the block is cut.
    """
    if left < BLOCK_HEADER_BYTES + NAME_COUNT.size:
        raise CorruptJournalError("a block is cut", position)
    magic, length, crc, rows, names_bytes, payload_bytes = BLOCK_HEADER.unpack_from(data, at)
    (names,) = NAME_COUNT.unpack_from(data, at + BLOCK_HEADER_BYTES)
    if magic == ENDS_MAGIC:
        names, least = 0, BLOCK_HEADER_BYTES + SEQUENCE.size
        expected = max(least, min(length, least + SEQUENCE.size) & ~7)  # one number, or two
        sound = rows == names_bytes == payload_bytes == 0
    else:
        expected = block_length(rows, names, names_bytes, payload_bytes)
        sound = magic in KINDS and rows > 0
    if not sound or length != expected:
        raise CorruptJournalError("the header of a block is damaged", position)
    if length > left:
        raise CorruptJournalError("a block is cut", position)
    return _Header(magic, length, crc, rows, names, names_bytes, payload_bytes)


def decode_block(data: Buffer, at: int, salt: int, position: int | None = None) -> Block | End:
    """The block at ``data[at]``, as views into ``data``, or the end mark that stands there.

    ``position`` is its place in the segment, where that is not ``at``. Raises
    :exc:`~sbuslib.errors.CorruptJournalError` when a byte is not as it was written.
    """
    position = at if position is None else position
    header = _peek(data, at, len(data) - at, position)
    rows, end = header.rows, at + header.length
    view = memoryview(data)
    packed = BLOCK_HEADER.pack(header.magic, header.length, 0, rows, header.names_bytes, header.payload_bytes)
    if crc32(view[at + BLOCK_HEADER_BYTES : end], crc32(packed, salt)) != header.crc:
        raise CorruptJournalError("a block is damaged", position)
    if header.magic == ENDS_MAGIC:
        (sequence,) = SEQUENCE.unpack_from(data, at + BLOCK_HEADER_BYTES)
        (next_sequence,) = SEQUENCE.unpack_from(data, end - SEQUENCE.size)
        if not 0 < sequence <= next_sequence <= MOST_ROWS:
            raise CorruptJournalError("an end mark says what no recorder writes", position)
        return End(position, header.length, sequence, next_sequence)
    return _block_of(header, view, at + BLOCK_HEADER_BYTES + NAME_COUNT.size, position)


def _block_of(header: _Header, view: memoryview, at: int, position: int) -> Block:
    """The block whose columns begin at ``view[at]``; its CRC is right."""
    rows = header.rows
    wide: list[Column] = []
    for _ in range(5):
        wide.append(numbers(view[at : at + 8 * rows], "q"))
        at += 8 * rows
    narrow: list[Column] = []
    for count in (rows, rows, rows + 1, header.names + 1):
        narrow.append(numbers(view[at : at + 4 * count], "i"))
        at += padded(4 * count)
    names = view[at : at + header.names_bytes]
    at += padded(header.names_bytes)
    payloads = view[at : at + header.payload_bytes]
    if not 0 < wide[1][0] <= wide[1][-1] <= MOST_ROWS:
        raise CorruptJournalError("a block numbers its rows as no recorder does", position)
    return Block._make((position, header.length, KINDS[header.magic], rows, *wide, *narrow, names, payloads))


def walk(read_at: Callable[[int, int], Buffer], size: int, at: int = SEGMENT_HEADER_BYTES) -> Iterator[Extent]:
    """The extents of the blocks between ``at`` and ``size`` in a segment, up to the first that is cut.

    It reads only the headers, with ``read_at(position, length)``, so the file need not be local. A recorder appends
    blocks in order, so a block that it has not finished is always the last. Damage inside a block is found when the
    block is read, by :func:`decode_block`.
    """
    length = BLOCK_HEADER_BYTES + NAME_COUNT.size
    while at + length <= size:
        try:
            header = _peek(read_at(at, length), 0, size - at, at)
        except CorruptJournalError:
            return
        extent = Extent(at, header.length, None if header.magic == ENDS_MAGIC else header.rows)
        yield extent
        at = extent.end


def _find(data: bytes, at: int, salt: int, least: int) -> int | None:
    """The place of the next whole block from ``data[at]`` on whose rows are numbered ``least`` or more."""
    candidates: list[int] = []
    for magic in (MESSAGES_MAGIC, GAPS_MAGIC, ENDS_MAGIC):
        found = data.find(magic, at)
        while found >= 0:
            if found % 8 == 0:
                candidates.append(found)
            found = data.find(magic, found + 1)
    for found in sorted(candidates):
        try:
            block = decode_block(data, found, salt)
        except CorruptJournalError:
            continue
        if _first(block) >= least:
            return found
    return None


def _first(block: Block | End) -> int:
    return block.sequence if isinstance(block, End) else int(block.sequences[0])


def sound_blocks(data: Buffer, salt: int, expected: int | None, base: int) -> Iterator[Block]:
    """The blocks at the start of ``data``, up to a cut, damage or the end mark.

    The arguments are those of :func:`read_blocks`, which also tells what comes after them.
    """
    at = 0
    while True:
        try:
            block = decode_block(data, at, salt, base + at)
        except CorruptJournalError:
            return
        if isinstance(block, End) or (expected is not None and block.sequences[0] != expected):
            return
        yield block
        at += block.length
        expected = block.next_sequence


def read_blocks(
    data: Buffer,
    salt: int,
    expected: int | None,
    following: int | None = None,
    *,
    base: int = 0,
    on_corrupt: Literal["error", "skip"] = "error",
    growing: bool = False,
) -> Iterator[Block | End | Skipped]:
    """The blocks from a place in a segment to its end, in order.

    ``data`` begins with a block. That stands at ``base`` in its segment, and its first row should be numbered
    ``expected``; the next segment begins with the row numbered ``following``. Both may be ``None``: not known. With
    ``growing``, a recorder may be writing at the end of ``data``: the end mark may be missing, and bytes after the last
    whole block are ignored.

    Raises :exc:`~sbuslib.errors.CorruptJournalError` for damage, and for rows that are missing. With
    ``on_corrupt="skip"`` it yields a :class:`Skipped` instead, and goes on at the next whole block.
    """
    at, size, skip, ended = 0, len(data), on_corrupt == "skip", False
    while at < size and not ended:
        position = base + at
        try:
            block = _expected_block(data, at, salt, position, expected)
        except CorruptJournalError as error:
            found = _find(bytes(data), at, salt, expected if expected is not None else 0)
            if found is None and growing:
                return
            if not skip:
                raise
            if found is None:
                rows = _rows_at(bytes(data), at) if expected is None or following is None else following - expected
                yield Skipped(position, size - at, rows, error.reason)
                return
            first = _first(decode_block(data, found, salt))
            yield Skipped(position, found - at, None if expected is None else first - expected, error.reason)
            at, expected = found, first
            continue
        yield block
        at += block.length
        expected = block.next_sequence
        ended = isinstance(block, End)
    reason = _wrong_at_end(at < size, ended, expected, following)
    if not reason or (growing and not ended):
        return
    if not skip:
        raise CorruptJournalError(reason, base + at)
    rows = (0 if ended else None) if expected is None or following is None else following - expected
    yield Skipped(base + at, size - at, rows, reason)


def _expected_block(data: Buffer, at: int, salt: int, position: int, expected: int | None) -> Block | End:
    """The block at ``data[at]``. Raises :exc:`~sbuslib.errors.CorruptJournalError`, also for a wrong first row."""
    block = decode_block(data, at, salt, position)
    first = _first(block)
    if expected is not None and first != expected:
        reason = f"rows {expected} to {first - 1} are missing" if first > expected else "rows come twice"
        raise CorruptJournalError(reason, position)
    return block


def _wrong_at_end(has_more: bool, ended: bool, expected: int | None, following: int | None) -> str:
    """What is wrong after the last block of a segment, in words; empty if nothing is.

    No block is skipped for it: the :class:`Skipped` has a length of 0, or of all bytes that are left.
    """
    if has_more:
        return "bytes after the end mark"
    if not ended:
        return "the segment has no end mark: its recorder is at work, or was killed and did not start again"
    if expected is not None and following is not None and following != expected:
        return f"rows {expected} to {following - 1} are missing between this segment and the next"
    return ""


def _rows_at(data: bytes, at: int) -> int | None:
    """How many rows the headers in the damaged rest of a segment tell; ``None`` where a header is damaged, too."""
    rows = 0
    while at < len(data):
        try:
            header = _peek(data, at, len(data) - at, at)
        except CorruptJournalError:
            return None
        rows += header.rows
        at += header.length
    return rows
