"""Reads journals and lakes as streams: where a batch begins and ends.

An offset maps the identity of each journal to the number of its next row, wherever that row lies when it is read. So
segments may be sealed and deleted meanwhile, and rows that are gone come as a gap.

A recorder appends whole blocks in order, so their headers tell where the last whole block ends. Only headers are read
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
from ..lake.files import Sealed, looked_again
from ..lake.read_plan import Known, RowRange, measure, plan
from ..segments.directory import Segment
from ..segments.recovery import NUMBERS_LEFT_OUT
from .reader import Options, arrow_schema, group, read_partition

Offset = dict[str, int]


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads journals from their oldest row on, or the first file with rows of the time, and goes on while they grow."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)  # the columns that are read
        #: Where the stream ends; ``None``: nowhere.
        self._target: Offset | None = None
        #: For segments, a row and the byte of its block: where the last batch ended, and where it began.
        self._known: dict[str, tuple[int, int]] = {}
        self._former: dict[str, tuple[int, int]] = {}  # the same, before the batch that ended last

    def _pieces(self, start: Offset, known: Known) -> dict[str, list[RowRange]]:
        """What there is to read of each journal. Raises :exc:`~sbuslib.errors.JournalError`."""
        options = self._options
        if not all(isinstance(row, int) for row in start.values()):
            raise JournalError("this checkpoint is of another version: its offsets are no numbers of rows")
        found = plan(options.places, options.wanted, durable_only=options.durable_only, first=start, known=known)
        return {
            journal: [row_range._replace(is_killed=False) for row_range in row_ranges]
            for journal, row_ranges in found.items()
        }

    def initialOffset(self) -> Offset:  # noqa: N802
        """The first row of each journal."""
        return {journal: row_ranges[0].first for journal, row_ranges in self._pieces({}, {}).items() if row_ranges}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit that the option ``maxRecordsPerBatch`` sets."""
        most = self._options.max_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the stream end where the whole blocks end now."""
        self._target = self.latestOffset({}, ReadAllAvailable())

    @looked_again
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of a batch that begins at ``start``. Raises :exc:`~sbuslib.errors.JournalError`.

        Of a segment it has whole blocks, and at least one.
        """
        left: float = limit.max_rows if isinstance(limit, ReadMaxRows) else inf
        reached, found = dict(start), self._pieces(start, self._known)
        self._former = dict(self._known)
        for number, (journal, row_ranges) in enumerate(found.items()):
            target = inf if self._target is None else self._target.get(journal, 0)
            share = math.ceil(left / (len(found) - number)) if left < inf else inf
            if row_ranges and share > 0:
                reached[journal], rows = self._advance(row_ranges, share, target)
                left -= rows
        return reached

    def _advance(self, row_ranges: list[RowRange], most: float, target: float) -> tuple[int, float]:
        """The end of a batch that begins with the first of some ranges, and about how many rows it has."""
        row, left = row_ranges[0].first, most
        for row_range in row_ranges:
            if row_range.first >= target or left <= 0:
                break
            before = min(target, inf if row_range.before is None else row_range.before)
            if before < inf and (row_range.file is None or before - row_range.first <= left):
                row = int(before)
            elif isinstance(row_range.file, Segment):
                row, at = measure(row_range, left, before, self._options.on_corrupt)
                self._known[row_range.file.path] = row, at
                row = max(row, row_range.first)
                if row == row_range.first and before < inf:  # what comes after its last block is missing
                    row = int(before)
            elif isinstance(row_range.file, Sealed):
                # No file has so many rows: numbers were left out, which must not become empty batches.
                has_left_out = row_range.file.last - row_range.file.first >= NUMBERS_LEFT_OUT
                row = int(before) if has_left_out else int(row_range.first + left)
            left -= 1 if row_range.file is None else row - row_range.first
            if row != row_range.before:
                break
        return row, most - left

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The ranges between two offsets, divided among tasks. Raises :exc:`~sbuslib.errors.JournalError`."""
        found = self._pieces(start, self._former)
        some = [row_range for journal, row in end.items() for row_range in _until(found.get(journal, []), row)]
        used = {
            row_range.file.path for row_range in some if row_range.file is not None
        }  # the others were read to their ends
        self._known = {path: place for path, place in self._known.items() if path in used}
        return group(some)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of one task."""
        return read_partition(partition, self._schema, self._options)


def _until(row_ranges: list[RowRange], end: int) -> Iterator[RowRange]:
    for row_range in row_ranges:
        if row_range.first < end:
            yield row_range._replace(before=end if row_range.before is None else min(end, row_range.before))
