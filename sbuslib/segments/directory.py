"""A journal's directory: the list of its segments, reading them in order, and the lock of the recorder.

Reading needs no lock and disturbs no recorder: a segment only grows, except that its last bytes are cut off after a
crash, and it is deleted whole. This module needs no event loop.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from io import FileIO
from typing import Literal, NamedTuple, TypeAlias

from ..errors import CorruptJournalError, JournalError, JournalInUseError
from .layout import SEGMENT_HEADER_BYTES, Block, End, Record, SegmentHeader, Skipped, first_sequence_of, segment_name
from .reading import read_blocks, sound_blocks, walk

__all__ = [
    "LOCK_NAME",
    "DirectoryLock",
    "OnCorrupt",
    "Piece",
    "Position",
    "Segment",
    "boot_id",
    "decode_header",
    "durable_sequence",
    "end_of",
    "is_recorded",
    "list_segments",
    "read_header",
    "read_journal",
    "read_records",
    "read_segment",
    "snapshot",
    "sync_directory",
]

LOCK_NAME = "recorder.lock"
"""The file in a journal's directory that its recorder keeps locked. It holds two lines: the process id of the recorder,
and the number of the last row that is durable."""

_ATTEMPTS = 3

_WINDOW = 1 << 20
"""Bytes of a segment that are read at once: they are still in the processor's cache when their CRC is taken."""

OnCorrupt: TypeAlias = Literal["error", "skip"]


class Segment(NamedTuple):
    """A segment's file: where it is, the number of its first row by its name, and its size in bytes just now."""

    path: str
    first_sequence: int
    size: int

    @property
    def name(self) -> str:
        """The name of the file alone."""
        return segment_name(self.first_sequence)


class Position(NamedTuple):
    """A place between two blocks: ``position`` bytes into the segment of this name."""

    segment: str
    position: int


class Piece(NamedTuple):
    """A block of a journal, or what was skipped in its place, with the segment in which it stands."""

    segment: Segment
    header: SegmentHeader | None
    """``None`` where the header itself was damaged, so that the segment is skipped whole."""
    block: Block | Skipped


def list_segments(directory: str | os.PathLike[str]) -> list[Segment]:
    """The segments in a directory, oldest first. Raises :exc:`OSError`."""
    found: list[Segment] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            first = first_sequence_of(entry.name)
            if first is not None:
                try:
                    found.append(Segment(entry.path, first, entry.stat().st_size))
                except FileNotFoundError:
                    continue  # deleted by the recorder just now
    return sorted(found, key=lambda segment: segment.first_sequence)


def snapshot(directory: str | os.PathLike[str]) -> tuple[list[Segment], bool]:
    """The segments in a directory, and whether the last one may be growing. Raises :exc:`OSError`.

    A recorder may start or stop meanwhile, so this looks for one before and after it lists the segments.
    """
    growing = is_recorded(directory)
    segments = list_segments(directory)
    return segments, growing or is_recorded(directory)


def read_header(path: str | os.PathLike[str]) -> SegmentHeader:
    """The header of a segment.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`, also where it does not belong to the file's name, and
    :exc:`OSError`.
    """
    with open(path, "rb") as file:
        return decode_header(file.read(SEGMENT_HEADER_BYTES), os.fspath(path))


def decode_header(data: bytes, path: str) -> SegmentHeader:
    """The header in the first bytes of a segment. Raises :exc:`~sbuslib.errors.CorruptJournalError`, with the path."""
    try:
        header = SegmentHeader.decode(data)
        if first_sequence_of(os.path.basename(path)) != header.first_sequence:
            raise CorruptJournalError(f"the file's name should be {segment_name(header.first_sequence)}", 0)
    except CorruptJournalError as error:
        raise CorruptJournalError(error.reason, error.position, path) from None
    return header


