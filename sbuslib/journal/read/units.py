"""Units of sealing: rows that a place has and a target lacks, grouped into future files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import inf
from typing import NamedTuple, TypeAlias

from ...errors import CorruptJournalError
from ..format.decoding import OnCorrupt, is_empty
from ..format.directory import Segment
from .journal_files import Sealed, list_sealed, looked_again, opened
from .read_plan import Contents, RowRange, contents, held, measure, plan_of

UNIT_BYTES = 64_000_000
"""Bytes of segments that make one file: a segment of a recorder's default size is enough by itself."""

SMALL_BYTES = 4_000_000
"""Bytes below which a sealed file is joined with those beside it. To open larger ones costs readers little time, and to
write them again each time would cost more."""

_DAY_NS = 86_400_000_000_000

There: TypeAlias = "dict[str, list[RowRange]]"
"""Ranges of journals in a target, or soon to be there, by the journals' identities."""


class Unit(NamedTuple):
    """Rows that become one sealed file in ``target``: parts of segments, a sealed file, or a part of one.

    ``place`` is their source. ``journal`` is ``None`` where a damaged header hides it.
    """

    place: str
    journal: str | None
    row_ranges: tuple[RowRange, ...]
    target: str


def listed(target: str) -> There:
    """List the ranges in ``target``, by the names of its files."""
    there: There = {}
    for file in list_sealed(target):
        there.setdefault(file.journal, []).append(RowRange(file.journal, target, file.first, file.last + 1, file))
    return there


def _without(row_range: RowRange, there: Iterable[RowRange]) -> Iterator[RowRange]:
    """Yield the parts of a range whose rows none of the others holds."""
    assert row_range.before is not None
    first, before = row_range.first, row_range.before
    others = [
        (other.first, min(before, other.before or before))
        for other in there
        if other.first < before and first < (other.before or inf)
    ]

    for start, end in sorted(others):
        if end > first and start < before:
            if start > first:
                yield row_range._replace(first=first, before=start)
            first = end
    if first < before:
        yield row_range._replace(first=first)


@looked_again
def units(
    place: str, target: str, there: There, *, open_too: bool = False, on_corrupt: OnCorrupt = "error"
) -> tuple[list[Unit], Contents]:
    """Group the rows of the journals at ``place`` that ``there`` lacks into units for ``target``. Also lists the files.

    Consecutive segments, and sealed files of less than :data:`SMALL_BYTES`, become one unit until they are
    :data:`UNIT_BYTES` or more, if they are of one hub, begun on one day (in UTC), and adjoin: a file never spans rows
    that it does not hold. A last segment with a damaged header is a unit by itself, which cannot be written.

    :param open_too: also the whole blocks of the segment that a recorder is writing.

    Raises :exc:`~sbuslib.errors.JournalError`.
    """
    listing, made = contents(place), list[Unit]()
    # The kind of the last unit's files: see :func:`_kind`.
    former: object = None

    for journal, row_ranges in plan_of(listing).items():
        for row_range in row_ranges:
            if why_unknown(row_range):
                made.append(Unit(place, row_range.journal, (row_range,), target))
                former = None
                continue
            for part in _new_parts(row_range, there.get(journal, ()), open_too, on_corrupt):
                kind = _kind(part)
                adjoins = kind == former and made[-1].row_ranges[-1].before == part.first
                if adjoins and sum(row_range.size for row_range in made[-1].row_ranges) < UNIT_BYTES:
                    made[-1] = made[-1]._replace(row_ranges=(*made[-1].row_ranges, part))
                else:
                    made.append(Unit(place, journal, (part,), target))
                former = kind
    return made, listing


def _new_parts(
    row_range: RowRange, there: Iterable[RowRange], open_too: bool, on_corrupt: OnCorrupt
) -> Iterator[RowRange]:
    """Yield the parts of a range with rows that are not there."""
    if row_range.file is None or row_range.journal is None or (row_range.before is None and not open_too):
        return
    before = row_range.before if row_range.before is not None else measure(row_range, on_corrupt=on_corrupt)[0]
    yield from _without(held(row_range._replace(before=before, is_killed=False)), there)


def why_unknown(row_range: RowRange) -> str:
    """Reason why the journal of a segment's rows, or their number, is unknown; empty if both are known."""
    if not isinstance(row_range.file, Segment) or (row_range.journal is not None and row_range.before is not None):
        return ""
    try:
        _ = row_range.file.header
    except CorruptJournalError as error:
        with opened(row_range.file.path) as read_at:
            is_cut = is_empty(read_at, row_range.file.size)  # a crash left none
        return "" if is_cut else f"{error}: its rows are unknown"
    return ""


def _kind(row_range: RowRange) -> object:
    """Kind of a range: equal for files that may become one."""
    from .footer import footer_of  # only here, as it needs Arrow

    file = row_range.file
    with suppress(CorruptJournalError):
        if isinstance(file, Segment):
            header = file.header
            return header.hub, header.separator, header.created_ns // _DAY_NS
        if isinstance(file, Sealed) and file.size < SMALL_BYTES:
            header = footer_of(file).header
            return header.hub, header.separator, file.start_ns // _DAY_NS
    return object()
