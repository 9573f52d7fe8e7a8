"""The account of a journal's rows: in which file each stands, wherever that lies, and which are missing.

Every reader asks :func:`plan`. It gives for each journal a list of ranges, in the order of their rows, without a hole:
parts of segments, sealed files or parts of them, and ranges of rows that are in no file. It opens no segment unless
another file claims rows of it, and of sealed files the footers.

**A file has only what it holds.** Names are where this begins, and what a file does not hold, whatever its name says,
is looked for in the other files: see :func:`held`.

**The seam.** A sealer makes a sealed file first and deletes its segment later. So segments are listed first. Where a
sealed file has all rows of a segment, the segment is left out. A file that has vanished when it is to be read was
sealed meanwhile, or deleted: :func:`instead` says what there is in its place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf
from typing import NamedTuple

from ..errors import CorruptJournalError, JournalError
from ..segments.decoding import OnCorrupt, is_empty, read_segment, walk
from ..segments.directory import Segment, durable_sequence, is_recorded
from ..segments.layout import SEGMENT_HEADER_BYTES, Block
from .files import ListedSegment, Sealed, is_local, list_sealed, list_segments, looked_again, opened, sealed_of
from .selection import EVERYTHING, Selection

Known = Mapping[str, tuple[int, int]]
"""For segments, by their paths: a row, and the byte at which the block begins whose first row that is."""


_FETCHES = 16
"""Footers that are read at once where files are elsewhere."""


class RowRange(NamedTuple):
    """The rows of a journal from number ``first`` to before ``before``: in a segment, in a sealed file, or missing.

    Of the journal's last segment ``before`` may be ``None``: all rows that it has when it is read.
    """

    journal: str | None
    """The identity; ``None`` if no header tells it."""
    place: str
    """Where to look again if the file is gone."""
    first: int
    before: int | None
    file: ListedSegment | Sealed | None
    """``None``: the rows are in no file."""
    following: int | None = None
    """Of a segment: the number with which the next one begins, if there is one."""
    is_killed: bool = False
    """Of a last segment: nobody records into it."""
    known: tuple[int, int] | None = None
    """Of a segment: a row that is not after ``first``, and the byte at which its block begins."""
    time_ns: int | None = None
    """If known: of missing rows, the time of what comes after them; of a part of a sealed file, of its first row."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size if self.file is not None else 0

    @property
    def is_whole(self) -> bool:
        """Whether this is all of a sealed file."""
        return isinstance(self.file, Sealed) and (self.first, self.before) == (self.file.first, self.file.last + 1)


class Contents(NamedTuple):
    """The files of a place: its segments, whether the last may be growing, their journal, and the sealed files."""

    place: str
    segments: list[ListedSegment]
    is_growing: bool
    journal: str | None
    sealed: list[Sealed]


def contents(place: str) -> Contents:
    """The files of a place. Raises :exc:`~sbuslib.errors.JournalError` if there is no directory."""
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
    """The sealed files of a place.

    Of two files that a sealer makes meanwhile, one listing may have the second alone. So where something is missing
    between two, this lists until two listings are the same.
    """
    before: list[Sealed] | None = None
    while True:
        found = [one for each in (place, sealed_of(place)) for one in list_sealed(each)]
        holes = any(one.journal == other.journal and other.first > one.last + 1 for one, other in pairwise(found))
        if not holes or found == before:
            return found
        before = found


@looked_again
def plan(
    places: Sequence[str],
    wanted: Selection = EVERYTHING,
    *,
    durable_only: bool = False,
    first: Mapping[str, int] | None = None,
    known: Known | None = None,
) -> dict[str, list[RowRange]]:
    """What there is to read of the journals in ``places``, by their identities, in the order of their rows.

    :param wanted: sealed files with no row of the wanted times are left out.
    :param durable_only: without rows that the recorder does not call durable yet.
    :param first: for journals, the number of the first row that is wanted; if it is gone, that is told. Else what was
        deleted before the first row that there is, is not told.

    Raises :exc:`~sbuslib.errors.JournalError`.
    """
    spans = list[RowRange]()
    for place in dict.fromkeys(places):
        durable = durable_sequence(place) if durable_only and is_local(place) else None  # before the files are listed
        spans += _spans(contents(place), durable)
    return {
        journal: [
            _with_known(row_range, known or {})
            for row_range in _account(row_ranges, (first or {}).get(journal), wanted)
        ]
        for journal, row_ranges in _by_journal(spans).items()
    }


