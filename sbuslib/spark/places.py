"""Journals wherever :mod:`pyarrow.fs` reaches: which segments there are, and parts of them.

What belongs here is finding and reading files; what is in them is :mod:`sbuslib.segments.layout`'s. A *place* is the
directory of one journal, as a URI or an absolute path, so that it means the same to every worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow.fs

from ..errors import CorruptJournalError, JournalError
from ..segments.layout import SEGMENT_HEADER_BYTES, SegmentHeader, first_sequence_of, segment_name
from .manifest import is_lake

__all__ = ["Segment", "absolute", "decode_header", "list_segments", "opened"]


class Segment(NamedTuple):
    """A segment's file: its place, the number of its first row by its name, and its size in bytes just now."""

    place: str
    first_sequence: int
    size: int

    @property
    def name(self) -> str:
        """The name of the file alone."""
        return segment_name(self.first_sequence)


def absolute(path: str) -> str:
    """``path`` so that it means the same in another working directory."""
    return path.rstrip("/") if "://" in path else os.path.abspath(path.removeprefix("file:"))


def _filesystem(place: str) -> tuple[Any, str]:
    """The file system of a place, and the place's path in it. Raises :exc:`~sbuslib.errors.JournalError`."""
    if "://" not in place:
        return pyarrow.fs.LocalFileSystem(), place
    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(place)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise JournalError(f"{place}: {error}") from None
    return filesystem, path


def list_segments(place: str) -> list[Segment]:
    """The segments of a journal, oldest first.

    Raises :exc:`~sbuslib.errors.JournalError` if there is no such place, or a lake and nothing of a journal.
    """
    filesystem, path = _filesystem(place)
    try:
        files = filesystem.get_file_info(pyarrow.fs.FileSelector(path))
    except FileNotFoundError:
        raise JournalError(f"{place}: no such directory") from None
    except OSError as error:
        raise JournalError(f"{place}: {error}") from None
    found: list[Segment] = []
    for file in files:
        first = first_sequence_of(file.base_name)
        if first is not None and file.type == pyarrow.fs.FileType.File:
            found.append(Segment(place, first, file.size))
    if not found and isinstance(filesystem, pyarrow.fs.LocalFileSystem) and is_lake(path):
        raise JournalError(f"{place} is a lake, and no journal")
    return sorted(found, key=lambda segment: segment.first_sequence)


@contextmanager
def opened(place: str, name: str) -> Iterator[Callable[[int, int], bytes]]:
    """A segment's file, as what reads ``length`` bytes, or fewer at its end, at ``position``.

    Raises :exc:`~sbuslib.errors.JournalError`, which names the file, when it is not there any more.
    """
    filesystem, path = _filesystem(place)
    try:
        with filesystem.open_input_file(f"{path}/{name}") as file:
            yield lambda position, length: file.read_at(length, position)
    except FileNotFoundError:
        raise JournalError(f"{place}/{name}: this segment was deleted before it was read") from None


def decode_header(read_at: Callable[[int, int], bytes], place: str, name: str) -> SegmentHeader:
    """The header of an open segment. Raises :exc:`~sbuslib.errors.CorruptJournalError`."""
    try:
        header = SegmentHeader.decode(read_at(0, SEGMENT_HEADER_BYTES))
        if segment_name(header.first_sequence) != name:
            raise CorruptJournalError(f"the file's name should be {segment_name(header.first_sequence)}", 0)
    except CorruptJournalError as error:
        raise CorruptJournalError(error.reason, error.position, f"{place}/{name}") from None
    return header
