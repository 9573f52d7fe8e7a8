"""Encoder of the blocks of a segment, a column at a time. Their layout is in :mod:`.layout`."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal
from zlib import crc32

from .layout import (
    BLOCK_HEADER,
    BLOCK_HEADER_BYTES,
    ENDS_MAGIC,
    GAP,
    GAPS_MAGIC,
    MESSAGE,
    MESSAGES_MAGIC,
    NAME_COUNT,
    NARROW,
    NULL,
    SEQUENCE,
    WIDE,
    Buffer,
    block_length,
    pack,
)

_PADDING = [bytes(n) for n in (0, 7, 6, 5, 4, 3, 2, 1)]


@lru_cache(32)
def _steps(count: int, kind: Literal["i", "q"]) -> tuple[int, int]:
    """Make two columns of ``count`` numbers, each as one big number: 0, 1, 2 and so on, and only ones."""
    steps, ones = pack(kind, range(count)), pack(kind, [1]) * count
    return int.from_bytes(steps, "little"), int.from_bytes(ones, "little")


def _ramp(start: int, step: int, count: int, kind: Literal["i", "q"]) -> bytes:
    """Make a column ``start``, ``start + step``, … of numbers that are not negative, with two operations."""
    most = (count + 255) & ~255  # so that few sizes are cached
    steps, ones = _steps(most, kind)
    size = struct.calcsize(kind)
    return (steps * step + ones * start).to_bytes(most * size + 8, "little")[: count * size]


def widened(numbers: bytes) -> bytearray:
    """Widen a column of bytes to numbers of 4 bytes."""
    column = bytearray(4 * len(numbers))
    column[::4] = numbers
    return column


def _offsets(sizes: bytes) -> tuple[bytes, int]:
    """Make the column of offsets of adjoining parts, with the end of the last part. Also returns that end.

    ``sizes`` is a column of the parts' lengths, numbers of 4 bytes.
    """
    count = len(sizes) // 4
    if sizes == sizes[:4] * count:
        size = int.from_bytes(sizes[:4], "little")
        return _ramp(0, size, count + 1, "i"), size * count
    offsets = [*accumulate(struct.unpack(f"<{count}i", sizes), initial=0)]
    return pack("i", offsets), offsets[-1]


def encode_block(
    salt: int,
    first_sequence: int,
    columns: Mapping[str, Buffer],
    names: Sequence[bytes],
    payloads: Sequence[Buffer],
    sizes: bytes | None = None,
    kind: Literal["message", "gap"] = MESSAGE,
) -> bytearray:
    """Encode a block of rows that are numbered from ``first_sequence`` on.

    The ``columns``, as :func:`pack` makes them, are those of :data:`.layout.WIDE` but the numbers of the rows, of type
    ``q``, and those of :data:`.layout.NARROW`, which are indices of ``names``, of type ``i``. ``sizes``, of type ``i``,
    has the length of each payload, where several lie together in one of ``payloads``.
    """
    # 1. Its length.
    if sizes is None:
        sizes = pack("i", [*map(len, payloads)])
    rows = len(sizes) // 4
    payload_offsets, payload_bytes = _offsets(sizes)
    name_offsets = [*accumulate(map(len, names), initial=0)]
    names_bytes = name_offsets[-1]
    length = block_length(rows, len(names), names_bytes, payload_bytes)

    # 2. The columns, each padded to 8 bytes, in the order of the page on the format.
    parts: list[Buffer] = [bytes(BLOCK_HEADER_BYTES), NAME_COUNT.pack(len(names))]
    columns = {**columns, "sequences": _ramp(first_sequence, 1, rows, "q")}
    parts += map(columns.__getitem__, WIDE)
    for column in (*map(columns.__getitem__, NARROW), payload_offsets, pack("i", name_offsets)):
        parts += (column, _PADDING[len(column) & 7])
    parts += names
    parts.append(_PADDING[names_bytes & 7])
    parts += payloads
    parts.append(_PADDING[payload_bytes & 7])

    # 3. The header, with the CRC of all.
    magic = MESSAGES_MAGIC if kind == MESSAGE else GAPS_MAGIC
    return _sealed(magic, salt, length, rows, names_bytes, payload_bytes, parts)


def encode_gaps(salt: int, first_sequence: int, gaps: Sequence[tuple[int, str, int | None]]) -> bytearray:
    """Encode a block of gap rows.

    Each has a time in nanoseconds, a cause, and the number of lost messages, if known.
    """
    causes = list(dict.fromkeys(cause for _, cause, _ in gaps))
    nothing = pack("q", [NULL]) * len(gaps)

    # Causes are stored as keys, and counts as payloads.
    return encode_block(
        salt,
        first_sequence,
        dict.fromkeys(WIDE, nothing)
        | {
            "times": pack("q", [time for time, _, _ in gaps]),
            "keys": pack("i", [causes.index(cause) for _, cause, _ in gaps]),
            "senders": pack("i", [NULL]) * len(gaps),
        },
        [cause.encode() for cause in causes],
        [SEQUENCE.pack(NULL if lost is None else lost) for _, _, lost in gaps],
        kind=GAP,
    )


def encode_end(salt: int, sequence: int, next_sequence: int | None = None) -> bytearray:
    """Encode the end mark of a segment that will not grow; ``sequence`` is the number after its last row.

    The next segment begins with ``next_sequence``, where that is another number.
    """
    numbers = [sequence] if next_sequence is None else [sequence, next_sequence]
    length = BLOCK_HEADER_BYTES + SEQUENCE.size * len(numbers)
    return _sealed(ENDS_MAGIC, salt, length, 0, 0, 0, [bytes(BLOCK_HEADER_BYTES), pack("q", numbers)])


def _sealed(
    magic: bytes, salt: int, length: int, rows: int, names_bytes: int, payload_bytes: int, parts: Sequence[Buffer]
) -> bytearray:
    """Join the parts of a block, and write the header into the room at its start."""
    block = bytearray().join(parts)
    assert len(block) == length
    crc = crc32(BLOCK_HEADER.pack(magic, length, 0, rows, names_bytes, payload_bytes), salt)
    with memoryview(block) as view:
        crc = crc32(view[BLOCK_HEADER_BYTES:], crc)
    BLOCK_HEADER.pack_into(block, 0, magic, length, crc, rows, names_bytes, payload_bytes)
    return block
