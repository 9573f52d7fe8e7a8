"""Sealing of journals: rewrites ended segments as Parquet files that never change. A lake is a directory of them.

**The name is the transaction.** A file is named by its journal, its first and its last row. It is written aside, synced
and renamed. So the name of a sealed file is the only record that its rows are sealed. A sealer that was killed leaves
at most the file that it wrote aside, which the next one overwrites.

**No file is ever changed.** Small segments that wait together, and small sealed files that are copied together, become
one file: see :func:`.units.units`. In a lake, :mod:`.compaction` puts one file in place of several.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any, BinaryIO, NamedTuple

import pyarrow
import pyarrow.parquet

from ...errors import CorruptJournalError, JournalError, JournalInUseError, SbusError, UsageError
from ...kernel.defaults import temporary_folder
from ...kernel.regular_files import make_folder, open_regular
from ..format.decoding import OnCorrupt
from ..format.directory import DirectoryLock, Segment, rename_durably
from ..format.layout import SegmentHeader
from ..format.recovery import DELETED
from .arrow_batches import batches
from .footer import footer_of
from .journal_files import (
    Sealed,
    VanishedError,
    absolute,
    filesystem_of,
    is_local,
    list_segments,
    sealed_name,
    sealed_of,
)
from .parquet import check, crc_of
from .read_plan import RowRange, instead
from .retention import retire
from .schema import DELTAS, DICTIONARIES, SCHEMA
from .selection import EVERYTHING
from .units import Unit, listed, units, why_unknown

SCHEMA_VERSION = 1

_GROUP_ROWS = 131_072
_GROUP_BYTES = 33_554_432
"""Rows of a row group, and their bytes: some megabytes once compressed, and little enough to have in memory."""

FOLLOW_SECONDS = 10.0
"""Polling interval for segments that have ended. Each poll takes a few milliseconds."""


class Written(NamedTuple):
    """A new sealed file: its name, the number of its rows (messages and gaps), and its bytes."""

    name: str
    rows: int
    bytes: int


class Failure(NamedTuple):
    """Rows of the journal at ``place`` could not be sealed."""

    place: str
    error: SbusError | OSError


# -- one file -------------------------------------------------------------------------------------------


def write(unit: Unit, on_corrupt: OnCorrupt = "error") -> Written:
    """Make a sealed file. Raises :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`, and leaves nothing then."""
    if unit.journal is None or unit.row_ranges[0].before is None:
        raise JournalError(why_unknown(unit.row_ranges[0]) or f"{unit.place}: its last segment was repaired meanwhile")
    filesystem, folder = _make_place(unit.target)
    with ExitStack() as undo:
        beside = (
            folder if is_local(unit.target) else undo.enter_context(tempfile.TemporaryDirectory(dir=temporary_folder()))
        )
        aside = f"{beside}/_{unit.journal}-{unit.row_ranges[0].first:020d}.new"
        undo.callback(_remove, aside)

        # 1. The file, aside. A sealer that was killed may have left one.
        _remove(aside)
        begin, rows, name = unit.row_ranges[0], 0, ""
        if len(unit.row_ranges) == 1 and begin.is_whole and isinstance(begin.file, Sealed):
            with suppress(VanishedError):
                rows, name = _copy(begin.file, aside), begin.file.name
        if not name:
            rows, times = _write(unit, aside, on_corrupt)
            last = (unit.row_ranges[-1].before or 0) - 1
            crc = crc_of(aside)
            name = sealed_name(unit.journal, begin.first, last, times, crc)
        size = os.stat(aside).st_size

        # 2. Under its name, once it is whole.
        if is_local(unit.target):
            rename_durably(aside, f"{folder}/{name}")
        else:
            with filesystem.open_output_stream(f"{folder}/{name}") as sink:
                crc_of(aside, sink.write)
    return Written(name, rows, size)


def _make_place(target: str) -> tuple[Any, str]:
    """Make a folder for sealed files, for this user alone unless it is there. Returns its file system and path there.

    Raises :exc:`~sbuslib.errors.JournalError`, :exc:`~sbuslib.errors.StateError` and :exc:`OSError`.
    """
    filesystem, folder = filesystem_of(target)
    if is_local(target):
        make_folder(folder)
    else:
        filesystem.create_dir(folder, recursive=True)
    return filesystem, folder


def _open_aside(path: str) -> BinaryIO:
    """Make the file that is written aside. Those who may read its folder may read it."""
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    file = os.fdopen(descriptor, "wb")
    os.fchmod(descriptor, stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) & 0o666)
    return file


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _copy(source: Sealed, aside: str) -> int:
    """Copy a sealed file. Returns the number of its rows. Raises as :func:`write`, also where the CRC is wrong."""
    with _open_aside(aside) as file:
        check(source, file.write)
    return int(pyarrow.parquet.read_metadata(aside).num_rows)


def _write(unit: Unit, aside: str, on_corrupt: OnCorrupt) -> tuple[int, tuple[int, int]]:
    """Write the rows of a unit as Parquet. Returns their number, and their earliest and latest time."""
    from pyarrow.compute import equal, min_max

    first, last = unit.row_ranges[0].first, (unit.row_ranges[-1].before or 0) - 1
    header = _header(unit.row_ranges[0])
    metadata: dict[str | bytes, str | bytes] = {"sbus.schema": str(SCHEMA_VERSION), "sbus.journal": unit.journal or ""}
    metadata |= {"sbus.first": str(first), "sbus.last": str(last), "sbus.hub": header.hub}
    metadata |= {"sbus.separator": header.separator}
    with (
        _open_aside(aside) as file,
        pyarrow.parquet.ParquetWriter(
            file,
            SCHEMA.with_metadata(metadata),
            compression="zstd",
            compression_level=1,
            use_dictionary=DICTIONARIES,
            column_encoding=dict.fromkeys(DELTAS, "DELTA_BINARY_PACKED"),
            write_page_index=True,
            write_page_checksum=True,
        ) as writer,
    ):
        total = rows = size = 0
        times: list[int] = []
        group: list[Any] = []
        for batch in batches(unit.row_ranges, SCHEMA, EVERYTHING, on_corrupt):
            if equal(batch.column("cause"), DELETED).true_count:  # meanwhile; the next run finds other units
                raise JournalError(f"{unit.place}: rows were deleted before they were sealed")
            group.append(batch)
            times += min_max(batch.column("time_ns")).as_py().values()
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
                writer.write_table(pyarrow.Table.from_batches(group))
                total, rows, size = total + rows, 0, 0
                group.clear()
        if group:
            writer.write_table(pyarrow.Table.from_batches(group))
    return total + rows, (min(times, default=0), max(times, default=0))


def _header(row_range: RowRange) -> SegmentHeader:
    """Hub and separator of a range; defaults where its header is damaged or its rows are deleted."""
    try:
        if isinstance(row_range.file, Segment):
            return row_range.file.header
        if isinstance(row_range.file, Sealed):
            return footer_of(row_range.file).header
    except VanishedError:
        for other in instead(row_range):
            return _header(other)
    except CorruptJournalError:
        pass
    return SegmentHeader(row_range.journal or "", "", b"/", 0, row_range.first, 0)


def attempt(unit: Unit, on_corrupt: OnCorrupt) -> list[Written | Failure]:
    """Make a sealed file, or return the failure.

    Where one of several files is damaged, those before and after it become files of their own.
    """
    try:
        return [write(unit, on_corrupt)]
    except (SbusError, OSError) as error:
        results: list[Written | Failure] = [Failure(unit.place, error)]
        path = error.path if isinstance(error, CorruptJournalError) else ""

    at = next((at for at, part in enumerate(unit.row_ranges) if part.file is not None and part.file.path == path), None)
    parts = () if at is None else (unit.row_ranges[:at], unit.row_ranges[at + 1 :])
    for row_ranges in filter(None, parts):
        results += attempt(unit._replace(row_ranges=row_ranges), on_corrupt)
    return results


def _attempt_all(pending: list[Unit], on_corrupt: OnCorrupt) -> Iterator[Written | Failure]:
    return (done for unit in pending for done in attempt(unit, on_corrupt))


# -- a journal ------------------------------------------------------------------------------------------


def seal(
    directory: str | os.PathLike[str],
    *,
    on_corrupt: OnCorrupt = "error",
    progress: Callable[[Written], object] = lambda written: None,
) -> int:
    """Seal the ended segments of the journal in a local directory, and delete them. Returns the number of new files.

    One sealer a journal at a time: others wait for it. A damaged segment stays, and the first failure is raised once
    all others are sealed. Raises :exc:`~sbuslib.errors.UsageError`, :exc:`~sbuslib.errors.JournalError` and
    :exc:`OSError`.
    """
    place = absolute(directory)
    if not is_local(place):
        raise UsageError(f"{place}: a journal is sealed where it is recorded, in a local directory")
    list_segments(place)  # raises where there is no directory

    # The sealer of a recorder that was killed may still be at work: wait for its end.
    with closing(DirectoryLock(place, "sealer.lock", wait=True)):
        target = sealed_of(place)
        pending, listing = units(place, target, listed(target), on_corrupt=on_corrupt)
        made, failures = 0, list[Failure]()
        for done in _attempt_all(pending, on_corrupt):
            if isinstance(done, Written):
                made += 1
                progress(done)
            else:
                failures.append(done)

        # Segments are deleted whose rows are all sealed now, whatever became of the others.
        retire(listing)
        if failures:
            raise failures[0].error
        return made


# -- a lake ---------------------------------------------------------------------------------------------


def ingest(
    journals: Sequence[str | os.PathLike[str]],
    lake: str | os.PathLike[str],
    *,
    follow: bool = False,
    stop: threading.Event | None = None,
    on_corrupt: OnCorrupt = "error",
    progress: Callable[[Written], object] = lambda written: None,
    failed: Callable[[Failure], object] | None = None,
    run: Callable[[list[Unit], OnCorrupt], Iterable[Written | Failure]] = _attempt_all,
) -> None:
    """Copy the rows of journals that a lake does not hold yet into the lake, a directory of sealed files, each once.

    Sealed files are checked and copied, small ones joined. Rows of segments are written as larger files at once.

    :param journals: directories or URIs of journals, and of sealed files.
    :param lake: a directory or URI, made if it is not there. On a cluster, every worker sees it under this name.
    :param follow: go on with segments that end later, until ``stop`` is set. Else the rows of open segments are taken,
        too.
    :param failed: called for each journal that could not be read, or that another process is copying just now. The
        others are copied meanwhile. Unless it is given, the first failure is raised then.
    :param run: does the work, in another place for example: see :func:`sbuslib.spark.lake.on_spark`.

    Raises :exc:`~sbuslib.errors.JournalInUseError`, and as :func:`write`.
    """
    target = absolute(lake)
    _make_place(target)
    if list_segments(target):
        raise JournalError(f"{target} is a journal, and no lake")
    places = [*dict.fromkeys(map(absolute, journals))]
    while True:
        for failure in _take_in(places, target, not follow, on_corrupt, run, progress).values():
            if failed is None:
                raise failure.error
            failed(failure)
        if not follow or stop is None or stop.wait(FOLLOW_SECONDS):
            return


def lock_journal(locks: ExitStack, lake: str, journal: str) -> bool:
    """Keep other processes from writing rows of a journal into a local lake; returns whether none does so now."""
    try:
        locks.enter_context(closing(DirectoryLock(lake, f"_{journal}.lock")))
    except JournalInUseError:
        return False
    return True


def _take_in(
    places: list[str],
    target: str,
    open_too: bool,
    on_corrupt: OnCorrupt,
    run: Any,
    progress: Callable[[Written], object],
) -> dict[str, Failure]:
    """Copy new rows into the lake. Lists the lake once, and again under its locks. Returns failures by place."""
    failures: dict[str, Failure] = {}

    def look(places: Iterable[str]) -> list[Unit]:
        """Find the rows of these places that the lake lacks, each row from one of them."""
        there, lacking = listed(target), list[Unit]()
        for place in places:
            try:
                pending, _ = units(place, target, there, open_too=open_too, on_corrupt=on_corrupt)
            except (SbusError, OSError) as error:
                failures[place] = Failure(place, error)
                continue
            lacking += pending
            for unit in pending:  # another place may have a copy of it
                if unit.journal is not None:
                    there.setdefault(unit.journal, []).extend(unit.row_ranges)
        return lacking

    with ExitStack() as locks:
        pending = look(places)
        if pending and is_local(target):
            busy = set[str]()
            for journal, place in {unit.journal: unit.place for unit in reversed(pending) if unit.journal}.items():
                if not lock_journal(locks, target, journal):
                    error = JournalInUseError(f"{place} is being taken into {target} already, or that is compacted")
                    failures[place] = Failure(place, error)
                    busy.add(journal)
            # Another process may have copied rows before these locks were taken: look again under them.
            pending = look(dict.fromkeys(unit.place for unit in pending))
            pending = [unit for unit in pending if unit.journal not in busy]
        for done in run(pending, on_corrupt):
            if isinstance(done, Written):
                progress(done)
            else:
                failures.setdefault(done.place, done)
    return failures
