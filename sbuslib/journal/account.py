"""What journals, hubs and links had and lost: every byte of a journal is read, and hubs are asked for their counts.

A journal knows what it recorded and what its recorder missed, by cause. A hub counts what was published and routed, and
what became of it; a link likewise.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..errors import CorruptJournalError
from ..lake.blocks import blocks, everything
from ..lake.segment_rows import DAMAGED, DELETED
from ..segments.layout import GAP, Block, Skipped
from ..wire.offers import behind_a_door
from ..wire.text import escape

if TYPE_CHECKING:
    from ..monitor.survey import SeenHub

__all__ = ["Check", "Ledger", "Loss", "verify"]

NOT_ASKED = "not asked: "
"""The start of the cause of what a hub may have lost that could not be asked."""


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

    pieces = everything(directory)
    check.first_row = check.first_row or pieces[0].first
    former = ""
    for rows in blocks(pieces, on_corrupt="skip", on_skip=skip):
        check.files += rows.path != former and rows.path != pieces[0].place
        former = rows.path
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
        check.frames += sum(behind_a_door(row.payload or b"") is not None for row in records)


class Loss(NamedTuple):
    """Messages that were lost: by whom, why, how many, and how many times nobody knows how many."""

    kind: str
    name: str
    cause: str
    lost: int
    unknown: int


class Ledger:
    """The losses of journals, hubs and links."""

    def __init__(self) -> None:
        #: Messages that journals have recorded.
        self.recorded = 0
        #: Journals and hubs that were asked.
        self.sources = 0
        #: One for each source and cause.
        self.losses: list[Loss] = []

    def add_journal(self, directory: str | os.PathLike[str], check: Check | None = None) -> None:
        """Take over what :func:`verify` has found in a journal, or read it.

        Raises :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`.
        """
        check = verify(directory) if check is None else check
        self.sources += 1
        self.recorded += check.messages
        self._add("journal", os.fspath(directory), check.lost, check.unknown)

    def add_tree(self, hub: SeenHub) -> None:
        """Take over what a hub and those below it told."""
        name = hub.statistics.hub_id
        self.sources += 1
        self._add("hub", name, hub.statistics.lost)
        for link in filter(None, (hub.above, *(below.link for below in hub.below))):
            arrow = f"{name} \N{RIGHTWARDS ARROW} {link.hub or 'a hub'} {link.direction}"
            self._add("link", arrow, link.lost, {"uncertain": link.uncertain})
        for below in hub.below:
            if below.hub is not None:
                self.add_tree(below.hub)
            else:
                self._add("hub", below.link.hub or below.link.address or "below", {}, {NOT_ASKED + below.why: 1})

    def _add(self, kind: str, name: str, lost: Mapping[str, int], unknown: Mapping[str, int] | None = None) -> None:
        unknown = unknown or {}
        for cause in sorted({*lost, *unknown}):
            missing = lost.get(cause, 0), unknown.get(cause, 0)
            if any(missing):
                self.losses.append(Loss(kind, name, cause, *missing))

    def verdict(self) -> str:
        """Whether each message that is missing was counted by somebody, in one line."""
        lost = sum(loss.lost for loss in self.losses)
        told = f"{self.recorded:,} recorded, {lost:,} lost by known causes"
        causes = dict.fromkeys("".join(map(escape, loss.cause)) for loss in self.losses if loss.unknown)
        if not causes:
            return f"every message is accounted for: {told}"
        return f"not every message is accounted for: {told}, and nobody knows how many by {', '.join(_first(causes))}"


def _first(causes: Iterable[str], most: int = 5) -> Iterator[str]:
    for number, cause in enumerate(causes):
        if number == most:
            yield "others"
            return
        yield cause
