"""Decoder of journal segments: checks and decodes their blocks of rows, and finds the next whole block after damage.

A segment may come from an attacker: its CRCs show damage, not malice. So each number in a block is checked against
its bounds before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Literal, NamedTuple, TypeAlias, cast
from zlib import crc32

from ...errors import CorruptJournalError
from .layout import (
    BLOCK_HEADER,
    BLOCK_HEADER_BYTES,
    ENDS_MAGIC,
    GAPS_MAGIC,
    KINDS,
    MESSAGES_MAGIC,
    MOST_ROWS,
    NAME_COUNT,
    NARROW,
    SEGMENT_HEADER_BYTES,
    SEQUENCE,
    WIDE,
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

OnCorrupt: TypeAlias = Literal["error", "skip"]

ReadAt: TypeAlias = Callable[[int, int], Buffer]
"""``read_at(position, length)`` reads a file, like ``os.pread``; it returns fewer bytes at the end."""

WINDOW_BYTES: Final = 1_048_576
"""Bytes of a segment that are read at once: they are still in the CPU's cache when their CRC is computed."""


class _Header(NamedTuple):
    """A block's header whose numbers are consistent."""

    magic: bytes
    length: int
    crc: int
    rows: int
    names: int
    names_bytes: int
    payload_bytes: int


def _peek(data: Buffer, at: int, remaining: int, position: int) -> _Header:
    """Read the header of the block at ``data[at]``, with its count of names; ``remaining`` is the rest of the segment.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`, also where the block is cut.
    """
    if remaining < BLOCK_HEADER_BYTES + NAME_COUNT.size:
        raise CorruptJournalError("a block is cut", position)
    magic, length, crc, rows, names_bytes, payload_bytes = BLOCK_HEADER.unpack_from(data, at)
    (names,) = NAME_COUNT.unpack_from(data, at + BLOCK_HEADER_BYTES)

    # The length follows from the sizes of the columns. The header's own length is only compared with it.
    if magic == ENDS_MAGIC:
        names, least = 0, BLOCK_HEADER_BYTES + SEQUENCE.size
        expected = max(least, min(length, least + SEQUENCE.size) & ~7)  # one number, or two
        sound = rows == names_bytes == payload_bytes == 0
    else:
        expected = block_length(rows, names, names_bytes, payload_bytes)
        sound = magic in KINDS and rows > 0

    if not sound or length != expected:
        raise CorruptJournalError("the header of a block is damaged", position)
    if length > remaining:
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
            raise CorruptJournalError("an end mark has a value that no recorder writes", position)
        return End(position, header.length, sequence, next_sequence)
    return _block_of(header, view, at + BLOCK_HEADER_BYTES + NAME_COUNT.size, position)


def _block_of(header: _Header, view: memoryview, at: int, position: int) -> Block:
    """The block whose columns begin at ``view[at]``; its CRC is right."""
    # 1. The columns of 8 bytes, and those of 4 bytes with padding.
    rows = header.rows
    columns: dict[str, Column] = {}
    for name in WIDE:
        columns[name] = numbers(view[at : at + 8 * rows], "q")
        at += 8 * rows
    counts = dict.fromkeys(NARROW, rows) | {"payload_offsets": rows + 1, "name_offsets": header.names + 1}
    for name, count in counts.items():
        columns[name] = numbers(view[at : at + 4 * count], "i")
        at += padded(4 * count)

    # 2. The bytes of names and payloads, to which the offsets refer.
    names = view[at : at + header.names_bytes]
    at += padded(header.names_bytes)
    payloads = view[at : at + header.payload_bytes]
    sequences = columns["sequences"]
    if not 0 < sequences[0] <= sequences[-1] <= MOST_ROWS:
        raise CorruptJournalError("a block has row numbers that no recorder writes", position)
    return Block(position, header.length, KINDS[header.magic], rows, names=names, payloads=payloads, **columns)


def walk(read_at: ReadAt, size: int, first: int, at: int = SEGMENT_HEADER_BYTES) -> Iterator[Extent]:
    """The extents of the blocks of a segment, from ``at`` on, where row ``first`` is, up to the first incomplete block.

    It reads only the headers. A recorder appends blocks in order, so a block that it has not finished is always the
    last. Damage inside a block is found when the block is read, by :func:`decode_block`.
    """
    length = BLOCK_HEADER_BYTES + NAME_COUNT.size
    while at + length <= size:
        try:
            header = _peek(read_at(at, length), 0, size - at, at)
        except CorruptJournalError:
            return
        extent = Extent(at, header.length, None if header.magic == ENDS_MAGIC else header.rows, first)
        yield extent
        at, first = extent.end, first + header.rows


