"""Compaction of a lake in place: one larger file in place of several small ones that adjoin.

**No row is ever in no file.** First the larger file is written, as any other: aside, and then renamed. Then those are
deleted whose rows it has, once they were found in it. So whoever is killed leaves at most rows that are in two files;
readers take the larger one (:mod:`.read_plan`), and the next compaction deletes the others.

**Readers look again.** A reader that comes to a file that was deleted meanwhile finds its rows where they are now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import lru_cache
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from ...errors import JournalError, JournalInUseError, SbusError
from ..format.layout import MESSAGE
from .journal_files import Sealed, absolute, filesystem_of, is_local, list_sealed, list_segments
from .parquet import sealed_batches
from .read_plan import RowRange
from .schema import SCHEMA
from .sealing import Failure, Written, attempt, lock_journal
from .selection import EVERYTHING
from .units import units

_IDENTITY = pyarrow.schema([SCHEMA.field("sequence"), SCHEMA.field("kind")])


def compact(
    lake: str | os.PathLike[str],
    *,
    progress: Callable[[Written], object] = lambda written: None,
) -> int:
    """Join small files of a lake that adjoin, of one hub and one day, and delete them. Returns how many were deleted.

    A journal whose rows another process is writing, and a file that is damaged, are left as they are; the first failure
    is raised once all else is done. Raises :exc:`~sbuslib.errors.JournalInUseError`,
    :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`.
    """
    place = absolute(lake)
    _check_lake(place)
    failures, deleted = list[Failure](), 0
    with ExitStack() as locks:
        # 1. Each journal that nobody else is at. What a killed process wrote aside is of no use.
        journals = {file.journal for file in list_sealed(place)}
        for journal in sorted(journals) if is_local(place) else ():
            if lock_journal(locks, place, journal):
                _remove_asides(place, journal)
            else:
                journals.remove(journal)
                error = JournalInUseError(f"{place}: rows of journal {journal} are being taken in just now")
                failures.append(Failure(place, error))

        # 2. The larger files.
        for unit in units(place, place, {})[0]:
            if unit.journal in journals and len(unit.row_ranges) > 1:
                for done in attempt(unit, "error"):
                    if isinstance(done, Written):
                        progress(done)
                    else:
                        failures.append(done)

        # 3. Then those in whose place they are, also after a kill.
        for file, within in _replaced(place, journals):
            for other in within:
                try:
                    deleted += _delete(other, file)
                except (SbusError, OSError) as error:
                    failures.append(Failure(place, error))
    if failures:
        raise failures[0].error
    return deleted


def _check_lake(place: str) -> None:
    """Raise :exc:`~sbuslib.errors.JournalError` for a journal: other programs may read its sealed files at any time."""
    folder, _, name = place.rpartition("/")
    if list_segments(place) or (name == "sealed" and list_segments(folder)):
        raise JournalError(f"{place}: this is of a journal, and no lake: take it into one with sbus journal ingest")


def _remove_asides(place: str, journal: str) -> None:
    for name in os.listdir(place):
        if name.startswith(f"_{journal}-") and name.endswith(".new"):
            with suppress(FileNotFoundError):
                os.unlink(f"{place}/{name}")


def _replaced(place: str, journals: set[str]) -> Iterator[tuple[Sealed, list[Sealed]]]:
    """Yield each file in whose range of rows others lie, and those."""
    files = [file for file in list_sealed(place) if file.journal in journals]
    outer: Sealed | None = None
    within = list[Sealed]()
    for file in sorted(files, key=lambda file: (file.journal, file.first, -file.last)):
        if outer is not None and file.journal == outer.journal and file.last <= outer.last:
            within.append(file)
            continue
        if outer is not None and within:
            yield outer, within
        outer, within = file, []
    if outer is not None and within:
        yield outer, within


def _delete(file: Sealed, larger: Sealed) -> bool:
    """Delete a file if a larger one has each of its rows; returns whether it has.

    Two files of the same rows stay: nothing says which of them is right.
    """
    if (file.first, file.last) == (larger.first, larger.last) or not numpy.isin(_rows(file), _rows(larger)).all():
        return False
    if is_local(file.path):
        os.unlink(file.path)
    else:
        filesystem, inside = filesystem_of(file.path)
        filesystem.delete_file(inside)
    return True


@lru_cache(2)  # many files lie within the range of one
def _rows(file: Sealed) -> Any:
    """A number for each row of a file: its own, doubled, and one more for a gap row. A damaged file raises."""
    whole = RowRange(file.journal, "", file.first, file.last + 1, file)
    table = pyarrow.Table.from_batches(sealed_batches(whole, _IDENTITY, EVERYTHING), _IDENTITY)
    is_gap = pyarrow.compute.not_equal(table.column("kind"), MESSAGE).to_numpy()
    return table.column("sequence").to_numpy() * 2 + is_gap
