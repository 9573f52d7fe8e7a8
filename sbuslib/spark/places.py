"""Lists and reads the segments of journals in any file system that :mod:`pyarrow.fs` knows.

A *place* is the directory of one journal, as a URI or an absolute path, so that it means the same to every worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.fs

from ..errors import JournalError
from ..segments.directory import Segment, durable_sequence, end_of, is_recorded
from ..segments.layout import first_sequence_of
from .manifest import is_lake

__all__ = ["absolute", "list_segments", "opened", "snapshot"]


def absolute(path: str) -> str:
    """``path`` in a form that means the same in every working directory."""
    return path.rstrip("/") if "://" in path else os.path.abspath(path.removeprefix("file:"))


def _filesystem(location: str) -> tuple[Any, str]:
    """The file system of a path or URI, and its path in there. Raises :exc:`~sbuslib.errors.JournalError`."""
    if "://" not in location:
        return pyarrow.fs.LocalFileSystem(), location
    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(location)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise JournalError(f"{location}: {error}") from None
    return filesystem, path


def list_segments(place: str) -> list[Segment]:
    """The segments of a journal, oldest first.

    Raises :exc:`~sbuslib.errors.JournalError` if there is no such directory, or if it is a lake and no journal.
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
            found.append(Segment(f"{place}/{file.base_name}", first, file.size))
    if not found and isinstance(filesystem, pyarrow.fs.LocalFileSystem) and is_lake(path):
        raise JournalError(f"{place} is a lake, and no journal")
    return sorted(found, key=lambda segment: segment.first_sequence)


def snapshot(place: str, durable_only: bool = False) -> tuple[list[Segment], bool]:
    """The segments of a journal, and whether the last may be growing: a recorder of this machine is at work.

    With ``durable_only`` the size of the last segment is where its durable rows end. Raises as :func:`list_segments`.
    """
    filesystem, path = _filesystem(place)
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


@contextmanager
def opened(segment: str) -> Iterator[Callable[[int, int], bytes]]:
    """Open a segment for reading: a function ``read_at(position, length)``, which returns fewer bytes at the end.

    Raises :exc:`~sbuslib.errors.JournalError`, which names the file, when it is not there any more.
    """
    filesystem, path = _filesystem(segment)
    try:
        with filesystem.open_input_file(path) as file:
            yield lambda position, length: file.read_at(length, position)
    except FileNotFoundError:
        raise JournalError(f"{segment}: this segment was deleted before it was read") from None
