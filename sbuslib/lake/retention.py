"""Deletes the oldest files of a journal: segments that are sealed, and what is kept no longer."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from math import inf

from ..errors import JournalError
from ..segments.directory import Segment
from ..segments.layout import SEGMENT_HEADER_BYTES
from .pieces import contents
from .places import Sealed, header_of

__all__ = ["retain", "retire"]


def retire(place: str) -> None:
    """Delete the segments of a journal whose rows are all in sealed files.

    Raises :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`.
    """
    found = contents(place)
    sealed = sorted((one.first, one.last) for one in found.sealed if one.journal == found.journal)
    for segment, following in zip(_deletable(found.segments), found.segments[1:], strict=False):
        covered = segment.first_sequence - 1
        for first, last in sealed:
            if first <= covered + 1:
                covered = max(covered, last)
        if following.first_sequence - 1 <= covered:
            _delete(segment.path)


def retain(place: str, keep_bytes: int | None, keep_seconds: float | None) -> None:
    """Delete the oldest files of a journal, sealed or not, beyond so many bytes or older than so many seconds.

    The last segment is kept, and sealed files of its rows: they would be made again. Raises
    :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`.
    """
    if keep_bytes is None and keep_seconds is None:
        return
    found = contents(place)
    sealed = [one for one in found.sealed if one.journal == found.journal or found.journal is None]
    segments = _deletable(found.segments)
    kept = found.segments[len(segments)].first_sequence if found.segments else inf
    files: list[Segment | Sealed] = [*(one for one in sealed if one.last < kept), *segments]
    files.sort(key=lambda file: file.first if isinstance(file, Sealed) else file.first_sequence)
    total = sum(one.size for one in sealed) + sum(segment.size for segment in found.segments)
    oldest = time.time() - keep_seconds if keep_seconds is not None else 0.0
    for file in files:
        with suppress(FileNotFoundError):  # likewise
            if not (keep_bytes is not None and total > keep_bytes) and _latest(file) >= oldest:
                return
            _delete(file.path)
        total -= file.size


def _deletable(segments: list[Segment]) -> list[Segment]:
    """The segments before the last one that has a header and more: row numbers go on from that."""
    for number in range(len(segments) - 1, -1, -1):
        if segments[number].size > SEGMENT_HEADER_BYTES:
            with suppress(JournalError):
                header_of(segments[number])
                return segments[:number]
    return []


def _latest(file: Segment | Sealed) -> float:
    """When the last row of a file was recorded, in seconds since the epoch."""
    return file.end_ns / 1e9 if isinstance(file, Sealed) else os.stat(file.path).st_mtime


def _delete(path: str) -> None:
    with suppress(FileNotFoundError):  # a sealer may have deleted it
        os.unlink(path)
