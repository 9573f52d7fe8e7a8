"""Repairs the end of a journal after a crash, before a recorder goes on. The caller holds the lock."""

from __future__ import annotations

import logging
import os
import secrets

from ..errors import CorruptJournalError
from .directory import Segment, list_segments, read_header
from .encoding import encode_end
from .layout import SEGMENT_HEADER_BYTES, End, SegmentHeader, Skipped
from .reading import decode_block, read_blocks

__all__ = ["recover"]

logger = logging.getLogger("sbuslib")


def recover(directory: str) -> tuple[str, int]:
    """Repair the end of a journal, after any end of its recorder. The caller holds the lock.

    Returns the journal's identity, which is new for an empty directory, and the number of its next row. What follows
    the last whole block is cut off, with a line in the log; the segment gets its end mark and is synced. Damage
    before that is left, so that readers find it. Raises
    :exc:`~sbuslib.errors.CorruptJournalError` and :exc:`OSError`.
    """
    for segment in reversed(list_segments(directory)):
        if _is_empty(segment):
            logger.warning("%s: removed, a crash left %d bytes and no row", segment.path, segment.size)
            os.unlink(segment.path)
            continue
        header = read_header(segment.path)
        next_sequence = _end_mark(segment, header)
        if next_sequence is None:
            next_sequence = _mend(segment.path, header)
        if next_sequence == header.first_sequence:
            os.unlink(segment.path)  # the next segment needs this name
        return header.journal, next_sequence
    return secrets.token_hex(8), 1


def _is_empty(segment: Segment) -> bool:
    """Whether a segment has no header: it is cut, or a power cut left zeros in its place."""
    with open(segment.path, "rb") as file:
        head = file.read(SEGMENT_HEADER_BYTES)
        return len(head) < SEGMENT_HEADER_BYTES or not (any(head) or any(file.read()))


def _end_mark(segment: Segment, header: SegmentHeader) -> int | None:
    """The number after a segment's last row, by the mark at its end; ``None`` where there is none."""
    size = len(encode_end(header.salt, 0))
    with open(segment.path, "rb") as file:
        file.seek(max(SEGMENT_HEADER_BYTES, segment.size - size))
        try:
            mark = decode_block(file.read(), 0, header.salt)
        except CorruptJournalError:
            return None
    return mark.next_sequence if isinstance(mark, End) else None


def _mend(path: str, header: SegmentHeader) -> int:
    """Repair the last segment, and write its end mark. Returns the number of the next row."""
    with open(path, "rb") as file:
        data = file.read()
    end, next_sequence, ended = SEGMENT_HEADER_BYTES, header.first_sequence, False
    blocks = memoryview(data)[end:]
    for block in read_blocks(blocks, header.salt, next_sequence, base=end, on_corrupt="skip", growing=True):
        if isinstance(block, Skipped):
            if not ended:
                logger.warning("%s: %d damaged bytes at %d", path, block.length, block.position)
            continue
        end, next_sequence, ended = block.end, block.next_sequence, isinstance(block, End)
    if ended and end == len(data):
        return next_sequence
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if end < len(data):
            logger.warning("%s: cut %d bytes at %d, where a crash ended the writing", path, len(data) - end, end)
            os.ftruncate(descriptor, end)
        if not ended:
            os.pwrite(descriptor, encode_end(header.salt, next_sequence), end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return next_sequence
