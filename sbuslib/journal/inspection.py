"""What a journal holds, its rows one by one, and whether it is damaged. Without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import msgspec

from ..errors import CorruptJournalError, JournalError
from ..segments.directory import OnCorrupt, Piece, Segment, is_recorded, list_segments, read_header, read_journal
from ..segments.layout import GAP, Block, Record, Skipped
from ..segments.reading import decode_block, walk
from .replay import Selection

__all__ = ["Check", "SegmentSummary", "Summary", "rows", "summarize", "verify"]


class SegmentSummary(msgspec.Struct, frozen=True):
    """A segment by its headers alone. Times are nanoseconds since the epoch; ``None`` if unknown."""

    name: str
    bytes: int
    first_row: int
    rows: int
    created: int | None
    latest: int | None
    sealed: bool
    """Whether the segment has its end mark, so that it will not grow."""
    damage: str | None
    """The damage of the segment's header. Only :func:`verify` finds damage in blocks."""


class Summary(msgspec.Struct, frozen=True):
    """A journal by the headers of its segments, oldest first. ``journal`` and ``hub`` are of the last whole header."""

    journal: str | None
    hub: str | None
    separator: str | None
    recorded: bool
    """Whether a recorder is at work in the directory."""
    segments: list[SegmentSummary]


class Check(msgspec.Struct):
    """Counts of what :func:`verify` has read so far. ``lost`` counts messages that the recorder could not record."""

    segments: int = 0
    rows: int = 0
    messages: int = 0
    lost: int = 0
    bytes: int = 0
    damages: int = 0


def summarize(directory: str | os.PathLike[str]) -> Summary:
    """What a journal holds, by its headers, which is fast for long journals, too.

    Raises :exc:`~sbuslib.errors.JournalError` when there is no journal, and :exc:`OSError`.
    """
    segments, header = [], None
    for segment in _segments(directory):
        try:
            header = read_header(segment.path)
            segments.append(_summary(segment, header.salt, header.created_ns))
        except CorruptJournalError as error:
            name, size, first = segment.name, segment.size, segment.first_sequence
            segments.append(SegmentSummary(name, size, first, 0, None, None, False, error.reason))
    return Summary(
        header and header.journal,
        header and header.hub,
        header and header.separator.decode(),
        is_recorded(directory),
        segments,
    )


def _segments(directory: str | os.PathLike[str]) -> list[Segment]:
    segments = list_segments(directory)
    if not segments:
        raise JournalError(f"{os.fspath(directory)}: there is no segment of a journal here")
    return segments


def _summary(segment: Segment, salt: int, created: int) -> SegmentSummary:
    descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        extents = list(walk(lambda at, length: os.pread(descriptor, length, at), segment.size))
        blocks = [extent for extent in extents if extent.rows is not None]
        latest = None
        if blocks:
            last = blocks[-1]
            try:
                block = decode_block(os.pread(descriptor, last.length, last.position), 0, salt, last.position)
                latest = max(block.times) if isinstance(block, Block) else None
            except CorruptJournalError:
                pass  # :func:`verify` reports it
    finally:
        os.close(descriptor)
    count = sum(extent.rows or 0 for extent in blocks)
    sealed = len(blocks) < len(extents)
    return SegmentSummary(segment.name, segment.size, segment.first_sequence, count, created, latest, sealed, None)


def rows(
    directory: str | os.PathLike[str],
    selection: Selection,
    *,
    on_corrupt: OnCorrupt = "error",
    on_skip: Callable[[Piece], object] = lambda piece: None,
) -> Iterator[Record]:
    """The selected messages, and the gaps of the selected time, one by one.

    Raises as :func:`~sbuslib.journal.replay.from_journal`, and :exc:`~sbuslib.errors.JournalError` when there is no
    journal.
    """
    _segments(directory)
    for piece in read_journal(directory, on_corrupt=on_corrupt, growing=True):
        if isinstance(piece.block, Skipped):
            on_skip(piece)
            continue
        assert piece.header is not None
        try:
            for record in piece.block.records():
                wanted = record.key is None or selection.wants(record.key, piece.header.separator)
                if wanted and selection.has(record.time_ns):
                    yield record
        except CorruptJournalError as error:
            raise CorruptJournalError(error.reason, error.position, piece.segment.path) from None


def verify(
    directory: str | os.PathLike[str], on_damage: Callable[[str, Skipped], object], check: Check | None = None
) -> Check:
    """Read all of a journal, and call ``on_damage`` with the file and each piece that is damaged or missing.

    It counts in ``check``, which another thread may read meanwhile. Raises
    :exc:`~sbuslib.errors.JournalError` when there is no journal, and :exc:`OSError`.
    """
    check = Check() if check is None else check
    path = ""
    _segments(directory)
    for piece in read_journal(directory, on_corrupt="skip"):
        block = piece.block
        if piece.segment.path != path:
            path = piece.segment.path
            check.segments += 1
            check.bytes += piece.segment.size
        if isinstance(block, Skipped):
            check.damages += 1
            on_damage(path, block)
            continue
        try:
            check.rows += block.rows
            if block.kind == GAP:
                check.lost += sum(max(0, lost) for lost in block.lost())
            else:
                check.messages += block.rows
                for _ in block.records():
                    pass  # raises where a number points at no name or payload
        except CorruptJournalError as error:
            check.damages += 1
            on_damage(path, Skipped(block.position, block.length, block.rows, error.reason))
    return check
