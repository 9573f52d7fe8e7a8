"""Repairs the end of a journal after a crash, before a recorder goes on. The caller holds the lock.

A segment without an end mark is what a crash leaves. What follows its last whole block is cut off. A gap row says that
messages are missing there, since those in the recorder's memory are lost in any case. Then comes the end mark.

**Row numbers are never used twice.** Readers may have seen any block that was whole. When a recorder is killed, the
kernel keeps what it wrote. When the machine crashes, blocks may be lost that a reader has seen, and whole segments with
durability ``none``. So each segment names the boot of the machine under which it was written. After another boot the
end mark leaves :data:`NUMBERS_LEFT_OUT` numbers out.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .decoding import ReadAt, end_mark, is_empty, read_blocks
from .directory import Segment, boot_id, list_segments, read_header, rename_durably
from .encoding import encode_end, encode_gaps
from .layout import SEGMENT_HEADER_BYTES, End, SegmentHeader, Skipped, segment_name

__all__ = ["CUT", "NUMBERS_LEFT_OUT", "OUTAGE", "Recovered", "recover"]

logger = logging.getLogger("sbuslib")

CUT = "cut"
"""The cause of the gap row where a crash ended a segment."""

OUTAGE = "outage"
"""The cause of the first gap row of a recorder that goes on with a journal."""

NUMBERS_LEFT_OUT = 2**32
"""More rows than a recorder writes in the minutes for which a system may keep them in memory."""


class Recovered(NamedTuple):
    """A journal that a recorder may go on with: its identity, the number of its next row, and since when it rested.

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

    # 2. The end of the last one: its mark, or what the crash left.
    last = segments[-1]
    since = os.stat(last.path).st_mtime_ns
    header = read_header(last.path)
    with _opened(last) as read_at:
        mark = end_mark(read_at, last.size, header.salt)
    if mark is None:
        next_sequence = _mend(last.path, header)
    elif empty:
        next_sequence = _bridge(directory, header, mark.next_sequence)
    else:
        next_sequence = mark.next_sequence
    return Recovered(header.journal, next_sequence, since)


@contextmanager
def _opened(segment: Segment) -> Iterator[ReadAt]:
    with open(segment.path, "rb", buffering=0) as file:
        yield lambda at, length: os.pread(file.fileno(), length, at)


def _is_empty(segment: Segment) -> bool:
    with _opened(segment) as read_at:
        return is_empty(read_at, segment.size)


def _ending(header: SegmentHeader, sequence: int, since: int) -> tuple[bytes, int]:
    """The blocks that end a segment after a crash, a gap row of this number and the mark; and the next row's number.

    After another boot, rows that somebody has read may be lost, so that their numbers must not come again.
    """
    boot = boot_id()
    next_sequence = sequence + 1 + (NUMBERS_LEFT_OUT if header.boot != boot or not any(boot) else 0)
    gap = encode_gaps(header.salt, sequence, [(since, CUT, None)])
    told = next_sequence if next_sequence != sequence + 1 else None
    return bytes(gap + encode_end(header.salt, sequence + 1, told)), next_sequence


def _mend(path: str, header: SegmentHeader) -> int:
    """Repair the last segment, and write its end. Returns the number of the next row."""
    # 1. The end of its last whole block, and of which number and time that is.
    with open(path, "rb") as file:
        data = file.read()
    since, end, sequence, ended = header.created_ns, SEGMENT_HEADER_BYTES, header.first_sequence, False
    blocks = memoryview(data)[end:]
    for block in read_blocks(blocks, header.salt, sequence, base=end, on_corrupt="skip"):
        if isinstance(block, Skipped):
            if not ended:
                logger.warning("%s: %d damaged bytes at %d", path, block.length, block.position)
            continue
        end, sequence, ended = block.end, block.next_sequence, isinstance(block, End)
        if not isinstance(block, End):
            since = int(block.times[-1])

    # 2. Cut off what comes after it, and write the gap row and the mark.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if end < len(data):
            logger.warning("%s: cut %d bytes at %d, where a crash ended the writing", path, len(data) - end, end)
            os.ftruncate(descriptor, end)
        if not ended:
            ending, sequence = _ending(header, sequence, since)
            os.pwrite(descriptor, ending, end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return sequence


def _bridge(directory: str, before: SegmentHeader, sequence: int) -> int:
    """Write a segment with only a gap row in place of one that a crash left without a header.

    Returns the number of the next row.
    """
    header = before._replace(created_ns=time.time_ns(), first_sequence=sequence, salt=secrets.randbits(32))
    ending, next_sequence = _ending(header, sequence, header.created_ns)
    path = os.path.join(directory, segment_name(sequence))
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(header.encode() + ending)
    rename_durably(f"{path}.new", path)
    return next_sequence
