"""Rows of a segment as blocks of columns, with gap rows for missing or damaged rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...errors import CorruptJournalError
from ..format.decoding import OnCorrupt, decode_block, is_empty, read_segment, walk
from ..format.directory import Segment, decode_header
from ..format.encoding import encode_gaps
from ..format.layout import SEGMENT_HEADER_BYTES, Block, End, SegmentHeader, Skipped
from ..format.recovery import CUT, DAMAGED, DELETED, NUMBERS_LEFT_OUT
from .journal_files import opened
from .read_plan import RowRange

OnSkip = Callable[[str, Skipped], object]
"""Called with the path of a file and the damage in it."""


class Rows(NamedTuple):
    """Some rows in order, with the header of their journal and hub, and the path of their file."""

    header: SegmentHeader
    path: str
    block: Block


def segment_rows(
    row_range: RowRange, on_corrupt: OnCorrupt = "error", on_skip: OnSkip = lambda path, skipped: None
) -> Iterator[Rows]:
    """Yield the rows of a segment's range, or the gap row for missing rows. Raises as :func:`.blocks.blocks`.

    Raises :exc:`.journal_files.VanishedError` before the first row if the file is gone.
    """
    # 1. Rows in no file.
    if row_range.file is None:
        assert row_range.before is not None
        yield gap(row_range, row_range.before - 1, row_range.time_ns or 0, DELETED, row_range.before - row_range.first)
        return

    # 2. A segment without a header, as a crash leaves it, or with a damaged one.
    assert isinstance(row_range.file, Segment)
    with opened(row_range.file.path) as read_at:
        if row_range.following is None and is_empty(read_at, row_range.file.size):
            if row_range.is_killed:
                yield gap(row_range, row_range.first, os.stat(row_range.file.path).st_mtime_ns, CUT, None)
            return
        try:
            header = decode_header(bytes(read_at(0, SEGMENT_HEADER_BYTES)), row_range.file.path)
        except CorruptJournalError as error:
            if on_corrupt == "error":
                raise
            lost = None if row_range.before is None else row_range.before - row_range.first
            on_skip(row_range.file.path, Skipped(0, row_range.file.size, lost, error.reason))
            yield gap(row_range, (row_range.before or row_range.first + 1) - 1, 0, DAMAGED, lost)
            return

        # 3. A segment.
        try:
            yield from _Walk(row_range, header).rows(read_at, on_corrupt, on_skip)
        except CorruptJournalError as error:
            raise CorruptJournalError(error.reason, error.position, row_range.file.path) from None


def gap_block(sequence: int, time_ns: int, cause: str, lost: int | None) -> Block:
    """Make a gap row that is in no segment. A loss of ``NUMBERS_LEFT_OUT`` rows or more is an unknown number."""
    known = lost if lost is not None and lost < NUMBERS_LEFT_OUT else None
    block = decode_block(encode_gaps(0, sequence, [(time_ns, cause, known)]), 0, 0)
    assert isinstance(block, Block)
    return block._replace(position=0, length=0)


def gap(row_range: RowRange, sequence: int, time_ns: int, cause: str, lost: int | None) -> Rows:
    """Make a gap row that is in no file, and of an unknown hub."""
    header = SegmentHeader(row_range.journal or "", "", b"/", time_ns, sequence, 0)
    path = row_range.file.path if row_range.file is not None else row_range.place
    return Rows(header, path, gap_block(sequence, time_ns, cause, lost))


class _Walk:
    """Progress through one segment: the next row, and the time of the last one."""

    def __init__(self, row_range: RowRange, header: SegmentHeader) -> None:
        self._row_range = row_range
        self._header = header
        assert isinstance(row_range.file, Segment)
        self._size = row_range.file.size  # in bytes, when it was listed
        self._path = row_range.file.path
        #: The number of the next row, and the byte at which its block begins.
        self._row, self._at = row_range.known or (header.first_sequence, SEGMENT_HEADER_BYTES)
        #: The time of the row before, in nanoseconds.
        self._time_ns = header.created_ns

    def rows(self, read_at: Any, on_corrupt: OnCorrupt, on_skip: OnSkip) -> Iterator[Rows]:
        """Yield the rows, and the gaps. Raises :exc:`~sbuslib.errors.CorruptJournalError`."""
        row_range, ended = self._row_range, False

        # 1. Walk the headers to the block with the first row.
        for extent in walk(read_at, self._size, self._row, self._at):
            if extent.rows is None or extent.first + extent.rows > row_range.first:
                break
            self._row, self._at = extent.first + extent.rows, extent.end

        # 2. The blocks.
        for item in read_segment(
            read_at, self._size, self._header.salt, self._row, row_range.following, at=self._at, on_corrupt=on_corrupt
        ):
            if isinstance(item, Skipped):
                on_skip(self._path, item)
                first, self._row = self._row, self._row + (item.rows or 0)
                yield from self._damaged(first, item.rows)
                continue
            if isinstance(item, Block):
                if row_range.before is not None and item.sequences[0] >= row_range.before:
                    return
                part = item.between(row_range.first, row_range.before or item.next_sequence)
                if part is not None:
                    yield Rows(self._header, self._path, part)
                self._time_ns = int(item.times[-1])
            self._row, ended = item.next_sequence, isinstance(item, End)

        # 3. A gap row for rows that should come after the last one.
        if row_range.before is not None and self._row < row_range.before:
            lost = row_range.before - max(self._row, row_range.first)
            yield self._gap(row_range.before - 1, DELETED, lost)
        elif row_range.is_killed and not ended:
            yield self._gap(self._row, CUT, None)

    def _damaged(self, first: int, rows: int | None) -> Iterator[Rows]:
        """Yield the gap row for damaged rows from number ``first`` on, as far as they are in this range."""
        if rows is None:
            yield self._gap(first - 1, DAMAGED, None)
            return
        before = min(first + rows, self._row_range.before or first + rows)
        lost = before - max(first, self._row_range.first)
        if lost > 0:
            yield self._gap(before - 1, DAMAGED, lost)

    def _gap(self, sequence: int, cause: str, lost: int | None) -> Rows:
        return Rows(self._header, self._path, gap_block(max(1, sequence), self._time_ns, cause, lost))
