"""Reader of journals as blocks of columns, and row by row: segments and sealed files alike, with all gaps.

:func:`everything` plans to read all of a directory, :func:`blocks` yields its rows, and :func:`read_records` yields
them one by one. Missing rows come as a gap row that is in no file, of one of three causes: ``deleted``, ``damaged``,
and ``cut`` at the end of a journal whose recorder was killed. The next recorder writes that one, under the same number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...errors import CorruptJournalError, JournalError
from ..format.decoding import OnCorrupt
from ..format.directory import LOCK_NAME
from ..format.layout import Record
from .journal_files import Sealed, VanishedError, absolute
from .read_plan import RowRange, instead, plan
from .segment_rows import OnSkip, Rows, segment_rows
from .selection import EVERYTHING, Selection


def everything(directory: str | os.PathLike[str], wanted: Selection = EVERYTHING) -> list[RowRange]:
    """The ranges of all journals in a directory or under a URI, one journal after the other.

    Raises :exc:`~sbuslib.errors.JournalError` if there is none. One into which nothing was recorded yet has no ranges.
    """
    place = absolute(directory)
    ranges = [row_range for row_ranges in plan([place], wanted).values() for row_range in row_ranges]
    if not ranges and not wanted.by_time and not os.path.exists(f"{place}/{LOCK_NAME}"):
        raise JournalError(f"{os.fspath(directory)}: there is no journal and no lake here")
    return ranges


def blocks(
    row_ranges: Iterable[RowRange],
    wanted: Selection = EVERYTHING,
    *,
    on_corrupt: OnCorrupt = "error",
    on_skip: OnSkip = lambda path, skipped: None,
) -> Iterator[Rows]:
    """Yield the rows of some ranges. Rows that are not ``wanted`` may be among them.

    With ``on_corrupt="skip"`` damage is reported to ``on_skip``, and comes as a gap row. Else it raises
    :exc:`~sbuslib.errors.CorruptJournalError`. Raises :exc:`~sbuslib.errors.JournalError`.
    """

    def read(row_range: RowRange) -> Iterator[Rows]:
        if isinstance(row_range.file, Sealed):
            from .parquet import sealed_rows  # only here, as it needs Arrow

            return sealed_rows(row_range, wanted, on_corrupt, on_skip)
        return segment_rows(row_range, on_corrupt, on_skip)

    return present(row_ranges, read)


def present(row_ranges: Iterable[RowRange], read: Callable[[RowRange], Iterator[Any]]) -> Iterator[Any]:
    """Read each range, or the ranges in its place if its file has vanished."""
    for row_range in row_ranges:
        try:
            yield from read(row_range)
        except VanishedError:
            yield from present(instead(row_range), read)


def read_records(
    directory: str | os.PathLike[str],
    wanted: Selection = EVERYTHING,
    *,
    on_corrupt: OnCorrupt = "error",
    on_skip: OnSkip = lambda path, skipped: None,
) -> Iterator[Record]:
    """Yield the wanted rows one by one, messages and gaps. Far slower than blocks; raises likewise."""
    for header, path, block in blocks(everything(directory, wanted), wanted, on_corrupt=on_corrupt, on_skip=on_skip):
        try:
            for row in block.records():
                if wanted.has(row.time_ns) and (row.key is None or wanted.wants(row.key, header.separator)):
                    yield row
        except CorruptJournalError as error:
            raise CorruptJournalError(error.reason, error.position, path) from None
