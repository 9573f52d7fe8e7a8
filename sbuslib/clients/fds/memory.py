"""Shared memory: a file without a name, which receivers map.

A process of its publisher's user gets it as it is: it could do worse than change memory. So the memory is used again,
as new memory takes the kernel five times as long to fill. Before another user gets it, it is *sealed*: no process can
change it afterwards, its publisher included.

A receiver checks before it maps, in this order. Seals first: the kernel answers them for memory alone, while to ask for
the size of a file may wait for a file system that a stranger serves. Then the kind and the size. Then the blocks: a
sealed file of 1 TiB without any passes the rest, and to read it would fill the reader's memory.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from ...errors import DescriptorError, UsageError

_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEALS: Final = _SIZE_SEALS | fcntl.F_SEAL_WRITE
_NOEXEC: Final = 0x0008  # MFD_NOEXEC_SEAL of Linux 6.3, which the os module has no name for
_BLOCK: Final = 512  # bytes of a block of st_blocks


def bytes_of(buffer: Any) -> memoryview:
    """Return all bytes of a buffer. Raises :exc:`~sbuslib.errors.UsageError` unless it is one, in one piece."""
    try:
        view = memoryview(buffer)
    except TypeError:
        raise UsageError(f"a frame is a buffer, such as bytes or an array, not {type(buffer).__name__}") from None
    if not view.c_contiguous:
        raise UsageError("a frame is one piece of memory: make the array contiguous first")
    return view.cast("B") if view.nbytes else memoryview(b"")


class Memory:
    """A copy of some bytes, to be offered; it may be filled again, with the same size, once no other process has it.

    Raises :exc:`OSError`.
    """

    def __init__(self, view: memoryview) -> None:
        self.size = view.nbytes  # for good
        self.is_sealed = False
        """Whether no process can change it any more, as another user may have it."""
        self._map: mmap.mmap | None = None  # mapping for later writes
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            self.fd = os.memfd_create("sbus-frame", flags | _NOEXEC)
        except OSError:  # an older kernel
            self.fd = os.memfd_create("sbus-frame", flags)

        # Its size is fixed from the beginning, its content only once another user may have it.
        try:
            at = 0
            while at < len(view):
                at += os.write(self.fd, view[at:])  # and not mapped: so the kernel need not clear the pages first
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
        except BaseException:
            os.close(self.fd)
            raise

    def open(self) -> int:
        """Return a descriptor for reading, to be offered. The kernel counts it while any process has it, or has it
        mapped.
        """
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def is_free(self) -> bool:
        """Return whether no other process has it: only then does the kernel grant a lease for writing."""
        probe = self.open()
        try:
            fcntl.fcntl(probe, fcntl.F_SETSIG, signal.SIGURG)  # if it is opened meanwhile: SIGIO ends a process
            fcntl.fcntl(probe, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
        finally:
            os.close(probe)  # and with it the lease
        return True

    def write(self, view: memoryview) -> None:
        """Write other bytes of the same size. Only while it is free."""
        if self._map is None:
            self._map = mmap.mmap(self.fd, self.size)
        self._map[:] = view

    def seal(self) -> None:
        """Seal the memory: no process can change it afterwards. Raises :exc:`OSError` if a process of our user made it
        writable.
        """
        if not self.is_sealed:
            if self._map is not None:
                self._map.close()
                self._map = None
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
            self.is_sealed = True

    def close(self) -> None:
        """Close it. Processes that have it keep it."""
        if self._map is not None:
            self._map.close()
        os.close(self.fd)


def is_sealed(fd: int, seals: int = _SEALS) -> bool:
    """Return whether a descriptor is memory that no process can change. Never waits."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals
    except OSError:  # it is no memory
        return False


def check_memory(fd: int, size: int, *, is_ours: bool) -> None:
    """Raise :exc:`~sbuslib.errors.DescriptorError` unless a descriptor is sealed memory of this size, all of it there.

    Memory of our own user may be written again, once no process has it.
    """
    if not is_sealed(fd, _SIZE_SEALS if is_ours else _SEALS):
        raise DescriptorError("no sealed memory")
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size != size:
        raise DescriptorError("another size than told")
    if found.st_blocks * _BLOCK < size:
        raise DescriptorError("memory with holes")


class Frame:
    """A read-only buffer with the data of its message: ``memoryview``, NumPy and pyarrow take it without a copy.

    It is released by :meth:`close`, by the end of its ``with``, or when it is collected; but not before the last array
    that uses it.
    """

    key: bytes
    """The routing key that it was published under."""
    sender: bytes | None
    """The credential key of its publisher; ``None`` where the hub names no senders."""
    meta: bytes
    """The publisher's description of it."""

    if TYPE_CHECKING:

        def __buffer__(self, flags: int, /) -> memoryview: ...

        def __len__(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self)

    def close(self) -> None:
        """Release it. Arrays that use it stay valid."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PacketFrame(Frame, bytes):
    """A frame whose bytes came in its packet."""


class MappedFrame(Frame, mmap.mmap):  # type: ignore[misc]  # mmap.size() is the size of the file, the same
    """A frame in shared memory. Before Python 3.12, only built-in types can be buffers."""

    def close(self) -> None:
        with suppress(BufferError):  # an array uses it
            mmap.mmap.close(self)

    def __repr__(self) -> str:
        return f"<frame of {len(self):,} bytes>"


def map_memory(fd: int, size: int) -> MappedFrame:
    """Map memory that :func:`check_memory` accepted; the descriptor can be closed. Raises :exc:`OSError`."""
    if sys.version_info >= (3, 13):  # else Python keeps a copy of the descriptor
        return MappedFrame(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, trackfd=False)
    return MappedFrame(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