def is_empty(read_at: ReadAt, size: int) -> bool:
    """Whether a segment has no header: a crash cut it, or left zeros in its place."""
    head = bytes(read_at(0, SEGMENT_HEADER_BYTES))
    return len(head) < SEGMENT_HEADER_BYTES or not (any(head) or any(bytes(read_at(0, size))))


def end_mark(read_at: ReadAt, size: int, salt: int) -> End | None:
    """The mark at the end of a segment of ``size`` bytes; ``None`` where there is none."""
    for count in (1, 2):
        length = BLOCK_HEADER_BYTES + count * SEQUENCE.size
        at = size - length
        if at >= SEGMENT_HEADER_BYTES:
            with suppress(CorruptJournalError):
                mark = decode_block(read_at(at, length), 0, salt, at)
                if isinstance(mark, End) and mark.length == length:
                    return mark
    return None


def _find(data: bytes, at: int, salt: int, least: int) -> int | None:
    """Find the next whole block from ``data[at]`` on whose rows are numbered ``least`` or more."""
    # 1. All magics; payloads may contain them, too.
    candidates: list[int] = []
    for magic in (MESSAGES_MAGIC, GAPS_MAGIC, ENDS_MAGIC):
        start = data.find(magic, at)
        while start >= 0:
            if start % 8 == 0:
                candidates.append(start)
            start = data.find(magic, start + 1)

    # 2. The first of them at which a whole block begins.
    for start in sorted(candidates):
        try:
            block = decode_block(data, start, salt)
        except CorruptJournalError:
            continue
        if _first(block) >= least:
            return start
    return None


def _first(block: Block | End) -> int:
    return block.sequence if isinstance(block, End) else int(block.sequences[0])


def read_segment(
    read_at: ReadAt,
    size: int,
    salt: int,
    expected: int,
    following: int | None = None,
    *,
    at: int = SEGMENT_HEADER_BYTES,
    on_corrupt: OnCorrupt = "error",
) -> Iterator[Block | End | Skipped]:
    """Yield the blocks of the first ``size`` bytes of a segment, in order, from row ``expected`` at ``at`` on.

    The next segment begins with the row numbered ``following``; ``None``: this is the last. Then a recorder may be at
    work, or was killed: the end mark may be missing, and bytes after the last whole block are ignored.

    Raises :exc:`~sbuslib.errors.CorruptJournalError` for damage, and for rows that come twice or are missing. With
    ``on_corrupt="skip"`` it yields a :class:`Skipped` instead, and goes on at the next whole block. Rows that are
    missing between the end mark and ``following`` are no damage: the caller sees them.

    Only :data:`WINDOW_BYTES` are in memory at once, unless a block is longer; after damage, all the rest.
    """
    data, base, most, skip, ended = cast("Buffer", b""), at, 0, on_corrupt == "skip", False
    while at < size and not ended:
        try:
            block = _expected_block(data, at - base, salt, at, expected)
        except CorruptJournalError as error:
            # 1. It may reach beyond the window: read one that begins here, and then one with all the rest.
            if most < size - base:
                most = WINDOW_BYTES if base < at or not most else size - at
                data, base = read_at(at, most), at
                continue
            resumed = _find(bytes(data), at - base, salt, expected)

            # 2. At the end of a journal, a recorder has not finished the block or was killed.
            if resumed is None and following is None:
                return
            if not skip:
                raise

            # 3. On with the next whole block.
            if resumed is None:
                yield Skipped(at, size - at, _between(expected, following), error.reason)
                return
            first = _first(decode_block(data, resumed, salt))
            yield Skipped(at, base + resumed - at, first - expected, error.reason)
            at, expected = base + resumed, first
            continue
        yield block
        at, expected, ended = block.end, block.next_sequence, isinstance(block, End)

    reason = _wrong_at_end(at < size, ended, expected, following)
    if reason and not skip:
        raise CorruptJournalError(reason, at)
    if reason:
        yield Skipped(at, size - at, 0 if ended else _between(expected, following), reason)


def _wrong_at_end(has_more: bool, ended: bool, expected: int, following: int | None) -> str:
    """The fault after the last block of a segment, in words; empty if there is none."""
    if not ended:
        return "" if following is None else "the segment has no end mark, and another segment comes after it"
    if following is not None and following < expected:
        return f"the next segment begins with row {following}, not {expected}"
    return "bytes after the end mark" if has_more else ""


def _between(expected: int, following: int | None) -> int | None:
    return None if following is None else max(0, following - expected)


def _expected_block(data: Buffer, at: int, salt: int, position: int, expected: int) -> Block | End:
    """Decode the block at ``data[at]``.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`, also for a wrong first row.
    """
    block = decode_block(data, at, salt, position)
    first = _first(block)
    if first != expected:
        reason = f"rows {expected} to {first - 1} are missing" if first > expected else "rows come twice"
        raise CorruptJournalError(reason, position)
    return block
