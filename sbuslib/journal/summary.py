"""Summary of a journal, from its files' names and headers. Without Spark, and without Arrow where nothing is sealed."""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from ..errors import CorruptJournalError
from .format.decoding import decode_block, walk
from .format.directory import is_recorded
from .format.layout import Block
from .read.blocks import everything
from .read.journal_files import ListedSegment, Sealed, absolute, is_local, looked_again, opened
from .read.read_plan import RowRange


class FileSummary(msgspec.Struct, frozen=True):
    """A file of a journal by its name and headers alone. Times are nanoseconds since the epoch; ``None`` if unknown."""

    name: str
    bytes: int
    first_row: int
    state: str
    """``sealed``, ``ended`` (with its end mark), ``open``, or the fault of the file in words."""
    rows: int = 0
    begun: int | None = None
    latest: int | None = None


class JournalSummary(msgspec.Struct, frozen=True):
    """A journal by its files, oldest first. ``hub`` and ``separator`` are of the last segment."""

    journal: str | None
    hub: str | None
    separator: str | None
    recorded: bool
    """Whether a recorder is at work in the directory."""
    missing: int
    """Rows that are in no file, between others."""
    files: list[FileSummary]


@looked_again
def summarize(directory: str | os.PathLike[str]) -> list[JournalSummary]:
    """Summarize each journal in a directory. Fast for long journals, too.

    Raises :exc:`~sbuslib.errors.JournalError` when there is no journal.
    """
    by_journal: dict[str | None, list[RowRange]] = {}
    for row_range in everything(directory):
        by_journal.setdefault(row_range.journal, []).append(row_range)
    place = absolute(directory)
    recorded = is_local(place) and is_recorded(place)
    return [_summary(journal, row_ranges, recorded) for journal, row_ranges in by_journal.items()]


def _summary(journal: str | None, row_ranges: list[RowRange], recorded: bool) -> JournalSummary:
    header, missing, files = None, 0, list[FileSummary]()
    for row_range in row_ranges:
        end = row_range.first  # the number after its last row
        if isinstance(row_range.file, Sealed):
            end = row_range.before or end
            files.append(_sealed(row_range.file, row_range.first, end))
        elif row_range.file is not None:
            with suppress(CorruptJournalError):
                header = row_range.file.header
            file, end = _segment(row_range, row_range.file)
            files += [file] if file.rows or row_range.first == file.first_row else []
        missing += max(0, (row_range.before or end) - max(end, row_range.first))
    separator = header.separator.decode() if header is not None else None
    return JournalSummary(journal, header and header.hub, separator, recorded and header is not None, missing, files)


def _sealed(file: Sealed, first: int, before: int) -> FileSummary:
    """Summarize a sealed file, or the rows of a part of one."""
    from .read.footer import footer_of  # only here, as it needs Arrow

    summary = FileSummary(file.name, file.size, file.first, "sealed", 0, file.start_ns, file.end_ns - 1_000_000_000)
    try:
        return msgspec.structs.replace(summary, rows=min(footer_of(file).rows, before - first))
    except CorruptJournalError as error:
        return msgspec.structs.replace(summary, state=error.reason)


def _segment(row_range: RowRange, segment: ListedSegment) -> tuple[FileSummary, int]:
    """Summarize a segment, without rows before those of the range. Also returns the number after its last row."""
    summary = FileSummary(segment.name, segment.size, segment.first_sequence, "open")
    try:
        header, mark = segment.header, segment.mark
    except CorruptJournalError as error:
        return msgspec.structs.replace(summary, state=error.reason), row_range.before or row_range.first

    # The headers of the blocks have the numbers of rows, the last block the latest time, the mark the next number.
    rows, latest, last, end = 0, None, None, segment.first_sequence
    with opened(segment.path) as read_at:
        for extent in walk(read_at, segment.size, end):
            end = extent.first + (extent.rows or 0)
            rows += max(0, end - max(extent.first, row_range.first))
            last = extent if extent.rows is not None else last
        with suppress(CorruptJournalError):  # ``verify`` reports it
            block = decode_block(read_at(last.position, last.length), 0, header.salt) if last is not None else None
            latest = max(block.times) if isinstance(block, Block) else None
    state = "open" if mark is None else "ended"
    file = msgspec.structs.replace(summary, state=state, rows=rows, begun=header.created_ns, latest=latest)
    return file, end if mark is None else mark.next_sequence
