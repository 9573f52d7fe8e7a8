"""Reads journals and lakes as streams: where a batch begins and ends.

An offset maps the identity of each journal to the number of its next row, wherever that row lies when it is read. So
segments may be sealed and deleted meanwhile, and rows that are gone come as a gap.

A recorder appends whole blocks in order, so their headers show the end of the last whole block. Only headers are read
here. The task that reads a block checks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import inf
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..errors import JournalError
from ..journal.format.directory import Segment
from ..journal.format.recovery import NUMBERS_LEFT_OUT
from ..journal.read.journal_files import Sealed, looked_again
from ..journal.read.read_plan import Known, RowRange, measure, plan
from .reader import Options, arrow_schema, group, read_partition

Offset = dict[str, int]


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream of journals, from their oldest row on, or from the first file with rows of the wanted time."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)  # the columns that are read
        #: End of the stream; ``None``: it has none.
        self._target: Offset | None = None
        #: For segments, a row and the byte of its block: the end of the last batch.
        self._known: dict[str, tuple[int, int]] = {}
        self._former: dict[str, tuple[int, int]] = {}  # the same: the start of the last batch

    def _plan(self, start: Offset, known: Known) -> dict[str, list[RowRange]]:
        """Plan to read each journal. Raises :exc:`~sbuslib.errors.JournalError`."""
        options = self._options
        if not all(isinstance(row, int) for row in start.values()):
            raise JournalError("this checkpoint is of another version: its offsets are no numbers of rows")
        plans = plan(options.places, options.wanted, durable_only=options.durable_only, first=start, known=known)
        return {
            journal: [row_range._replace(is_killed=False) for row_range in row_ranges]
            for journal, row_ranges in plans.items()
        }

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the first row of each journal."""
        return {journal: row_ranges[0].first for journal, row_ranges in self._plan({}, {}).items() if row_ranges}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the option ``maxRecordsPerBatch``."""
        most = self._options.max_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the stream end at the end of the last whole block now."""
        self._target = self.latestOffset({}, ReadAllAvailable())

    @looked_again
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Find the end of a batch that begins at ``start``. Raises :exc:`~sbuslib.errors.JournalError`.

        A batch has whole blocks of a segment, and at least one.
        """
        remaining: float = limit.max_rows if isinstance(limit, ReadMaxRows) else inf
        reached, plans = dict(start), self._plan(start, self._known)
        self._former = dict(self._known)
        for number, (journal, row_ranges) in enumerate(plans.items()):
            target = inf if self._target is None else self._target.get(journal, 0)
            share = math.ceil(remaining / (len(plans) - number)) if remaining < inf else inf
            if row_ranges and share > 0:
                reached[journal], rows = self._advance(row_ranges, share, target)
                remaining -= rows
        return reached

    def _advance(self, row_ranges: list[RowRange], most: float, target: float) -> tuple[int, float]:
        """Find the end of a batch that begins with the first of some ranges.

        Also returns roughly the number of its rows.
        """
        row, remaining = row_ranges[0].first, most
        for row_range in row_ranges:
            if row_range.first >= target or remaining <= 0:
                break
            before = min(target, inf if row_range.before is None else row_range.before)
            if before < inf and (row_range.file is None or before - row_range.first <= remaining):
                row = int(before)
            elif isinstance(row_range.file, Segment):
                row, at = measure(row_range, remaining, before, self._options.on_corrupt)
                self._known[row_range.file.path] = row, at
                row = max(row, row_range.first)
                if row == row_range.first and before < inf:  # rows after its last block are missing
                    row = int(before)
            elif isinstance(row_range.file, Sealed):
                # No file has so many rows: numbers were left out, which must not become empty batches.
                skips_numbers = row_range.file.last - row_range.file.first >= NUMBERS_LEFT_OUT
                row = int(before) if skips_numbers else int(row_range.first + remaining)
            remaining -= 1 if row_range.file is None else row - row_range.first
            if row != row_range.before:
                break
        return row, most - remaining

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Divide the ranges between two offsets among tasks. Raises :exc:`~sbuslib.errors.JournalError`."""
        plans = self._plan(start, self._former)
        ranges = [row_range for journal, row in end.items() for row_range in _until(plans.get(journal, []), row)]
        used = {
            row_range.file.path for row_range in ranges if row_range.file is not None
        }  # the others were read to their ends
        self._known = {path: place for path, place in self._known.items() if path in used}
        return group(ranges)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of one task."""
        return read_partition(partition, self._schema, self._options)


def _until(row_ranges: list[RowRange], end: int) -> Iterator[RowRange]:
    for row_range in row_ranges:
        if row_range.first < end:
            yield row_range._replace(before=end if row_range.before is None else min(end, row_range.before))