def read_segment(
    path: str | os.PathLike[str],
    start: int = SEGMENT_HEADER_BYTES,
    expected: int | None = None,
    following: int | None = None,
    *,
    on_corrupt: OnCorrupt = "error",
    growing: bool = False,
) -> Iterator[Block | End | Skipped]:
    """The blocks of one segment from byte ``start`` on, where a block begins.

    ``expected`` is the number that the first row should have; at the start of the segment the header tells.
    ``following`` is the number with which the next segment begins. The file is read a little at a time; after damage,
    all the rest of it: a segment is some 64 MB. Raises as :func:`.reading.read_blocks`, with the path in the
    error, and :exc:`OSError`.
    """
    path = os.fspath(path)
    with open(path, "rb", buffering=0) as file:
        header = decode_header(file.read(SEGMENT_HEADER_BYTES), path)
        if start == SEGMENT_HEADER_BYTES and expected is None:
            expected = header.first_sequence
        for block in _whole_blocks(file, header.salt, expected, start):
            yield block
            start, expected = block.end, block.next_sequence
        file.seek(start)
        data = file.readall()
    try:
        yield from read_blocks(
            data, header.salt, expected, following, base=start, on_corrupt=on_corrupt, growing=growing
        )
    except CorruptJournalError as error:
        raise CorruptJournalError(error.reason, error.position, path) from None


def _whole_blocks(file: FileIO, salt: int, expected: int | None, position: int) -> Iterator[Block]:
    """The blocks of a segment up to damage, a cut, a wrong number or the end."""
    start = -1
    while position != start:  # most often a block is cut at the end of the window
        start = position
        file.seek(position)
        for block in sound_blocks(file.read(_WINDOW), salt, expected, position):
            yield block
            position, expected = block.end, block.next_sequence


def end_of(segment: Segment, start: int = SEGMENT_HEADER_BYTES, durable: int | None = None) -> tuple[int, bool]:
    """The end of the last whole block of a segment, in bytes, and whether the end mark stands there.

    ``start`` is where a block is known to begin. A segment with an end mark will not grow. In one without,
    ``durable`` is the last row of the blocks that count; ``start`` is then that of the segment. Raises :exc:`OSError`.
    """
    descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sealed, size = False, os.fstat(descriptor).st_size
        row, durable_end = segment.first_sequence, start
        for extent in walk(lambda at, length: os.pread(descriptor, length, at), size, start):
            start, sealed = extent.end, extent.rows is None
            row += extent.rows or 0
            if durable is not None and row - 1 <= durable:
                durable_end = start
        return (start if durable is None or sealed else durable_end), sealed
    finally:
        os.close(descriptor)


def read_journal(
    directory: str | os.PathLike[str],
    start: Position | None = None,
    *,
    on_corrupt: OnCorrupt = "error",
    growing: bool | None = None,
    durable_only: bool = False,
) -> Iterator[Piece]:
    """The blocks of a journal, oldest first, from ``start`` on, or from the oldest segment there is.

    Each segment has to end with its mark, and the next has to go on with the number after it. The last segment needs no
    mark if ``growing``; by default that is whether a recorder is at work in this directory. Rows that are written are
    read, durable or not; with ``durable_only`` the reading ends after the last durable one.

    With ``on_corrupt="skip"``, what is damaged or missing comes as a :class:`.layout.Skipped`, with an exact count of
    the bytes, and of the rows where what follows tells it. Else it raises
    :exc:`~sbuslib.errors.CorruptJournalError`, with file and position. Raises
    :exc:`~sbuslib.errors.JournalError` when the segment of ``start`` is not there, and :exc:`OSError`.
    """
    durable = durable_sequence(directory) if durable_only else None
    segments, grows = snapshot(directory)
    growing = grows if growing is None else growing
    at = SEGMENT_HEADER_BYTES
    if start is not None:
        at = start.position
        segments = [segment for segment in segments if segment.name >= start.segment]
        if not segments or segments[0].name != start.segment:
            raise JournalError(f"{os.fspath(directory)}: segment {start.segment} is not there any more")
    for number, segment in enumerate(segments, 1):
        following = segments[number].first_sequence if number < len(segments) else None
        if following is None and growing and segment.size < SEGMENT_HEADER_BYTES:
            return  # the recorder is about to write the header
        open_end = following is None and durable is not None and not end_of(segment, at)[1]
        try:
            header = read_header(segment.path)
        except CorruptJournalError as error:
            if on_corrupt == "error":
                raise
            rows = following - segment.first_sequence if following is not None else None
            yield Piece(segment, None, Skipped(0, segment.size, rows, error.reason))
            continue
        for block in read_segment(
            segment.path, at, None, following, on_corrupt=on_corrupt, growing=growing and following is None
        ):
            if open_end and isinstance(block, Block) and durable is not None and block.next_sequence - 1 > durable:
                return
            if not isinstance(block, End):
                yield Piece(segment, header, block)
        at = SEGMENT_HEADER_BYTES


