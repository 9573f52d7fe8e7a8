"""The rows of a journal as blocks of columns, and one by one: out of segments and sealed files alike, with all gaps.

:func:`everything` is all of a directory, and :func:`blocks` gives the rows of that; :func:`read_records` gives them one
by one. What is missing comes as a gap row that stands in no file, of one of three causes: ``deleted``, ``damaged``, and
``cut`` at the end of a journal whose recorder was killed. The next recorder writes that one, under the same number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import CorruptJournalError, JournalError
from ..segments.decoding import OnCorrupt
from ..segments.directory import LOCK_NAME
from ..segments.layout import Record
from .pieces import Piece, instead, plan
from .places import Sealed, VanishedError, absolute
from .segment_rows import OnSkip, Rows, segment_rows
from .selection import EVERYTHING, Selection


def everything(directory: str | os.PathLike[str], wanted: Selection = EVERYTHING) -> list[Piece]:
    """The pieces of all journals in a directory or under a URI, one journal after the other.

    Raises :exc:`~sbuslib.errors.JournalError` if there is none. One into which nothing was recorded yet has no pieces.
    """
    place = absolute(directory)
    found = [piece for pieces in plan([place], wanted).values() for piece in pieces]
    if not found and not wanted.by_time and not os.path.exists(f"{place}/{LOCK_NAME}"):
        raise JournalError(f"{os.fspath(directory)}: there is no journal and no lake here")
    return found


def blocks(
    pieces: Iterable[Piece],
    wanted: Selection = EVERYTHING,
    *,
    on_corrupt: OnCorrupt = "error",
    on_skip: OnSkip = lambda path, skipped: None,
) -> Iterator[Rows]:
    """The rows in some pieces. Rows that are not ``wanted`` may be among them.

    With ``on_corrupt="skip"`` damage is told to ``on_skip``, and comes as a gap row. Else it raises
    :exc:`~sbuslib.errors.CorruptJournalError`. Raises :exc:`~sbuslib.errors.JournalError`.
    """

    def read(piece: Piece) -> Iterator[Rows]:
        if isinstance(piece.file, Sealed):
            from .parquet import sealed_rows  # only here, as it needs Arrow

            return sealed_rows(piece, wanted, on_corrupt, on_skip)
        return segment_rows(piece, on_corrupt, on_skip)

    return present(pieces, read)


def present(pieces: Iterable[Piece], read: Callable[[Piece], Iterator[Any]]) -> Iterator[Any]:
    """What ``read`` gives of each piece, or of what is in its place if its file has vanished."""
    for piece in pieces:
        try:
            yield from read(piece)
        except VanishedError:
            yield from present(instead(piece), read)


def read_records(
    directory: str | os.PathLike[str],
    wanted: Selection = EVERYTHING,
    *,
    on_corrupt: OnCorrupt = "error",
    on_skip: OnSkip = lambda path, skipped: None,
) -> Iterator[Record]:
    """The wanted rows one by one, messages and gaps. Slower than blocks by far; raises likewise."""
    for header, path, block in blocks(everything(directory, wanted), wanted, on_corrupt=on_corrupt, on_skip=on_skip):
        try:
            for row in block.records():
                if wanted.has(row.time_ns) and (row.key is None or wanted.wants(row.key, header.separator)):
                    yield row
        except CorruptJournalError as error:
            raise CorruptJournalError(error.reason, error.position, path) from None
