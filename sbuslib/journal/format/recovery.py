"""Repair of a journal's end after a crash, before a recorder goes on. The caller holds the lock.

A crash leaves a segment without an end mark. The bytes after its last whole block are cut off. A gap row is added,
since the messages in the recorder's memory are lost in any case. Then comes the end mark.

**Row numbers are never used twice.** Readers may have seen any block that was whole. When a recorder is killed, the
kernel keeps all written bytes. When the machine crashes, blocks may be lost that a reader has seen, and whole segments
with durability ``none``. So each segment names the boot of the machine under which it was written. After another boot
the end mark leaves :data:`NUMBERS_LEFT_OUT` numbers out.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ...kernel.regular_files import open_regular
from .decoding import ReadAt, end_mark, is_empty, read_segment
from .directory import Segment, boot_id, list_segments, read_header
from .encoding import encode_end, encode_gaps
from .layout import SEGMENT_HEADER_BYTES, Block, SegmentHeader, Skipped

logger = logging.getLogger("sbuslib")

CUT = "cut"
"""The cause of the gap row where a crash ended a segment."""

OUTAGE = "outage"
"""The cause of the first gap row of a recorder that goes on with a journal."""

DELETED = "deleted"
"""The cause of a gap row for rows that are in no file: retention, or a user, has deleted them."""

DAMAGED = "damaged"
"""The cause of a gap row for rows that were skipped because they are damaged."""

NUMBERS_LEFT_OUT = 2**32
"""More rows than a recorder writes in the minutes for which a system may keep them in memory."""


class Recovered(NamedTuple):
    """A journal that a recorder may go on with: its identity, the number of its next row, and the time of its last.

    ``since_ns`` is nanoseconds since the epoch; ``None`` for a journal that is new.
    """

    journal: str
    next_sequence: int
    since_ns: int | None


def recover(directory: str) -> Recovered:
    """Repair the end of a journal, after any end of its recorder. The caller holds the lock.

    A crash leaves lines in the log. Damage before the end is left, so that readers find it. Raises
    :exc:`~sbuslib.errors.CorruptJournalError` and :exc:`OSError`.
    """
    # 1. Segments that the crash left without a header.
    segments = list_segments(directory)
    empty: list[Segment] = []
    while segments and _is_empty(segments[-1]):
        empty.append(segments.pop())
    for segment in empty:
        logger.warning("%s: removed, a crash left %d bytes and no row", segment.path, segment.size)
        os.unlink(segment.path)
    if not segments:
        return Recovered(secrets.token_hex(8), 1, None)

    # 2. The end of the last one: its mark, or repair it.
    last = segments[-1]
    since = os.stat(last.path).st_mtime_ns
    header = read_header(last.path)
    with _opened(last) as read_at:
        mark = end_mark(read_at, last.size, header.salt)
    next_sequence = mark.next_sequence if mark is not None and not empty else _mend(last, header)
    return Recovered(header.journal, next_sequence, since)


@contextmanager
def _opened(segment: Segment) -> Iterator[ReadAt]:
    descriptor = open_regular(segment.path)
    try:
        yield lambda at, length: os.pread(descriptor, length, at)
    finally:
        os.close(descriptor)


def _is_empty(segment: Segment) -> bool:
    with _opened(segment) as read_at:
        return is_empty(read_at, segment.size)


def _ending(header: SegmentHeader, sequence: int, since: int) -> tuple[bytes, int]:
    """Make the end of a segment after a crash, a gap row and the mark. Also returns the next row's number.

    After another boot, rows that readers have seen may be lost, so that their numbers must not come again.
    """
    boot = boot_id()
    next_sequence = sequence + 1 + (NUMBERS_LEFT_OUT if header.boot != boot or not any(boot) else 0)
    gap = encode_gaps(header.salt, sequence, [(since, CUT, None)])
    marked = next_sequence if next_sequence != sequence + 1 else None
    return bytes(gap + encode_end(header.salt, sequence + 1, marked)), next_sequence


def _mend(last: Segment, header: SegmentHeader) -> int:
    """Write the end of the last segment, also in place of a mark that it has. Returns the number of the next row."""
    # 1. The end of its last whole block, with the number and time of its last row.
    since, end, sequence, path = header.created_ns, SEGMENT_HEADER_BYTES, header.first_sequence, last.path
    with _opened(last) as read_at:
        for block in read_segment(read_at, last.size, header.salt, sequence, on_corrupt="skip"):
            if isinstance(block, Block):
                since, end, sequence = int(block.times[-1]), block.end, block.next_sequence
            elif isinstance(block, Skipped):
                logger.warning("%s: %d damaged bytes at %d", path, block.length, block.position)

    # 2. Cut off what comes after it, and write the gap row and the mark.
    ending, sequence = _ending(header, sequence, since)
    descriptor = open_regular(path, os.O_WRONLY)
    try:
        if end < last.size:
            logger.warning("%s: cut %d bytes at %d, where a crash ended the writing", path, last.size - end, end)
            os.ftruncate(descriptor, end)
        os.pwrite(descriptor, ending, end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return sequence