def plan_of(found: Contents) -> dict[str, list[RowRange]]:
    """Everything in a place whose files are listed already, as :func:`plan` gives it.

    Raises :exc:`.files.VanishedError` where one of them is gone that is asked what it holds.
    """
    return {
        journal: _account(row_ranges, None, EVERYTHING) for journal, row_ranges in _by_journal(_spans(found)).items()
    }


def _by_journal(spans: list[RowRange]) -> dict[str, list[RowRange]]:
    found: dict[str, list[RowRange]] = {}
    for row_range in spans:
        found.setdefault(row_range.journal or row_range.place, []).append(row_range)
    return dict(sorted(found.items()))


def _spans(found: Contents, durable: int | None = None) -> list[RowRange]:
    """A range for each file of a place."""
    place = found.place
    row_ranges = [RowRange(one.journal, place, one.first, one.last + 1, one) for one in found.sealed]
    for segment, later in pairwise(found.segments):
        following = later.first_sequence
        row_ranges.append(RowRange(found.journal, place, segment.first_sequence, following, segment, following))
    if not found.segments or (found.is_growing and found.segments[-1].size <= SEGMENT_HEADER_BYTES):
        return row_ranges

    # The last segment: a mark tells where it ends.
    last = found.segments[-1]
    before = _marked_end(last)
    is_killed = before is None and is_local(place) and not found.is_growing
    if before is None and durable is not None:
        before = max(durable + 1, last.first_sequence)
    row_ranges.append(RowRange(found.journal, place, last.first_sequence, before, last, None, is_killed))
    return row_ranges


def _marked_end(segment: ListedSegment) -> int | None:
    with suppress(JournalError):
        return None if segment.mark is None else segment.mark.next_sequence
    return None


def held(row_range: RowRange) -> list[RowRange]:
    """The parts of a file's range whose rows it holds; all of it where that file is damaged, as reading it tells.

    Raises :exc:`.files.VanishedError`, and :exc:`~sbuslib.errors.StateError` where pyarrow is missing.
    """
    # 1. A segment that others come after ends with its mark. Without one it is damaged.
    if isinstance(row_range.file, Segment):
        end = _marked_end(row_range.file) if row_range.following is not None else None
        return [
            row_range
            if end is None or row_range.before is None
            else row_range._replace(before=min(row_range.before, end))
        ]
    if row_range.file is None:
        return [row_range]

    # 2. A sealed file.
    from .footer import footer_of  # only here, as it needs Arrow

    try:
        spans = footer_of(row_range.file).spans
    except CorruptJournalError:
        return [row_range]
    assert row_range.before is not None
    parts = [(max(span.first, row_range.first), min(span.before, row_range.before), span.time_ns) for span in spans]
    return [
        row_range._replace(first=first, before=before, time_ns=time_ns)
        for first, before, time_ns in parts
        if first < before
    ]


def unsaid(file: Sealed) -> tuple[tuple[int, int], ...]:
    """The rows that the name of a sealed file says, from the first number to before the second, and it does not hold.

    Of a damaged file nothing is known. Raises as :func:`held`.
    """
    from .footer import footer_of  # likewise

    with suppress(CorruptJournalError):
        return footer_of(file).unsaid
    return ()


