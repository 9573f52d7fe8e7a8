"""Seals journals: rewrites ended segments as Parquet files that never change.

**The name is the transaction.** A file is named by its journal, its first and its last row. It is written aside, synced
and renamed. So a row is in a sealed file when there is one whose name says so, and there is no other record of that. A
sealer that was killed leaves at most the file that it wrote aside, which the next one overwrites.

**No file is ever rewritten.** Small segments become one file together. Which segments these are follows from the
segments alone: see :func:`units`. So the files are the same, however often a sealer was killed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pyarrow
import pyarrow.fs
import pyarrow.parquet

from ..errors import JournalError, JournalInUseError, UsageError
from ..segments.directory import DirectoryLock, OnCorrupt, Segment, sync_directory
from ..segments.layout import SEGMENT_HEADER_BYTES
from .pieces import Piece, _identity, batches
from .places import (
    Contents,
    Sealed,
    absolute,
    contents,
    filesystem_of,
    header_of,
    list_sealed,
    list_segments,
    measure,
    sealed_name,
    target_of,
)
from .rows import SCHEMA, Filter

__all__ = ["FOLLOW_SECONDS", "SCHEMA_VERSION", "Sealing", "Unit", "Written", "ingest", "seal", "units", "write"]

SCHEMA_VERSION = 1

UNIT_BYTES = 64_000_000
"""Bytes of segments that make one file: a segment of a recorder's default size is enough by itself."""

_GROUP_ROWS = 131_072
_GROUP_BYTES = 33_554_432
"""Rows of a row group, and their bytes: some megabytes once compressed, and little enough to have in memory."""

FOLLOW_SECONDS = 10.0
"""Seconds between two looks for segments that have ended. Each takes a few milliseconds."""

_DAY_NS = 86_400_000_000_000

_DICTIONARIES = ["journal", "hub", "kind", "key", "size", "sender", "gid", "uid", "pid", "cause"]
_DELTAS = dict.fromkeys(["time", "time_ns", "sequence"], "DELTA_BINARY_PACKED")

_ATOMIC = {"s3", "gcs", "abfs"}
"""File systems in which a file is not there until all of it is written."""


class Unit(NamedTuple):
    """What becomes one sealed file: segments, parts of them, or a sealed file that is copied."""

    journal: str
    first: int
    last: int
    pieces: tuple[Piece, ...]
    target: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return sealed_name(self.journal, self.first, self.last)


class Written(NamedTuple):
    """A sealed file that was made: how many rows it has (messages and gaps), and its bytes."""

    name: str
    rows: int
    bytes: int


class _Part(NamedTuple):
    """A segment that may be sealed."""

    piece: Piece
    last: int
    separator: bytes
    day: int


