"""Footer of a sealed file: the rows that it really holds, by its statistics and row numbers.

Its name has the first and the last row, and each number between is one of these:

* a row of the file;
* covered by a gap row of the cause ``damaged``, which has the last of the numbers that were skipped;
* left out after a crash: :data:`~sbuslib.journal.format.recovery.NUMBERS_LEFT_OUT` numbers, more than any file has
rows;
* not held. Files of older releases may lack rows between others: with a gap row of the cause ``deleted``, or without
  any. Readers look for them in other files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from ...errors import CorruptJournalError
from ..format.layout import SegmentHeader
from ..format.recovery import DAMAGED, DELETED, NUMBERS_LEFT_OUT
from .journal_files import Sealed, VanishedError, filesystem_of

logger = logging.getLogger("sbuslib")


class HeldRows(NamedTuple):
    """Rows from ``first`` to before ``before`` that a file holds; the first is of the time ``time_ns``."""

    first: int
    before: int
    time_ns: int


class Footer(NamedTuple):
    """Contents of a sealed file: see the module's docstring. ``unexplained`` are rows that it lacks without a gap row.

    ``header`` has the journal, the hub and the separator of all rows. ``rows`` is their number, gaps included.
    """

    header: SegmentHeader
    rows: int
    spans: tuple[HeldRows, ...]
    unexplained: tuple[tuple[int, int], ...]


@contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Convert errors of Arrow to ours, with the path."""
    try:
        yield
    except FileNotFoundError:
        raise VanishedError(f"{path}: this file was deleted before it was read") from None
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise CorruptJournalError(" ".join(str(error).split()), 0, path) from None


@lru_cache(65_536)
def footer_of(file: Sealed) -> Footer:
    """Read the footer of a sealed file, once in a process: sealed files never change.

    A file that holds less than its name claims is logged. Raises :exc:`~sbuslib.errors.CorruptJournalError`, also for
    rows beyond its name, and :exc:`.journal_files.VanishedError`.
    """
    # 1. The metadata. Nearly always their statistics show that no row is missing, and no page is read then.
    with named_errors(file.path):
        filesystem, inside = filesystem_of(file.path)
        metadata = pyarrow.parquet.read_metadata(inside, filesystem=filesystem)
    texts = metadata.metadata or {}
    hub = texts.get(b"sbus.hub", b"").decode(errors="replace")
    header = SegmentHeader(file.journal, hub, texts.get(b"sbus.separator", b"/"), file.start_ns, file.first, 0)
    if _is_all_there(file, metadata):
        return Footer(header, metadata.num_rows, (HeldRows(file.first, file.last + 1, file.start_ns),), ())

    # 2. Else the numbers of the rows.
    holes, unexplained = _holes(file, _columns(file))
    spans = tuple(_spans(file, holes))
    if unexplained:
        ranges = [f"{first:,} to {before - 1:,}" for first, before in unexplained[:3]] + ["..."] * (
            len(unexplained) > 3
        )
        logger.warning(
            "%s: its name says rows %s to %s, and it holds no row from %s; other files are asked for these",
            *(file.path, f"{file.first:,}", f"{file.last:,}", ", ".join(ranges)),
        )
    return Footer(header, metadata.num_rows, spans, tuple(unexplained))


def count_between(file: Sealed, first: int, before: int) -> int:
    """Count the rows of a sealed file, gaps included, with numbers from ``first`` on and before ``before``."""
    rows = footer_of(file).rows
    if first <= file.first and before > file.last:
        return rows
    if rows == file.last - file.first + 1:
        return max(0, min(before, file.last + 1) - max(first, file.first))
    numbers = _columns(file).column("sequence").to_numpy()
    return int(((numbers >= first) & (numbers < before)).sum())


def _is_all_there(file: Sealed, metadata: Any) -> bool:
    """Whether the statistics show that a file holds each row of its name, and no gap row."""
    if metadata.num_rows != file.last - file.first + 1:
        return False
    names = metadata.schema.names
    numbers, causes = names.index("sequence"), names.index("cause")
    least, most = [], []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        of_numbers, of_causes = group.column(numbers).statistics, group.column(causes).statistics
        if of_numbers is None or of_causes is None or of_causes.null_count != group.num_rows:
            return False
        least.append(of_numbers.min)
        most.append(of_numbers.max)
    return (min(least), max(most)) == (file.first, file.last)


def _columns(file: Sealed) -> Any:
    with named_errors(file.path):
        filesystem, inside = filesystem_of(file.path)
        source = pyarrow.parquet.ParquetFile(filesystem.open_input_file(inside), page_checksum_verification=True)
        return source.read(["sequence", "time_ns", "lost", "cause"])


def _holes(file: Sealed, table: Any) -> tuple[list[HeldRows], list[tuple[int, int]]]:
    """Find the rows that a file lacks, with the time of the row after them, and those of them without a gap row.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`.
    """
    # 1. The steps between the numbers.
    numbers = table.column("sequence").to_numpy()
    steps = numpy.diff(numbers, prepend=file.first - 1)
    if table.num_rows and (steps.min() < 1 or numbers[-1] > file.last):
        raise CorruptJournalError("it has rows that its name does not say, or has them twice", 0, file.path)

    # 2. The steps of more than one, and gap rows for deleted rows.
    holes, unexplained = list[HeldRows](), list[tuple[int, int]]()

    def add(first: int, before: int, time_ns: int, *, is_explained: bool) -> None:
        holes.append(HeldRows(first, before, time_ns))
        if not is_explained:
            unexplained.append((first, before))

    is_deleted = pyarrow.compute.equal(table.column("cause"), DELETED).fill_null(False).to_numpy()
    for at in numpy.flatnonzero((steps > 1) | is_deleted).tolist():
        row, step = table.slice(at, 1).to_pylist()[0], int(steps[at])
        number, time_ns = row["sequence"], row["time_ns"]
        stands_for = min(step, row["lost"] or step) if row["cause"] in (DELETED, DAMAGED) else 1
        more = step - stands_for
        if more and more != NUMBERS_LEFT_OUT:
            add(number - step + 1, number - stands_for + 1, time_ns, is_explained=False)
        if is_deleted[at]:
            add(number - stands_for + 1, number + 1, time_ns, is_explained=True)

    # 3. The rows of the name after the last one.
    last = int(numbers[-1]) if table.num_rows else file.first - 1
    more = file.last - last
    if more and more != NUMBERS_LEFT_OUT:
        add(last + 1, file.last + 1, file.end_ns, is_explained=False)
    return holes, unexplained


def _spans(file: Sealed, holes: list[HeldRows]) -> Iterator[HeldRows]:
    """Yield the ranges between the holes; some holes adjoin."""
    first, time_ns = file.first, file.start_ns
    for hole in holes:
        if hole.first > first:
            yield HeldRows(first, hole.first, time_ns)
        first, time_ns = hole.before, hole.time_ns
    if first <= file.last:
        yield HeldRows(first, file.last + 1, time_ns)