def _account(row_ranges: list[RowRange], first: int | None, wanted: Selection) -> list[RowRange]:
    """The ranges that have each row from ``first`` on once, and those for rows that none has, without unwanted times.

    Files are asked what they hold where that matters: where another one claims some of their rows, too, and sealed ones
    that are read.
    """
    asked = set[str]()
    while True:
        found = _ordered(row_ranges, first)
        rivals = _rivals(found, row_ranges)
        ask = {
            row_range.file.path: row_range.file
            for row_range in found
            if row_range.file is not None
            and row_range.file.path not in asked
            and (
                row_range.file.path in rivals
                or (isinstance(row_range.file, Sealed) and _may_be_wanted(row_range, wanted))
            )
        }
        if not ask:
            return [row_range for row_range in found if _may_be_wanted(row_range, wanted)]

        # Then look again: what a file does not hold may be in one that seemed to be covered.
        _fetch_footers([file for file in ask.values() if isinstance(file, Sealed)])
        asked.update(ask)
        row_ranges = [
            part for row_range in row_ranges for part in (held(row_range) if _path(row_range) in ask else [row_range])
        ]


def _rivals(found: list[RowRange], row_ranges: list[RowRange]) -> set[str]:
    """The files of those of the ``found`` ranges that have rows which another of the ``row_ranges`` claims, too."""
    rivals, firsts = set[str](), [row_range.first for row_range in found]
    for row_range in row_ranges:
        at = max(0, bisect_right(firsts, row_range.first) - 1)
        while at < len(found) and (row_range.before is None or found[at].first < row_range.before):
            file = found[at].file
            if file is not None and file.path != _path(row_range) and (found[at].before or inf) > row_range.first:
                rivals.add(file.path)
            at += 1
    return rivals


def _path(row_range: RowRange) -> str | None:
    return None if row_range.file is None else row_range.file.path


def _fetch_footers(files: list[Sealed]) -> None:
    """Read the footers of files elsewhere, many at a time, as each takes as long as the way there."""
    far = [file for file in files if not is_local(file.path)]
    if len(far) > 1:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_FETCHES) as pool:
            for done in [
                pool.submit(held, RowRange(file.journal, "", file.first, file.last + 1, file)) for file in far
            ]:
                done.result()


def _ordered(row_ranges: list[RowRange], first: int | None) -> list[RowRange]:
    """The same, where each range has all rows that it claims."""
    row_ranges = sorted(
        row_ranges,
        key=lambda row_range: (row_range.first, not isinstance(row_range.file, Sealed), -(row_range.before or inf)),
    )
    found: list[RowRange] = []
    for number, row_range in enumerate(row_ranges, 1):
        if row_range.before is None and number < len(row_ranges):  # a copy of a journal that has grown since
            row_range = row_range._replace(before=measure(row_range)[0], is_killed=False)

        # Nothing of it is new, or there is a hole before it.
        first = row_range.first if first is None else first
        if row_range.before is not None and row_range.before <= max(first, row_range.first):
            continue
        if row_range.first > first:
            found.append(
                RowRange(row_range.journal, row_range.place, first, row_range.first, None, time_ns=_time_of(row_range))
            )

        found.append(row_range._replace(first=max(first, row_range.first)))
        if row_range.before is None:
            break
        first = row_range.before
    return found


def _time_of(row_range: RowRange) -> int | None:
    if isinstance(row_range.file, Sealed):
        return row_range.time_ns if row_range.time_ns is not None else row_range.file.start_ns
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
    """The row after the last whole block of a segment's range, and the byte at which it stands.

    Whole blocks count, from the one of the range's first row on: up to ``most`` rows, but at least one block, and no
    row from ``before`` on. Raises :exc:`~sbuslib.errors.JournalError`, also for damage that whole blocks come after.
    """
    assert isinstance(row_range.file, Segment)
    size, path = row_range.file.size, row_range.file.path
    row, at = row_range.known or (row_range.file.first_sequence, SEGMENT_HEADER_BYTES)
    with opened(path) as read_at:
        for extent in walk(read_at, size, row, at):
            if extent.rows is None:  # the mark tells the next number, as some may be left out
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
    """What there is in place of a range whose file has vanished. Raises :exc:`~sbuslib.errors.JournalError`."""
    journal = row_range.journal or row_range.place
    found: list[RowRange] = []
    for other in plan([row_range.place], first={journal: row_range.first}).get(journal, []):
        if row_range.before is not None and other.first >= row_range.before:
            break
        before = other.before if row_range.before is None else min(other.before or row_range.before, row_range.before)
        found.append(other._replace(before=before))
    return found