def _parts(found: Contents, covered: int, journal: str, open_too: bool) -> Iterator[_Part]:
    """The segments with rows after ``covered`` that have ended; with ``open_too`` the whole blocks of the open one."""
    for number, segment in enumerate(found.segments, 1):
        following = found.segments[number].first_sequence if number < len(found.segments) else None
        stop, end = segment.size, following
        ended = True
        if following is None:
            if segment.size <= SEGMENT_HEADER_BYTES:
                return
            stop, end, ended = measure(segment)
        assert end is not None
        if end - 1 <= covered or end == segment.first_sequence or not (ended or open_too):
            continue
        header = header_of(segment)
        how = "mark" if ended or not found.growing else "blocks"
        piece = Piece(
            segment.path,
            SEGMENT_HEADER_BYTES,
            segment.size if how == "mark" else stop,
            "mark" if how == "mark" else "blocks",
            following,
            covered + 1,
            journal,
        )
        yield _Part(piece, end - 1, header.separator, header.created_ns // _DAY_NS)


def units(place: str, target: str, *, open_too: bool = False, hold: bool = False) -> list[Unit]:
    """What of the journal at ``place`` is to be sealed into ``target``.

    A unit has segments that were begun on one day (in UTC), until they are :data:`UNIT_BYTES` or more.

    :param open_too: also the whole blocks of the segment that a recorder is writing.
    :param hold: without the last unit, while further segments may belong to it.

    Raises :exc:`~sbuslib.errors.JournalError`.
    """
    found = contents(place)
    journal = _identity(found.segments)
    made: list[Unit] = []
    if journal is None:
        return [_copy(one, target) for one in found.sealed if not _is_there(one, target)]
    covered = max((one.last for one in list_sealed(target, journal)), default=0)
    for one in found.sealed:
        if one.journal == journal and one.last > covered:
            made.append(_copy(one, target, covered + 1))
            covered = one.last
    some: list[_Part] = []
    for part in _parts(found, covered, journal, open_too):
        if some and (part.day, part.separator) != (some[-1].day, some[-1].separator):
            made.append(_unit(journal, some, target, covered))
            some = []
        some.append(part)
        if sum(one.piece.stop for one in some) >= UNIT_BYTES:
            made.append(_unit(journal, some, target, covered))
            some = []
    if some and not (hold and some[-1].day == time.time_ns() // _DAY_NS):
        made.append(_unit(journal, some, target, covered))
    return made


def _is_there(one: Sealed, target: str) -> bool:
    return any(other.first <= one.first <= other.last for other in list_sealed(target, one.journal))


def _copy(one: Sealed, target: str, least: int = 0) -> Unit:
    """A sealed file as it is, or its rows from ``least`` on."""
    least = least if least > one.first else 0
    return Unit(
        one.journal, max(one.first, least), one.last, (Piece(one.path, 0, one.size, "sealed", None, least),), target
    )


def _unit(journal: str, some: list[_Part], target: str, covered: int) -> Unit:
    first = int(os.path.basename(some[0].piece.path).partition(".")[0])
    return Unit(journal, max(first, covered + 1), some[-1].last, tuple(part.piece for part in some), target)


def write(unit: Unit, on_corrupt: OnCorrupt = "error") -> Written:
    """Make a sealed file. Raises :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`."""
    filesystem, folder = filesystem_of(unit.target)
    filesystem.create_dir(folder, recursive=True)
    path = f"{folder}/{unit.name}"
    aside = path if filesystem.type_name in _ATOMIC else f"{folder}/_{unit.journal}-{unit.first:020d}.new"
    with filesystem.open_output_stream(aside) as file:
        whole = unit.pieces[0].end == "sealed" and not unit.pieces[0].least
        rows = _copy_file(unit.pieces[0], file) if whole else _write(unit, file, on_corrupt)
        size = file.tell()
    local = isinstance(filesystem, pyarrow.fs.LocalFileSystem)
    if local:
        descriptor = os.open(aside, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if aside != path:
        filesystem.move(aside, path)
    if local:
        sync_directory(folder)
    return Written(unit.name, rows, size)


def _copy_file(piece: Piece, file: Any) -> int:
    filesystem, path = filesystem_of(piece.path)
    with filesystem.open_input_file(path) as source:
        rows = int(pyarrow.parquet.read_metadata(source).num_rows)
        source.seek(0)
        while some := source.read(8_388_608):
            file.write(some)
    return rows


def _write(unit: Unit, file: Any, on_corrupt: OnCorrupt) -> int:
    """Write the rows of segments as Parquet. Returns how many there are."""
    told = {"sbus.schema": str(SCHEMA_VERSION), "sbus.journal": unit.journal}
    told |= {"sbus.first": str(unit.first), "sbus.last": str(unit.last)}
    with pyarrow.parquet.ParquetWriter(
        file,
        SCHEMA.with_metadata(told),
        compression="zstd",
        compression_level=1,
        use_dictionary=_DICTIONARIES,
        column_encoding=_DELTAS,
        write_page_index=True,
        write_page_checksum=True,
    ) as writer:
        total = rows = size = 0
        some: list[Any] = []
        for batch in batches(unit.pieces, SCHEMA, Filter(), on_corrupt):
            some.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
                writer.write_table(pyarrow.Table.from_batches(some))
                total, rows, size = total + rows, 0, 0
                some.clear()
        if some:
            writer.write_table(pyarrow.Table.from_batches(some))
    return total + rows


def _write_all(some: list[Unit], on_corrupt: OnCorrupt) -> Iterator[Written]:
    return (write(unit, on_corrupt) for unit in some)


@contextmanager
def _locked(place: str, name: str = "sealer.lock") -> Iterator[None]:
    try:
        lock = DirectoryLock(place, name)
    except JournalInUseError:
        raise JournalInUseError(f"{place} is being sealed already") from None
    with ExitStack() as undo:
        undo.callback(lock.release)
        yield


class Sealing:
    """Seals the journal in a local directory. One sealer a journal at a time.

    :param to: where the sealed files go, a directory or a URI; ``sealed`` in the journal's directory unless given. It
        is noted in the directory, so that readers of the journal find them.
    :param keep_segments: seconds for which segments are kept once they are sealed, for readers that are behind.
    :param keep_bytes: delete the oldest sealed files of this journal while all together are larger.
    :param keep_seconds: delete sealed files that were made longer ago.

    Raises :exc:`~sbuslib.errors.UsageError` if it is sealed into another place already, and
    :exc:`~sbuslib.errors.JournalError`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        to: str | None = None,
        *,
        on_corrupt: OnCorrupt = "error",
        keep_segments: float = 3_600.0,
        keep_bytes: int | None = None,
        keep_seconds: float | None = None,
        progress: Callable[[Written], object] = lambda written: None,
    ) -> None:
        self.place = absolute(directory)
        if "://" in self.place:
            raise UsageError(f"{self.place}: a journal is sealed where it is recorded, in a local directory")
        contents(self.place)
        self.target = target_of(self.place)
        self._on_corrupt: OnCorrupt = on_corrupt
        self._keep_segments = keep_segments
        self._keep_bytes = keep_bytes
        self._keep_seconds = keep_seconds
        self._progress = progress
        if to is not None and absolute(to) != self.target:
            self._note(absolute(to))

    def _note(self, to: str) -> None:
        note = f"{self.place}/sealed.to"
        if os.path.exists(note) or list_sealed(self.target):
            raise UsageError(f"{self.place} is sealed into {self.target} already")
        with open(f"{note}.new", "w", encoding="utf-8") as file:
            file.write(f"{to}\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{note}.new", note)
        sync_directory(self.place)
        self.target = to

    def run(self, *, hold: bool = False) -> int:
        """Seal what has ended, delete what is kept no longer; how many segments were sealed or deleted.

        With ``hold``, small segments wait for others until their day is over. Raises
        :exc:`~sbuslib.errors.JournalInUseError`, :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`.
        """
        with _locked(self.place):
            done = 0
            for unit in units(self.place, self.target, hold=hold):
                self._progress(write(unit, self._on_corrupt))
                done += 1
            self._retire()
            return done

    def _retire(self) -> None:
        found = contents(self.place)
        journal = _identity(found.segments)
        sealed = [one for one in found.sealed if one.journal == journal]
        covered = max((one.last for one in sealed), default=0)
        kept: list[Segment] = list(found.segments)
        for segment, following in zip(found.segments, found.segments[1:], strict=False):  # the last one is always kept
            if following.first_sequence - 1 > covered:
                break
            try:
                if os.stat(segment.path).st_mtime > time.time() - self._keep_segments:
                    break
                os.unlink(segment.path)
            except FileNotFoundError:
                pass  # the recorder has deleted it
            kept.remove(segment)
        self._retain(sealed, kept[0].first_sequence if kept else 0)

    def _retain(self, sealed: list[Sealed], first: int) -> None:
        """Delete the oldest sealed files; not those of rows from ``first`` on, whose segments are still there."""
        total = sum(one.size for one in sealed)
        for one in sealed:
            too_much = self._keep_bytes is not None and total > self._keep_bytes
            too_old = (
                self._keep_seconds is not None and one.modified_ns < time.time_ns() - self._keep_seconds * 1_000_000_000
            )
            if one.last >= first or not (too_much or too_old):
                return
            filesystem, path = filesystem_of(one.path)
            filesystem.delete_file(path)
            total -= one.size


def seal(directory: str | os.PathLike[str], to: str | None = None, **options: Any) -> int:
    """Seal all ended segments of a journal, once: :class:`Sealing`. Returns how many files were made."""
    return Sealing(directory, to, **options).run()


def ingest(
    journals: Sequence[str | os.PathLike[str]],
    lake: str | os.PathLike[str],
    *,
    follow: bool = False,
    stop: threading.Event | None = None,
    on_corrupt: OnCorrupt = "error",
    progress: Callable[[Written], object] = lambda written: None,
    run: Callable[[list[Unit], OnCorrupt], Iterable[Written]] = _write_all,
) -> None:
    """Take the rows of journals that a lake does not hold yet into the lake, each once: a directory of sealed files.

    What was sealed before is copied. What was not is written as larger files at once, so nothing has to be compacted.

    :param journals: directories or URIs of journals, and of sealed files.
    :param lake: a directory or URI, made if it is not there. On a cluster, every worker sees it under this name.
    :param follow: go on with segments that end later, until ``stop`` is set; small ones wait for others until their day
        is over. Else the rows of open segments are taken, too.
    :param run: does the work, in another place for example: see :func:`sbuslib.spark.lake.on_spark`.

    Raises :exc:`~sbuslib.errors.JournalInUseError` when another process does the same, and as :func:`write`.
    """
    target = absolute(lake)
    filesystem, path = filesystem_of(target)
    if list(_segments_in(target)):
        raise JournalError(f"{target} is a journal, and no lake")
    filesystem.create_dir(path, recursive=True)
    while True:
        with ExitStack() as locks:
            found: dict[str, Unit] = {}
            left = False
            for place in dict.fromkeys(map(absolute, journals)):
                some = units(place, target, open_too=not follow, hold=follow)
                if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
                    for journal in {unit.journal for unit in some} - {unit.journal for unit in found.values()}:
                        locks.enter_context(_locked(path, f"_{journal}.lock"))
                    some = units(place, target, open_too=not follow, hold=follow)  # as it is now that it is locked
                taken = {unit.journal for unit in found.values()}  # another place may have a shorter copy of it
                left |= any(unit.journal in taken and unit.name not in found for unit in some)
                found |= {unit.name: unit for unit in some if unit.journal not in taken}
            for written in run([*found.values()], on_corrupt):
                progress(written)
        if left:
            continue
        if not follow or stop is None or stop.wait(FOLLOW_SECONDS):
            return


def _segments_in(place: str) -> list[Segment]:
    try:
        return list_segments(place)
    except JournalError:
        return []
