"""Read plan of a journal: the file of each row, and the rows that are missing.

Every reader calls :func:`plan`. It returns for each journal a list of ranges, in the order of their rows, without a
hole: parts of segments, sealed files or parts of them, and ranges of rows that are in no file.

**Names say which rows.** No file is opened, except a segment of which another file claims rows: the name of the next
one does not show numbers that were left out after a crash, see :func:`held`.

**Order of listing.** A sealer makes a sealed file first and deletes its segment later. So segments are listed first.
Where a sealed file has all rows of a segment, the segment is left out. A file that has vanished before it is read was
sealed meanwhile, or deleted: :func:`instead` finds the ranges in its place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf
from typing import NamedTuple

from ...errors import CorruptJournalError, JournalError
from ..format.decoding import OnCorrupt, is_empty, read_segment, walk
from ..format.directory import Segment, durable_sequence, is_recorded
from ..format.layout import SEGMENT_HEADER_BYTES, Block
from .journal_files import ListedSegment, Sealed, is_local, list_sealed, list_segments, looked_again, opened, sealed_of
from .selection import EVERYTHING, Selection

Known = Mapping[str, tuple[int, int]]
"""For segments, by their paths: the first row of a block, and the byte at which that block begins."""


class RowRange(NamedTuple):
    """Rows of a journal from number ``first`` to before ``before``: in a segment, in a sealed file, or missing.

    For the journal's last segment ``before`` may be ``None``: all rows that it has when it is read.
    """

    journal: str | None
    """The identity; ``None`` if no header has it."""
    place: str
    """Place to list again if the file is gone."""
    first: int
    before: int | None
    file: ListedSegment | Sealed | None
    """``None``: the rows are in no file."""
    following: int | None = None
    """For a segment: the number of the first row of the next one, if there is one."""
    is_killed: bool = False
    """For a last segment: no recorder is writing it, and it has no end mark."""
    known: tuple[int, int] | None = None
    """For a segment: a row that is not after ``first``, and the byte at which its block begins."""
    time_ns: int | None = None
    """For missing rows: the time of the row after them, if it is known."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size if self.file is not None else 0

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole of a sealed file."""
        return isinstance(self.file, Sealed) and (self.first, self.before) == (self.file.first, self.file.last + 1)


class Contents(NamedTuple):
    """The files of a place: its segments, whether the last may be growing, their journal, and the sealed files."""

    place: str
    segments: list[ListedSegment]
    is_growing: bool
    journal: str | None
    sealed: list[Sealed]


def contents(place: str) -> Contents:
    """List the files of a place. Raises :exc:`~sbuslib.errors.JournalError` if there is no directory."""
    # A recorder may begin or end during the listing: the last segment may be growing if it is there before or after.
    growing = is_local(place) and is_recorded(place)
    segments = list_segments(place)
    growing = growing or (is_local(place) and is_recorded(place))
    return Contents(place, segments, growing, _identity(segments), sealed_at(place))


def _identity(segments: Sequence[ListedSegment]) -> str | None:
    for segment in reversed(segments):
        with suppress(JournalError):
            return segment.header.journal
    return None


def sealed_at(place: str) -> list[Sealed]:
    """List the sealed files of a place.

    A listing that is made while one file takes the place of others may have neither, and the second of two new files
    without the first. So this lists until two listings are the same.
    """
    before: list[Sealed] | None = None
    while True:
        sealed = [file for each in (place, sealed_of(place)) for file in list_sealed(each)]
        if sealed == before:
            return sealed
        before = sealed


@looked_again
def plan(
    places: Sequence[str],
    wanted: Selection = EVERYTHING,
    *,
    durable_only: bool = False,
    first: Mapping[str, int] | None = None,
    known: Known | None = None,
) -> dict[str, list[RowRange]]:
    """Plan to read the journals in ``places``: ranges by journal, in the order of their rows.

    :param wanted: sealed files with no row of the wanted times are left out.
    :param durable_only: without rows that the recorder does not call durable yet.
    :param first: for journals, the number of the first wanted row. If that is gone, the plan begins with a missing
        range. Without this number, rows deleted before the first existing one are not reported.

    Raises :exc:`~sbuslib.errors.JournalError`.
    """
    claims = list[RowRange]()
    for place in dict.fromkeys(places):
        durable = durable_sequence(place) if durable_only and is_local(place) else None  # before the files are listed
        claims += _claims(contents(place), durable)
    return {
        journal: [
            _with_known(row_range, known or {})
            for row_range in _account(row_ranges, (first or {}).get(journal), wanted)
        ]
        for journal, row_ranges in _by_journal(claims).items()
    }


def plan_of(listing: Contents) -> dict[str, list[RowRange]]:
    """Plan to read all of a place whose files are listed already, as :func:`plan`.

    Raises :exc:`.journal_files.VanishedError` if a file is gone whose footer or mark is needed.
    """
    return {
        journal: _account(row_ranges, None, EVERYTHING) for journal, row_ranges in _by_journal(_claims(listing)).items()
    }


def _by_journal(claims: list[RowRange]) -> dict[str, list[RowRange]]:
    by_journal: dict[str, list[RowRange]] = {}
    for row_range in claims:
        by_journal.setdefault(row_range.journal or row_range.place, []).append(row_range)
    return dict(sorted(by_journal.items()))


def _claims(listing: Contents, durable: int | None = None) -> list[RowRange]:
    """Make a range for each file of a place, of the rows that its name claims."""
    place = listing.place
    row_ranges = [RowRange(file.journal, place, file.first, file.last + 1, file) for file in listing.sealed]
    for segment, later in pairwise(listing.segments):
        following = later.first_sequence
        row_ranges.append(RowRange(listing.journal, place, segment.first_sequence, following, segment, following))
    if not listing.segments or (listing.is_growing and listing.segments[-1].size <= SEGMENT_HEADER_BYTES):
        return row_ranges

    # The last segment: its mark, if it has one, has the next number.
    last = listing.segments[-1]
    before = _marked_end(last)
    is_killed = before is None and is_local(place) and not listing.is_growing
    if before is None and durable is not None:
        before = max(durable + 1, last.first_sequence)
    row_ranges.append(RowRange(listing.journal, place, last.first_sequence, before, last, None, is_killed))
    return row_ranges


def _marked_end(segment: ListedSegment) -> int | None:
    with suppress(JournalError):
        return None if segment.mark is None else segment.mark.next_sequence
    return None


def held(row_range: RowRange) -> RowRange:
    """Cut a segment's range to the rows that it really holds: one with a successor ends with its mark.

    Without a mark it is damaged, as reading it reports. Raises :exc:`.journal_files.VanishedError`.
    """
    if not isinstance(row_range.file, Segment) or row_range.following is None or row_range.before is None:
        return row_range
    end = _marked_end(row_range.file)
    return row_range if end is None else row_range._replace(before=min(row_range.before, end))


def _account(row_ranges: list[RowRange], first: int | None, wanted: Selection) -> list[RowRange]:
    """Choose ranges with each row from ``first`` on once, add missing ones, and leave out unwanted times."""
    asked = set[str]()
    while ask := _rivals(chosen := _ordered(row_ranges, first), row_ranges) - asked:
        # Then choose again: rows that a segment lacks may be in another file that seemed to be covered.
        asked |= ask
        row_ranges = [held(row_range) if _path(row_range) in ask else row_range for row_range in row_ranges]
    return [row_range for row_range in chosen if _may_be_wanted(row_range, wanted)]


def _rivals(chosen: list[RowRange], row_ranges: list[RowRange]) -> set[str]:
    """Find the segments of ``chosen`` ranges with rows that another of the ``row_ranges`` claims, too."""
    rivals, firsts = set[str](), [row_range.first for row_range in chosen]
    for row_range in row_ranges:
        at = max(0, bisect_right(firsts, row_range.first) - 1)
        while at < len(chosen) and (row_range.before is None or chosen[at].first < row_range.before):
            file = chosen[at].file
            claims = file is not None and file.path != _path(row_range) and (chosen[at].before or inf) > row_range.first
            if claims and isinstance(file, Segment):
                rivals.add(file.path)
            at += 1
    return rivals


def _path(row_range: RowRange) -> str | None:
    return None if row_range.file is None else row_range.file.path


def _ordered(row_ranges: list[RowRange], first: int | None) -> list[RowRange]:
    """Choose ranges. Each file is taken to have all rows of its range."""
    row_ranges = sorted(
        row_ranges,
        key=lambda row_range: (row_range.first, not isinstance(row_range.file, Sealed), -(row_range.before or inf)),
    )
    chosen: list[RowRange] = []
    for number, row_range in enumerate(row_ranges, 1):
        if row_range.before is None and number < len(row_ranges):  # a copy of a journal that has grown since
            row_range = row_range._replace(before=measure(row_range)[0], is_killed=False)

        # Nothing of it is new, or there is a hole before it.
        first = row_range.first if first is None else first
        if row_range.before is not None and row_range.before <= max(first, row_range.first):
            continue
        if row_range.first > first:
            chosen.append(
                RowRange(row_range.journal, row_range.place, first, row_range.first, None, time_ns=_time_of(row_range))
            )

        chosen.append(row_range._replace(first=max(first, row_range.first)))
        if row_range.before is None:
            break
        first = row_range.before
    return chosen


def _time_of(row_range: RowRange) -> int | None:
    if isinstance(row_range.file, Sealed):
        return row_range.file.start_ns
    with suppress(JournalError):
        assert row_range.file is not None
        return row_range.file.header.created_ns
    return None


def _may_be_wanted(row_range: RowRange, wanted: Selection) -> bool:
    if isinstance(row_range.file, Sealed):
        return wanted.overlaps(row_range.file.start_ns, row_range.file.end_ns)
    return row_range.file is not None or row_range.time_ns is None or wanted.has(row_range.time_ns)


def _with_known(row_range: RowRange, known: Known) -> RowRange:
    place = known.get(row_range.file.path) if row_range.file is not None else None
    return row_range if place is None or place[0] > row_range.first else row_range._replace(known=place)


def measure(
    row_range: RowRange, most: float = inf, before: float = inf, on_corrupt: OnCorrupt = "error"
) -> tuple[int, int]:
    """Find the row after the last whole block of a segment's range, and the byte at which it begins.

    Whole blocks count, from the one of the range's first row on: up to ``most`` rows, but at least one block, and no
    row from ``before`` on. Raises :exc:`~sbuslib.errors.JournalError`, also for damage that whole blocks come after.
    """
    assert isinstance(row_range.file, Segment)
    size, path = row_range.file.size, row_range.file.path
    row, at = row_range.known or (row_range.file.first_sequence, SEGMENT_HEADER_BYTES)
    with opened(path) as read_at:
        for extent in walk(read_at, size, row, at):
            if extent.rows is None:  # numbers may be left out before the mark's
                mark = row_range.file.mark
                return (row if mark is None else mark.next_sequence), at
            after = extent.first + extent.rows
            if after > before or (extent.first > row_range.first and after - row_range.first > most):
                return row, at
            row, at = after, extent.end
        if at >= size or is_empty(read_at, size):
            return row, at

        # Bytes of a block that is being written, or damage.
        salt = row_range.file.header.salt
        try:
            for item in read_segment(read_at, size, salt, row, at=at, on_corrupt=on_corrupt):
                if isinstance(item, Block):
                    row, at = item.next_sequence, item.end
        except CorruptJournalError as error:
            raise CorruptJournalError(error.reason, error.position, path) from None
    return row, at


def instead(row_range: RowRange) -> list[RowRange]:
    """Find the ranges in place of one whose file has vanished. Raises :exc:`~sbuslib.errors.JournalError`."""
    journal = row_range.journal or row_range.place
    others: list[RowRange] = []
    for other in plan([row_range.place], first={journal: row_range.first}).get(journal, []):
        if row_range.before is not None and other.first >= row_range.before:
            break
        before = other.before if row_range.before is None else min(other.before or row_range.before, row_range.before)
        others.append(other._replace(before=before))
    return others