def read_records(directory: str | os.PathLike[str], *, growing: bool | None = None) -> Iterator[Record]:
    """The rows of a journal one by one, messages and gaps. Slower than its blocks by far; raises likewise."""
    for piece in read_journal(directory, growing=growing):
        assert isinstance(piece.block, Block)
        try:
            yield from piece.block.records()
        except CorruptJournalError as error:
            raise CorruptJournalError(error.reason, error.position, piece.segment.path) from None


# -- the recorder's lock ---------------------------------------------------------------------------------------


class DirectoryLock:
    """The lock of a directory: one recorder at a time may write, in any process; with another ``name``, one sealer.

    It is a lock of the kernel on that file (``flock(2)``), so it ends with its process.
    Raises :exc:`~sbuslib.errors.JournalInUseError`, and :exc:`OSError`.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str = LOCK_NAME) -> None:
        path = os.path.join(directory, name)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
        except BlockingIOError:
            by = os.pread(self._descriptor, 32, 0).partition(b"\n")[0].decode(errors="replace")
            os.close(self._descriptor)
            who = f" by process {by}" if by else ""
            raise JournalInUseError(f"{os.fspath(directory)} is recorded into already{who}") from None
        except BaseException:
            os.close(self._descriptor)
            raise
        former = os.pread(self._descriptor, 64, 0).split(b"\n")
        told = former[1] + b"\n" if len(former) >= 3 else b""  # holds until this process tells another number
        self._process = b"%d\n" % os.getpid()
        os.ftruncate(self._descriptor, os.pwrite(self._descriptor, self._process + told, 0))

    def tell(self, durable: int) -> None:
        """Tell readers the number of the last durable row. Raises :exc:`OSError`."""
        os.pwrite(self._descriptor, b"%s%020d\n" % (self._process, durable), 0)

    def _lock(self) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(0.001)  # it may be a reader in :func:`is_recorded`, which holds the lock for a moment
        return None

    def release(self) -> None:
        """Give up the lock. A second call does nothing. In the child of a fork, the parent keeps the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Make the names of files that were made or removed in a directory durable. Raises :exc:`OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def durable_sequence(directory: str | os.PathLike[str]) -> int:
    """The number of the last row that the recorder called durable, now or before it ended; 0 if none is known.

    All rows of a segment with an end mark are durable as well. A crash of the machine may leave a lower number here.
    """
    try:
        with open(os.path.join(directory, LOCK_NAME), "rb") as file:
            lines = file.read(64).split(b"\n")
    except OSError:
        return 0
    return int(lines[1]) if len(lines) >= 3 and lines[1].isdigit() and len(lines[1]) == 20 else 0


def boot_id() -> bytes:
    """16 bytes that name this boot of the machine; zeros if the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return bytes.fromhex(file.read().decode().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def is_recorded(directory: str | os.PathLike[str]) -> bool:
    """Whether a recorder of this machine is at work in a directory."""
    try:
        descriptor = os.open(os.path.join(directory, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
