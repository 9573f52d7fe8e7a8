"""Verification of a journal: reads every byte, and counts damage and the recorder's losses, by cause."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import msgspec

from ..errors import CorruptJournalError
from ..wire.offers import needs_descriptor_store
from ..wire.text import escape
from .format.layout import GAP, Block, Skipped
from .format.recovery import DAMAGED, DELETED
from .read.blocks import blocks, everything

_CAUSES_SHOWN = 5
"""As many fit into a line."""


class Check(msgspec.Struct):
    """Counts of what :func:`verify` has read so far."""

    files: int = 0
    messages: int = 0
    frames: int = 0
    """Messages that refer to a frame, a file or a descriptor, which no journal has."""
    gaps: int = 0
    """Gap rows."""
    first_row: int = 0
    """The number of the first row."""
    lost: Counter[str] = msgspec.field(default_factory=Counter)
    """Messages that the journal lacks, by cause, as far as their number is known."""
    unknown: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of gaps with an unknown number of messages, by cause."""
    damages: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether no byte is damaged and no file is missing."""
        return not (self.damages or self.lost[DELETED] or self.unknown[DELETED])

    def verdict(self) -> str:
        """Summarize in one line whether all missing messages were counted."""
        counts = f"{self.messages:,} recorded, {self.lost.total():,} lost by known causes"
        causes = ["".join(map(escape, cause)) for cause, times in sorted(self.unknown.items()) if times]
        if not causes:
            return f"every message is accounted for: {counts}"
        shown = ", ".join(causes[:_CAUSES_SHOWN] + ["others"] * (len(causes) > _CAUSES_SHOWN))
        return f"not every message is accounted for: {counts}, and nobody knows how many by {shown}"


def verify(
    directory: str | os.PathLike[str],
    on_damage: Callable[[str, Skipped], object] = lambda path, skipped: None,
    check: Check | None = None,
) -> Check:
    """Read all of a journal, and call ``on_damage`` with each damaged file and a description of the damage.

    It counts in ``check``, which another thread may read meanwhile. Raises
    :exc:`~sbuslib.errors.JournalError` when there is no journal, and :exc:`OSError`.
    """
    check = Check() if check is None else check

    def skip(path: str, skipped: Skipped) -> None:
        check.damages += 1
        on_damage(path, skipped)

    row_ranges = everything(directory)
    check.first_row = check.first_row or (row_ranges[0].first if row_ranges else 0)
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
            if row.lost == 0:
                continue  # an event
            check.lost[row.cause or ""] += row.lost or 0
            check.unknown[row.cause or ""] += row.lost is None
            check.gaps += 1
    else:
        check.messages += block.rows
        check.frames += sum(needs_descriptor_store(row.payload or b"") is not None for row in records)
