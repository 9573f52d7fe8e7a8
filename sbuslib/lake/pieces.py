"""The account of a journal's rows: in which file each stands, wherever that lies, and which are missing.

Every reader asks :func:`plan`. It gives for each journal a list of pieces, in the order of their rows, without a hole:
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
from .places import ListedSegment, Sealed, is_local, list_sealed, list_segments, looked_again, opened, sealed_of
from .selection import EVERYTHING, Selection

Known = Mapping[str, tuple[int, int]]
"""For segments, by their paths: a row, and the byte at which the block begins whose first row that is."""


_FETCHES = 16
"""Footers that are read at once where files are elsewhere."""


class Piece(NamedTuple):
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
) -> dict[str, list[Piece]]:
    """What there is to read of the journals in ``places``, by their identities, in the order of their rows.

    :param wanted: sealed files with no row of the wanted times are left out.
    :param durable_only: without rows that the recorder does not call durable yet.
    :param first: for journals, the number of the first row that is wanted; if it is gone, that is told. Else what was
        deleted before the first row that there is, is not told.

    Raises :exc:`~sbuslib.errors.JournalError`.
    """
    spans = list[Piece]()
    for place in dict.fromkeys(places):
        durable = durable_sequence(place) if durable_only and is_local(place) else None  # before the files are listed
        spans += _spans(contents(place), durable)
    return {
        journal: [_with_known(piece, known or {}) for piece in _account(pieces, (first or {}).get(journal), wanted)]
        for journal, pieces in _by_journal(spans).items()
    }


def plan_of(found: Contents) -> dict[str, list[Piece]]:
    """Everything in a place whose files are listed already, as :func:`plan` gives it.

    Raises :exc:`.places.VanishedError` where one of them is gone that is asked what it holds.
    """
    return {journal: _account(pieces, None, EVERYTHING) for journal, pieces in _by_journal(_spans(found)).items()}


def _by_journal(spans: list[Piece]) -> dict[str, list[Piece]]:
    found: dict[str, list[Piece]] = {}
    for piece in spans:
        found.setdefault(piece.journal or piece.place, []).append(piece)
    return dict(sorted(found.items()))


def _spans(found: Contents, durable: int | None = None) -> list[Piece]:
    """A piece for each file of a place."""
    place = found.place
    pieces = [Piece(one.journal, place, one.first, one.last + 1, one) for one in found.sealed]
    for segment, later in pairwise(found.segments):
        following = later.first_sequence
        pieces.append(Piece(found.journal, place, segment.first_sequence, following, segment, following))
    if not found.segments or (found.is_growing and found.segments[-1].size <= SEGMENT_HEADER_BYTES):
        return pieces

    # The last segment: a mark tells where it ends.
    last = found.segments[-1]
    before = _marked_end(last)
    is_killed = before is None and is_local(place) and not found.is_growing
    if before is None and durable is not None:
        before = max(durable + 1, last.first_sequence)
    pieces.append(Piece(found.journal, place, last.first_sequence, before, last, None, is_killed))
    return pieces


def _marked_end(segment: ListedSegment) -> int | None:
    with suppress(JournalError):
        return None if segment.mark is None else segment.mark.next_sequence
    return None


def held(piece: Piece) -> list[Piece]:
    """The parts of a file's piece whose rows it holds; all of it where that file is damaged, as reading it tells.

    Raises :exc:`.places.VanishedError`, and :exc:`~sbuslib.errors.StateError` where pyarrow is missing.
    """
    # 1. A segment that others come after ends with its mark. Without one it is damaged.
    if isinstance(piece.file, Segment):
        end = _marked_end(piece.file) if piece.following is not None else None
        return [piece if end is None or piece.before is None else piece._replace(before=min(piece.before, end))]
    if piece.file is None:
        return [piece]

    # 2. A sealed file.
    from .footer import footer_of  # only here, as it needs Arrow

    try:
        spans = footer_of(piece.file).spans
    except CorruptJournalError:
        return [piece]
    assert piece.before is not None
    parts = [(max(span.first, piece.first), min(span.before, piece.before), span.time_ns) for span in spans]
    return [
        piece._replace(first=first, before=before, time_ns=time_ns)
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


def _account(pieces: list[Piece], first: int | None, wanted: Selection) -> list[Piece]:
    """The pieces that have each row from ``first`` on once, and those for rows that none has, without unwanted times.

    Files are asked what they hold where that matters: where another one claims some of their rows, too, and sealed ones
    that are read.
    """
    asked = set[str]()
    while True:
        found = _ordered(pieces, first)
        rivals = _rivals(found, pieces)
        ask = {
            piece.file.path: piece.file
            for piece in found
            if piece.file is not None
            and piece.file.path not in asked
            and (piece.file.path in rivals or (isinstance(piece.file, Sealed) and _may_be_wanted(piece, wanted)))
        }
        if not ask:
            return [piece for piece in found if _may_be_wanted(piece, wanted)]

        # Then look again: what a file does not hold may be in one that seemed to be covered.
        _fetch_footers([file for file in ask.values() if isinstance(file, Sealed)])
        asked.update(ask)
        pieces = [part for piece in pieces for part in (held(piece) if _path(piece) in ask else [piece])]


def _rivals(found: list[Piece], pieces: list[Piece]) -> set[str]:
    """The files of those of the ``found`` pieces that have rows which another of the ``pieces`` claims, too."""
    rivals, firsts = set[str](), [piece.first for piece in found]
    for piece in pieces:
        at = max(0, bisect_right(firsts, piece.first) - 1)
        while at < len(found) and (piece.before is None or found[at].first < piece.before):
            file = found[at].file
            if file is not None and file.path != _path(piece) and (found[at].before or inf) > piece.first:
                rivals.add(file.path)
            at += 1
    return rivals


def _path(piece: Piece) -> str | None:
    return None if piece.file is None else piece.file.path


def _fetch_footers(files: list[Sealed]) -> None:
    """Read the footers of files elsewhere, many at a time, as each takes as long as the way there."""
    far = [file for file in files if not is_local(file.path)]
    if len(far) > 1:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_FETCHES) as pool:
            for done in [pool.submit(held, Piece(file.journal, "", file.first, file.last + 1, file)) for file in far]:
                done.result()


def _ordered(pieces: list[Piece], first: int | None) -> list[Piece]:
    """The same, where each piece has all rows that it claims."""
    pieces = sorted(pieces, key=lambda piece: (piece.first, not isinstance(piece.file, Sealed), -(piece.before or inf)))
    found: list[Piece] = []
    for number, piece in enumerate(pieces, 1):
        if piece.before is None and number < len(pieces):  # a copy of a journal that has grown since
            piece = piece._replace(before=measure(piece)[0], is_killed=False)

        # Nothing of it is new, or there is a hole before it.
        first = piece.first if first is None else first
        if piece.before is not None and piece.before <= max(first, piece.first):
            continue
        if piece.first > first:
            found.append(Piece(piece.journal, piece.place, first, piece.first, None, time_ns=_time_of(piece)))

        found.append(piece._replace(first=max(first, piece.first)))
        if piece.before is None:
            break
        first = piece.before
    return found


def _time_of(piece: Piece) -> int | None:
    if isinstance(piece.file, Sealed):
        return piece.time_ns if piece.time_ns is not None else piece.file.start_ns
    with suppress(JournalError):
        assert piece.file is not None
        return piece.file.header.created_ns
    return None


def _may_be_wanted(piece: Piece, wanted: Selection) -> bool:
    if isinstance(piece.file, Sealed):
        return wanted.overlaps(piece.file.start_ns, piece.file.end_ns)
    return piece.file is not None or piece.time_ns is None or wanted.has(piece.time_ns)


def _with_known(piece: Piece, known: Known) -> Piece:
    place = known.get(piece.file.path) if piece.file is not None else None
    return piece if place is None or place[0] > piece.first else piece._replace(known=place)


def measure(piece: Piece, most: float = inf, before: float = inf, on_corrupt: OnCorrupt = "error") -> tuple[int, int]:
    """The row after the last whole block of a segment's piece, and the byte at which it stands.

    Whole blocks count, from the one of the piece's first row on: up to ``most`` rows, but at least one block, and no
    row from ``before`` on. Raises :exc:`~sbuslib.errors.JournalError`, also for damage that whole blocks come after.
    """
    assert isinstance(piece.file, Segment)
    size, path = piece.file.size, piece.file.path
    row, at = piece.known or (piece.file.first_sequence, SEGMENT_HEADER_BYTES)
    with opened(path) as read_at:
        for extent in walk(read_at, size, row, at):
            if extent.rows is None:  # the mark tells the next number, as some may be left out
                mark = piece.file.mark
                return (row if mark is None else mark.next_sequence), at
            after = extent.first + extent.rows
            if after > before or (extent.first > piece.first and after - piece.first > most):
                return row, at
            row, at = after, extent.end
        if at >= size or is_empty(read_at, size):
            return row, at

        # Bytes of a block that is being written, or damage.
        salt = piece.file.header.salt
        try:
            for item in read_segment(read_at, size, salt, row, at=at, on_corrupt=on_corrupt):
                if isinstance(item, Block):
                    row, at = item.next_sequence, item.end
        except CorruptJournalError as error:
            raise CorruptJournalError(error.reason, error.position, path) from None
    return row, at


def instead(piece: Piece) -> list[Piece]:
    """What there is in place of a piece whose file has vanished. Raises :exc:`~sbuslib.errors.JournalError`."""
    journal = piece.journal or piece.place
    found: list[Piece] = []
    for other in plan([piece.place], first={journal: piece.first}).get(journal, []):
        if piece.before is not None and other.first >= piece.before:
            break
        before = other.before if piece.before is None else min(other.before or piece.before, piece.before)
        found.append(other._replace(before=before))
    return found
