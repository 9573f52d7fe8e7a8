"""Whether a journal is whole, and what its recorder missed, by cause: every byte of it is read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import msgspec

from ..errors import CorruptJournalError
from ..lake.blocks import blocks, everything
from ..lake.files import Sealed
from ..lake.read_plan import unsaid
from ..segments.layout import GAP, Block, Skipped
from ..segments.recovery import DAMAGED, DELETED
from ..wire.offers import needs_descriptor_store
from ..wire.text import escape

_CAUSES_TOLD = 5
"""They fit into a line."""


class Check(msgspec.Struct):
    """Counts of what :func:`verify` has read so far."""

    files: int = 0
    messages: int = 0
    frames: int = 0
    """Those of them that name a frame, a file or a descriptor, which no journal has."""
    gaps: int = 0
    """Gap rows."""
    first_row: int = 0
    """The number of the first row that there is."""
    lost: Counter[str] = msgspec.field(default_factory=Counter)
    """Messages that the journal lacks, by cause, as far as their number is known."""
    unknown: Counter[str] = msgspec.field(default_factory=Counter)
    """How many times messages are missing whose number nobody knows, by cause."""
    damages: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether no byte is damaged and no file is missing."""
        return not (self.damages or self.lost[DELETED] or self.unknown[DELETED])

    def verdict(self) -> str:
        """Whether each message that is missing was counted by somebody, in one line."""
        told = f"{self.messages:,} recorded, {self.lost.total():,} lost by known causes"
        causes = ["".join(map(escape, cause)) for cause, times in sorted(self.unknown.items()) if times]
        if not causes:
            return f"every message is accounted for: {told}"
        some = ", ".join(causes[:_CAUSES_TOLD] + ["others"] * (len(causes) > _CAUSES_TOLD))
        return f"not every message is accounted for: {told}, and nobody knows how many by {some}"


def verify(
    directory: str | os.PathLike[str],
    on_damage: Callable[[str, Skipped], object] = lambda path, skipped: None,
    check: Check | None = None,
) -> Check:
    """Read all of a journal, and call ``on_damage`` with each file and what is damaged in it.

    It counts in ``check``, which another thread may read meanwhile. Raises
    :exc:`~sbuslib.errors.JournalError` when there is no journal, and :exc:`OSError`.
    """
    check = Check() if check is None else check

    def skip(path: str, skipped: Skipped) -> None:
        check.damages += 1
        on_damage(path, skipped)

    # 1. What sealed files hold, and what their names say. A damaged one is told when it is read.
    row_ranges = everything(directory)
    check.first_row = check.first_row or (row_ranges[0].first if row_ranges else 0)
    for file in dict.fromkeys(row_range.file for row_range in row_ranges if isinstance(row_range.file, Sealed)):
        for first, before in unsaid(file):
            reason = f"its name says rows {file.first:,} to {file.last:,}, and it has no row from {first:,} to "
            skip(file.path, Skipped(0, file.size, before - first, f"{reason}{before - 1:,}"))

    # 2. All rows.
    seen = {row_range.place for row_range in row_ranges}  # of rows that are in no file
    for rows in blocks(row_ranges, on_corrupt="skip", on_skip=skip):
        check.files += rows.path not in seen
        seen.add(rows.path)
        try:
            _count(rows.block, check)
        except CorruptJournalError as error:
            skip(rows.path, Skipped(rows.block.position, rows.block.length, rows.block.rows, error.reason))
            check.lost[DAMAGED] += rows.block.rows
    return check


def _count(block: Block, check: Check) -> None:
    """Count the rows of a block. Raises :exc:`~sbuslib.errors.CorruptJournalError` where its columns do not agree."""
    records = list(block.records())
    if block.kind == GAP:
        for row in records:
            check.lost[row.cause or ""] += row.lost or 0
            check.unknown[row.cause or ""] += row.lost is None
        check.gaps += block.rows
    else:
        check.messages += block.rows
        check.frames += sum(needs_descriptor_store(row.payload or b"") is not None for row in records)
