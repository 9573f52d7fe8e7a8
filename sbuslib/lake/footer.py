"""What a sealed file is and holds, by its footer and its row numbers, whatever its name says.

A name says the first and the last row, and each number between is one of these:

* a row of the file;
* told by a gap row of the cause ``damaged``, which has the last number of what was skipped;
* left out after a crash: :data:`~sbuslib.segments.recovery.NUMBERS_LEFT_OUT` numbers, more than any file has rows;
* not held. Files of older releases may have such rows between others: with a gap row of the cause ``deleted``, or with
  nothing that says so. Readers look for them elsewhere.
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

from ..errors import CorruptJournalError
from ..segments.layout import SegmentHeader
from ..segments.recovery import DAMAGED, DELETED, NUMBERS_LEFT_OUT
from .files import Sealed, VanishedError, filesystem_of

logger = logging.getLogger("sbuslib")


class HeldRows(NamedTuple):
    """Rows from ``first`` to before ``before`` that a file holds; the first is of the time ``time_ns``."""

    first: int
    before: int
    time_ns: int


class Footer(NamedTuple):
    """What a sealed file holds: see the module's docstring. ``unsaid`` are rows that are not held, and nothing says so.

    ``header`` has the journal, the hub and the separator of all rows, of which there are ``rows``, gaps included.
    """

    header: SegmentHeader
    rows: int
    spans: tuple[HeldRows, ...]
    unsaid: tuple[tuple[int, int], ...]


@contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Errors of Arrow become ours, with the path."""
    try:
        yield
    except FileNotFoundError:
        raise VanishedError(f"{path}: this file was deleted before it was read") from None
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise CorruptJournalError(" ".join(str(error).split()), 0, path) from None


@lru_cache(65_536)
def footer_of(file: Sealed) -> Footer:
    """What a sealed file holds, read once in a process: sealed files never change.

    A file that holds less than its name says is told in the log. Raises
    :exc:`~sbuslib.errors.CorruptJournalError`, also for rows that the name does not say, and
    :exc:`.files.VanishedError`.
    """
    # 1. The metadata, and whether their statistics say that all is there: nearly always, and no page is read then.
    with named_errors(file.path):
        filesystem, inside = filesystem_of(file.path)
        metadata = pyarrow.parquet.read_metadata(inside, filesystem=filesystem)
    told = metadata.metadata or {}
    hub = told.get(b"sbus.hub", b"").decode(errors="replace")
    header = SegmentHeader(file.journal, hub, told.get(b"sbus.separator", b"/"), file.start_ns, file.first, 0)
    if _is_all_there(file, metadata):
        return Footer(header, metadata.num_rows, (HeldRows(file.first, file.last + 1, file.start_ns),), ())

    # 2. Else the numbers of the rows.
    holes, unsaid = _holes(file, _columns(file))
    spans = tuple(_spans(file, holes))
    if unsaid:
        some = ", ".join(f"{first:,} to {before - 1:,}" for first, before in unsaid[:3]) + ", ..." * (len(unsaid) > 3)
        logger.warning(
            "%s: its name says rows %s to %s, and it holds no row from %s; other files are asked for these",
            *(file.path, f"{file.first:,}", f"{file.last:,}", some),
        )
    return Footer(header, metadata.num_rows, spans, tuple(unsaid))


def count_between(file: Sealed, first: int, before: int) -> int:
    """How many rows of a sealed file, gaps included, have numbers from ``first`` on and before ``before``."""
    rows = footer_of(file).rows
    if first <= file.first and before > file.last:
        return rows
    if rows == file.last - file.first + 1:
        return max(0, min(before, file.last + 1) - max(first, file.first))
    numbers = _columns(file).column("sequence").to_numpy()
    return int(((numbers >= first) & (numbers < before)).sum())


def _is_all_there(file: Sealed, metadata: Any) -> bool:
    """Whether the statistics say that a file holds each row that its name says, and no gap row."""
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
    """The rows that a file does not hold, each with the time of the row after it, and those of which nothing says so.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`.
    """
    # 1. The steps between the numbers.
    numbers = table.column("sequence").to_numpy()
    steps = numpy.diff(numbers, prepend=file.first - 1)
    if table.num_rows and (steps.min() < 1 or numbers[-1] > file.last):
        raise CorruptJournalError("it has rows that its name does not say, or has them twice", 0, file.path)

    # 2. Those of more than one, and rows that stand for deleted ones.
    holes, unsaid = list[HeldRows](), list[tuple[int, int]]()

    def add(first: int, before: int, time_ns: int, *, is_said: bool) -> None:
        holes.append(HeldRows(first, before, time_ns))
        if not is_said:
            unsaid.append((first, before))

    is_deleted = pyarrow.compute.equal(table.column("cause"), DELETED).fill_null(False).to_numpy()
    for at in numpy.flatnonzero((steps > 1) | is_deleted).tolist():
        row, step = table.slice(at, 1).to_pylist()[0], int(steps[at])
        number, time_ns = row["sequence"], row["time_ns"]
        stands_for = min(step, row["lost"] or step) if row["cause"] in (DELETED, DAMAGED) else 1
        more = step - stands_for
        if more and more != NUMBERS_LEFT_OUT:
            add(number - step + 1, number - stands_for + 1, time_ns, is_said=False)
        if is_deleted[at]:
            add(number - stands_for + 1, number + 1, time_ns, is_said=True)

    # 3. What the name says after the last of them.
    last = int(numbers[-1]) if table.num_rows else file.first - 1
    more = file.last - last
    if more and more != NUMBERS_LEFT_OUT:
        add(last + 1, file.last + 1, file.end_ns, is_said=False)
    return holes, unsaid


def _spans(file: Sealed, holes: list[HeldRows]) -> Iterator[HeldRows]:
    """What lies between the holes, of which some adjoin."""
    first, time_ns = file.first, file.start_ns
    for hole in holes:
        if hole.first > first:
            yield HeldRows(first, hole.first, time_ns)
        first, time_ns = hole.before, hole.time_ns
    if first <= file.last:
        yield HeldRows(first, file.last + 1, time_ns)
