"""A journal's directory: the list of its segments, their headers, and the lock of the recorder.

Reading needs no lock and disturbs no recorder: a segment only grows, except that its last bytes are cut off after a
crash, and it is deleted whole. This module needs no event loop.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from typing import NamedTuple

from ...errors import CorruptJournalError, JournalInUseError
from ...kernel.regular_files import open_regular
from .layout import SEGMENT_HEADER_BYTES, SegmentHeader, first_sequence_of, segment_name

LOCK_NAME = "recorder.lock"
"""The file in a journal's directory that its recorder keeps locked. It holds two lines: the process id of the recorder,
and the number of the last row that is durable."""

_FLOCK = struct.Struct("hhqqi4x")
"""The ``struct flock`` of the kernel: kind, whence, start, length, process."""

_WHOLE_FILE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class Segment(NamedTuple):
    """File of a segment: its path, the number of its first row by its name, and its size when it was listed."""

    path: str
    first_sequence: int
    size: int

    @property
    def name(self) -> str:
        """The name of the file alone."""
        return segment_name(self.first_sequence)


def list_segments(directory: str | os.PathLike[str]) -> list[Segment]:
    """List the segments in a directory, oldest first. Raises :exc:`OSError`."""
    segments: list[Segment] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            first = first_sequence_of(entry.name)
            if first is not None:
                try:
                    segments.append(Segment(entry.path, first, entry.stat().st_size))
                except FileNotFoundError:
                    continue  # deleted by the recorder just now
    return sorted(segments, key=lambda segment: segment.first_sequence)


def read_header(path: str | os.PathLike[str]) -> SegmentHeader:
    """Read the header of a segment.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`, also where it does not belong to the file's name, and
    :exc:`OSError`.
    """
    descriptor = open_regular(path)
    try:
        return decode_header(os.pread(descriptor, SEGMENT_HEADER_BYTES, 0), os.fspath(path))
    finally:
        os.close(descriptor)


def decode_header(data: bytes, path: str) -> SegmentHeader:
    """Decode the header in the first bytes of a segment.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`, with the path.
    """
    try:
        header = SegmentHeader.decode(data)
        if first_sequence_of(os.path.basename(path)) != header.first_sequence:
            raise CorruptJournalError(f"the file's name should be {segment_name(header.first_sequence)}", 0)
    except CorruptJournalError as error:
        raise CorruptJournalError(error.reason, error.position, path) from None
    return header


# -- the recorder's lock ---------------------------------------------------------------------------------------


class DirectoryLock:
    """Lock of a directory: one recorder at a time may write, in any process. Files of other names are other locks.

    It is a lock of the kernel on that file, of its open description (``F_OFD_SETLK`` of fcntl(2)). So it ends with its
    process, and others can test it without taking it. With ``wait`` this blocks until the lock is free; else it
    raises :exc:`~sbuslib.errors.JournalInUseError`. Raises :exc:`OSError`.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str = LOCK_NAME, *, wait: bool = False) -> None:
        path = os.path.join(directory, name)
        #: It holds the lock while it is open. The file has the process id of the holder, and its note.
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except BlockingIOError:
            by = os.pread(self._descriptor, 32, 0).partition(b"\n")[0].decode(errors="replace")
            os.close(self._descriptor)
            holder = f" by process {by}" if by else ""
            raise JournalInUseError(f"{os.fspath(directory)} is recorded into already{holder}") from None
        except BaseException:
            os.close(self._descriptor)
            raise
        lines = os.pread(self._descriptor, 128, 0).split(b"\n")
        self.note = lines[1] if len(lines) >= 3 else b""
        """The note of the last holder. It stays until this process writes another one."""
        self._process = b"%d\n" % os.getpid()  # the first line of the file
        self.write_note(self.note)
        os.ftruncate(self._descriptor, len(self._process) + len(self.note) + 1)
        _locks.add(self)

    def write_note(self, note: bytes) -> None:
        """Write a line for other processes, of the same length at each call.

        A kill does not undo it. Raises :exc:`OSError`.
        """
        os.pwrite(self._descriptor, b"%b%b\n" % (self._process, note), 0)

    def close(self) -> None:
        """Give up the lock. A second call does nothing. In the child of a fork, the parent keeps it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_locks: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _close_all() -> None:
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_all)


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Sync a directory, so that files stay created or removed after a crash. Raises :exc:`OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(path: str, name: str) -> None:
    """Sync a file that was written aside, and then rename it. Raises :exc:`OSError`."""
    descriptor = open_regular(path)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(path, name)
    sync_directory(os.path.dirname(name))


def durable_sequence(directory: str | os.PathLike[str]) -> int:
    """Read the number of the last row that the recorder called durable, now or before it ended; 0 if none is known.

    All rows of a segment with an end mark are durable as well. A crash of the machine may leave a lower number here.
    """
    try:
        descriptor = open_regular(os.path.join(directory, LOCK_NAME))
    except OSError:
        return 0
    try:
        lines = os.pread(descriptor, 64, 0).split(b"\n")
    finally:
        os.close(descriptor)
    return int(lines[1]) if len(lines) >= 3 and lines[1].isdigit() and len(lines[1]) == 20 else 0


def boot_id() -> bytes:
    """Id of this boot of the machine, 16 bytes; zeros if the kernel has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return bytes.fromhex(file.read().decode().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def is_recorded(directory: str | os.PathLike[str]) -> bool:
    """Whether a recorder of this machine is at work in a directory."""
    try:
        descriptor = open_regular(os.path.join(directory, LOCK_NAME))
    except OSError:
        return False
    try:
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WHOLE_FILE))
    finally:
        os.close(descriptor)
    return bool(kind != fcntl.F_UNLCK)
