"""Retention of a journal: deletes sealed segments, and files beyond a size or an age."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from math import inf

from ...errors import CorruptJournalError, JournalError
from ..format.layout import SEGMENT_HEADER_BYTES
from .journal_files import ListedSegment, Sealed
from .read_plan import Contents, contents, sealed_at


def retire(listing: Contents) -> None:
    """Delete the segments of a listing whose rows are all in readable sealed files now.

    Raises :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`.
    """
    sealed = [file for file in sealed_at(listing.place) if file.journal == listing.journal and _is_readable(file)]
    for segment, following in zip(_deletable(listing.segments), listing.segments[1:], strict=False):
        covered = segment.first_sequence - 1
        for file in sealed:
            if file.first <= covered + 1:
                covered = max(covered, file.last)
        if following.first_sequence - 1 <= covered:
            _delete(segment.path)


def retain(place: str, keep_bytes: int | None, keep_seconds: float | None) -> None:
    """Delete the oldest files of a journal, sealed or not, beyond so many bytes or older than so many seconds.

    The last segment is kept, and sealed files of its rows: they would be made again. Raises
    :exc:`~sbuslib.errors.JournalError` and :exc:`OSError`.
    """
    if keep_bytes is None and keep_seconds is None:
        return
    listing = contents(place)
    sealed = [file for file in listing.sealed if file.journal == listing.journal or listing.journal is None]
    segments = _deletable(listing.segments)
    kept = listing.segments[len(segments)].first_sequence if listing.segments else inf
    files: list[ListedSegment | Sealed] = [*(file for file in sealed if file.last < kept), *segments]
    files.sort(key=lambda file: file.first if isinstance(file, Sealed) else file.first_sequence)

    total = sum(file.size for file in sealed) + sum(segment.size for segment in listing.segments)
    oldest = time.time() - keep_seconds if keep_seconds is not None else 0.0
    for file, latest in zip(files, _times(files), strict=True):
        if not (keep_bytes is not None and total > keep_bytes) and latest >= oldest:
            return
        _delete(file.path)
        total -= file.size


def _is_readable(file: Sealed) -> bool:
    from .footer import footer_of  # only here, as it needs Arrow, and a recorder without it retains

    with suppress(CorruptJournalError):
        return footer_of(file).rows > 0
    return False


def _deletable(segments: list[ListedSegment]) -> list[ListedSegment]:
    """The segments before the last one that has a header and more: row numbers go on from that."""
    for number in range(len(segments) - 1, -1, -1):
        if segments[number].size > SEGMENT_HEADER_BYTES:
            with suppress(JournalError):
                _ = segments[number].header  # raises where it is damaged
                return segments[:number]
    return []


def _times(files: list[ListedSegment | Sealed]) -> list[float]:
    """Times of the last row of each file, in seconds since the epoch. The files are in the order of rows.

    A time in the future is of a clock that was ahead. Then the time of the next file is taken, also for a file that has
    vanished.
    """
    times, following = list[float](), time.time()
    for file in reversed(files):
        latest = _latest(file)
        following = latest if latest <= time.time() else following
        times.append(following)
    return times[::-1]


def _latest(file: ListedSegment | Sealed) -> float:
    if isinstance(file, Sealed):
        return file.end_ns / 1e9
    try:
        return os.stat(file.path).st_mtime
    except FileNotFoundError:  # a sealer has deleted it, and its time with it
        return inf


def _delete(path: str) -> None:
    with suppress(FileNotFoundError):  # a sealer may have deleted it
        os.unlink(path)
