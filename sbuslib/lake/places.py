"""Lists and reads the files of journals in any file system that :mod:`pyarrow.fs` knows: segments, and sealed files.

A *place* is the directory of a journal, or one with the sealed files of any number of journals: a URI or an absolute
path, so that it means the same to every process. The name of a sealed file tells its journal, and its first and last
row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow
import pyarrow.fs

from ..errors import CorruptJournalError, JournalError
from ..segments.directory import Segment, decode_header, durable_sequence, end_of, is_recorded
from ..segments.layout import SEGMENT_HEADER_BYTES, End, SegmentHeader, first_sequence_of
from ..segments.reading import decode_block, walk

__all__ = [
    "Contents",
    "Sealed",
    "absolute",
    "contents",
    "filesystem_of",
    "header_of",
    "list_sealed",
    "list_segments",
    "measure",
    "opened",
    "sealed_name",
    "snapshot",
    "target_of",
]

_NAME = re.compile(r"([0-9A-Za-z]{16})-(\d{20})-(\d{20})\.parquet")
_FOLDER = "sealed"
_NOTE = "sealed.to"
"""A file in a journal's directory: where its sealed files are, unless they are in the folder."""


class Sealed(NamedTuple):
    """A sealed file: the rows of a journal from ``first`` to ``last``. ``modified_ns`` is when it was made."""

    path: str
    journal: str
    first: int
    last: int
    size: int
    modified_ns: int

    @property
    def name(self) -> str:
        """The name of the file alone."""
        return sealed_name(self.journal, self.first, self.last)


class Contents(NamedTuple):
    """The files of a place: segments, whether the last may be growing, and the sealed files of its journal or all."""

    segments: list[Segment]
    growing: bool
    sealed: list[Sealed]


def sealed_name(journal: str, first: int, last: int) -> str:
    """The name of the sealed file with these rows. Raises :exc:`~sbuslib.errors.JournalError` for an odd identity."""
    name = f"{journal}-{first:020d}-{last:020d}.parquet"
    if not _NAME.fullmatch(name):
        raise JournalError(f"no recorder gives a journal the identity {journal!r}")
    return name


def absolute(path: str | os.PathLike[str]) -> str:
    """``path`` in a form that means the same in every working directory."""
    text = os.fspath(path)
    return text.rstrip("/") if "://" in text else os.path.abspath(text.removeprefix("file:"))


def filesystem_of(location: str) -> tuple[Any, str]:
    """The file system of a path or URI, and its path in there. Raises :exc:`~sbuslib.errors.JournalError`."""
    if "://" not in location:
        return pyarrow.fs.LocalFileSystem(), location
    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(location)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise JournalError(f"{location}: {error}") from None
    return filesystem, path


def _files(place: str, allow_missing: bool = False) -> list[Any]:
    filesystem, path = filesystem_of(place)
    try:
        found = filesystem.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=allow_missing))
    except FileNotFoundError:
        raise JournalError(f"{place}: no such directory") from None
    except OSError as error:
        raise JournalError(f"{place}: {error}") from None
    return [file for file in found if file.type == pyarrow.fs.FileType.File]


def list_segments(place: str) -> list[Segment]:
    """The segments of a journal, oldest first. Raises :exc:`~sbuslib.errors.JournalError` if there is no directory."""
    found = [
        Segment(f"{place}/{file.base_name}", first, file.size)
        for file in _files(place)
        if (first := first_sequence_of(file.base_name)) is not None
    ]
    return sorted(found, key=lambda segment: segment.first_sequence)


def list_sealed(place: str, journal: str | None = None) -> list[Sealed]:
    """The sealed files in a directory, by journal and row; none where there is no directory.

    A sealer may be at work: of two files that it makes meanwhile, one listing may have the second alone. So this lists
    until two listings are the same. Raises :exc:`~sbuslib.errors.JournalError`.
    """
    before = None
    while True:
        found = sorted(
            Sealed(f"{place}/{file.base_name}", name[1], int(name[2]), int(name[3]), file.size, file.mtime_ns or 0)
            for file in _files(place, allow_missing=True)
            if (name := _NAME.fullmatch(file.base_name)) and journal in (None, name[1])
        )
        if found == before or not found:
            return sorted(found, key=lambda one: (one.journal, one.first))
        before = found


def target_of(place: str) -> str:
    """Where the sealed files of the journal at ``place`` are."""
    filesystem, path = filesystem_of(place)
    try:
        with filesystem.open_input_file(f"{path}/{_NOTE}") as file:
            return str(file.read().decode().strip())
    except FileNotFoundError:
        return f"{place}/{_FOLDER}"


def snapshot(place: str, durable_only: bool = False) -> tuple[list[Segment], bool]:
    """The segments of a journal, and whether the last may be growing: a recorder of this machine is at work.

    With ``durable_only`` the size of the last segment is where its durable rows end. Raises as :func:`list_segments`.
    """
    filesystem, path = filesystem_of(place)
    if not isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        return list_segments(place), False
    durable = durable_sequence(path)
    growing = is_recorded(path)
    segments = list_segments(place)
    growing = growing or is_recorded(path)
    if durable_only and segments:
        last = segments[-1]._replace(path=f"{path}/{segments[-1].name}")
        end, ended = end_of(last, durable=durable)
        if not ended:
            segments[-1] = segments[-1]._replace(size=end)
            growing = True
    return segments, growing


def contents(place: str, durable_only: bool = False) -> Contents:
    """The files of a place.

    Segments are listed before sealed files, and a sealer deletes a segment after it has made the sealed file. So each
    row that is there is in one of the two lists at least. Raises as :func:`list_segments`.
    """
    segments, growing = snapshot(place, durable_only)
    return Contents(segments, growing, list_sealed(place) + list_sealed(target_of(place)))


@contextmanager
def opened(segment: str) -> Iterator[Callable[[int, int], bytes]]:
    """Open a segment for reading: a function ``read_at(position, length)``, which returns fewer bytes at the end.

    Raises :exc:`~sbuslib.errors.JournalError`, which names the file, when it is not there any more.
    """
    filesystem, path = filesystem_of(segment)
    try:
        with filesystem.open_input_file(path) as file:
            yield lambda position, length: file.read_at(length, position)
    except FileNotFoundError:
        raise JournalError(f"{segment}: this segment was deleted before it was read") from None


def header_of(segment: Segment) -> SegmentHeader:
    """The header of a segment. Raises :exc:`~sbuslib.errors.JournalError`."""
    with opened(segment.path) as read_at:
        return decode_header(read_at(0, SEGMENT_HEADER_BYTES), segment.path)


def measure(segment: Segment) -> tuple[int, int, bool]:
    """Where the whole blocks of a segment end, the number of the row after them, and whether the end mark is there.

    Raises :exc:`~sbuslib.errors.JournalError`.
    """
    row, end = segment.first_sequence, SEGMENT_HEADER_BYTES
    with opened(segment.path) as read_at:
        header = decode_header(read_at(0, SEGMENT_HEADER_BYTES), segment.path)
        for extent in walk(read_at, segment.size):
            end = extent.end
            if extent.rows is None:
                try:
                    mark = decode_block(read_at(extent.position, extent.length), 0, header.salt, extent.position)
                except CorruptJournalError as error:
                    raise CorruptJournalError(error.reason, error.position, segment.path) from None
                assert isinstance(mark, End)
                return end, mark.next_sequence, True
            row += extent.rows
    return end, row, False
