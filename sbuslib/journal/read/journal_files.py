"""Files of journals, segments and sealed files: lists and opens them, local ones alone, others with Arrow.

A *place* is the directory of a journal, or one with the sealed files of any number of journals: a URI or an absolute
path, so that it means the same to every process. The name of a sealed file has all that is needed to choose it: its
journal, its first and last row, the seconds of its first and last time, and the CRC of its bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ...errors import JournalError, StateError
from ...kernel.regular_files import open_regular
from ..format.decoding import ReadAt, end_mark
from ..format.directory import Segment, decode_header
from ..format.layout import SEGMENT_HEADER_BYTES, End, SegmentHeader, first_sequence_of

_NAME = re.compile(r"([0-9A-Za-z]{16})-(\d{20})-(\d{20})-(\d{8}T\d{6})-(\d{8}T\d{6})-([0-9a-f]{8})\.parquet")
_TIME = "%Y%m%dT%H%M%S"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)

_LOOKS = 10
"""Attempts when files vanish between listing and reading: a sealer and retention delete old ones."""

P = ParamSpec("P")
T = TypeVar("T")


class VanishedError(JournalError):
    """A file was deleted, or sealed, before it was read."""


def looked_again(look: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that lists files and then reads them, so that it begins anew when one has vanished."""

    @wraps(look)
    def again(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(_LOOKS - 1):
            with suppress(VanishedError):
                return look(*args, **kwargs)
        return look(*args, **kwargs)

    return again


class Sealed(NamedTuple):
    """A sealed file: the rows of a journal from ``first`` to ``last``.

    Their times are ``start_ns`` or later, and earlier than ``end_ns``, which are whole seconds. ``crc`` is the CRC of
    the file's bytes.
    """

    path: str
    journal: str
    first: int
    last: int
    start_ns: int
    end_ns: int
    crc: int
    size: int

    @property
    def name(self) -> str:
        """The name of the file alone."""
        return self.path.rpartition("/")[2]


class ListedSegment(Segment):
    """A segment as it was listed. It reads its header and its mark together, once, at the first use of one of them.

    Both raise :exc:`VanishedError`, and :exc:`~sbuslib.errors.CorruptJournalError` where the header is damaged.
    """

    @property
    def header(self) -> SegmentHeader:
        """The header."""
        return self._ends[0]

    @property
    def mark(self) -> End | None:
        """The mark at its end; ``None`` where there is none."""
        return self._ends[1]

    @cached_property
    def _ends(self) -> tuple[SegmentHeader, End | None]:
        with opened(self.path) as read_at:
            header = decode_header(bytes(read_at(0, SEGMENT_HEADER_BYTES)), self.path)
            return header, end_mark(read_at, self.size, header.salt)


class _File(NamedTuple):
    path: str
    name: str
    size: int
    is_regular: bool = True


def sealed_name(journal: str, first: int, last: int, times: tuple[int, int], crc: int) -> str:
    """Name of the sealed file with these rows; ``times`` are of the earliest and the latest, in nanoseconds.

    Raises :exc:`~sbuslib.errors.JournalError` for an odd identity.
    """
    start, end = (datetime.strftime(_EPOCH + time // 1_000_000_000 * _SECOND, _TIME) for time in times)
    name = f"{journal}-{first:020d}-{last:020d}-{start}-{end}-{crc:08x}.parquet"
    if not _NAME.fullmatch(name):
        raise JournalError(f"no recorder gives a journal the identity {journal!r}")
    return name


def named(path: str, name: str, size: int) -> Sealed | None:
    """Parse the name of a sealed file at ``path``; ``None`` for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    journal, first, last, start, end, crc = match.groups()
    try:
        start_s, end_s = ((datetime.strptime(f"{time}Z", f"{_TIME}%z") - _EPOCH) // _SECOND for time in (start, end))
    except ValueError:
        return None
    times = start_s * 1_000_000_000, (end_s + 1) * 1_000_000_000
    return Sealed(path, journal, int(first), int(last), *times, int(crc, 16), size)


def absolute(path: str | os.PathLike[str]) -> str:
    """Make a path absolute; a URI stays as it is."""
    text = os.fspath(path)
    return text.rstrip("/") if "://" in text else os.path.abspath(text.removeprefix("file:"))


def is_local(location: str) -> bool:
    """Whether a place or a file is on this machine."""
    return "://" not in location


def filesystem_of(location: str) -> tuple[Any, str]:
    """The file system of Arrow for a path or URI, and its path in there. Raises :exc:`~sbuslib.errors.JournalError`."""
    try:
        import pyarrow.fs
    except ImportError:
        raise StateError(f"pyarrow is missing to read {location}: pip install 'sbuslib[seal]'") from None
    if is_local(location):
        return pyarrow.fs.LocalFileSystem(), location
    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(location)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise JournalError(f"{location}: {error}") from None
    return filesystem, path


def _files(place: str) -> list[_File]:
    """List the files of a place. Raises :exc:`FileNotFoundError` and :exc:`~sbuslib.errors.JournalError`."""
    try:
        return _local_files(place) if is_local(place) else _other_files(place)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalError(f"{place}: {error.strerror or error}") from None


def _local_files(place: str) -> list[_File]:
    files: list[_File] = []
    with os.scandir(place) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # deleted by the recorder just now
                is_regular = entry.is_file(follow_symlinks=False)
                size = entry.stat(follow_symlinks=False).st_size if is_regular else 0
                files.append(_File(entry.path, entry.name, size, is_regular))
    return files


def _other_files(place: str) -> list[_File]:
    from pyarrow.fs import FileSelector, FileType

    filesystem, path = filesystem_of(place)
    listed = filesystem.get_file_info(FileSelector(path))
    return [
        _File(f"{place}/{file.base_name}", file.base_name, file.size) for file in listed if file.type == FileType.File
    ]


def list_segments(place: str) -> list[ListedSegment]:
    """List the segments of a journal, oldest first.

    Raises :exc:`~sbuslib.errors.JournalError` if there is no directory.
    """
    try:
        files = _files(place)
    except FileNotFoundError:
        raise JournalError(f"{place}: no such directory") from None
    segments = list[ListedSegment]()
    for file in files:
        if first := first_sequence_of(file.name):
            _check(file)
            segments.append(ListedSegment(file.path, first, file.size))
    return sorted(segments, key=lambda segment: segment.first_sequence)


def list_sealed(place: str) -> list[Sealed]:
    """List the sealed files in a directory, by journal and row; none where there is no directory.

    Raises :exc:`~sbuslib.errors.JournalError`.
    """
    try:
        files = _files(place)
    except FileNotFoundError:
        return []
    sealed = list[Sealed]()
    for file in files:
        if (parsed := named(file.path, file.name, file.size)) is not None:
            _check(file)
            sealed.append(parsed)
    return sorted(sealed, key=lambda file: (file.journal, file.first, file.last))


def _check(file: _File) -> None:
    if not file.is_regular:
        raise JournalError(f"{file.path}: this is a link, or no regular file, and is not opened")


def sealed_of(place: str) -> str:
    """Place of the sealed files of the journal at ``place``. Raises :exc:`~sbuslib.errors.JournalError` for a link."""
    sealed = f"{place}/sealed"
    if is_local(place) and os.path.islink(sealed):
        raise JournalError(f"{sealed}: this is a link, which is not followed")
    return sealed


@contextmanager
def opened(path: str) -> Iterator[ReadAt]:
    """Open a file for reading. Raises :exc:`VanishedError`, which names the file, when it is not there any more."""
    try:
        if is_local(path):
            descriptor = open_regular(path)
        else:
            filesystem, inside = filesystem_of(path)
            file = filesystem.open_input_file(inside)
    except FileNotFoundError:
        raise VanishedError(f"{path}: this file was deleted before it was read") from None

    # Errors of the caller's own block are not taken for those of opening.
    if is_local(path):
        try:
            yield lambda position, length: os.pread(descriptor, length, position)
        finally:
            os.close(descriptor)
    else:
        with file:
            yield lambda position, length: file.read_at(length, position)
