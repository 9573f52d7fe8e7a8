"""Transfer of files: opened by the sender, and copied by each receiver.

All processes that have the descriptor share one open file. So only calls that take an offset of their own are used on
it. A file on a stranger's own file system could keep its readers waiting for ever. So from another user only memory is
copied, and files on a disk that is mounted here, too.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from io import UnsupportedOperation
from time import monotonic
from typing import Any, BinaryIO, Final, TypeAlias

from ...errors import DescriptorError, UsageError
from ...kernel.threads import in_a_thread
from ...wire.offers import COPYING, FAILED, HAVE
from ...wire.text import plainly
from .descriptor_client import WaitReadable
from .files import FileSink
from .memory import Memory, bytes_of, is_sealed

CHUNK: Final = 8_388_608
"""Bytes that are copied between two looks at whether to go on: some milliseconds."""
DISKS: Final = {"btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "vfat", "xfs", "zfs"}
"""File systems that wait for no other process or host."""
Source: TypeAlias = "bytes | str | os.PathLike[str] | BinaryIO"

LONGEST_TEXT: Final = 400
"""Longest reason that is sent to the sender, in bytes."""
STOP_SECONDS: Final = 1.0
"""Seconds to wait for the end of a copy: a chunk takes far less, unless the disk hangs."""
PAUSE: Final = 0.25
"""Seconds between two reports to the sender that the copy goes on."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_ACROSS: Final = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}  # errors of copy_file_range alone


def open_file(source: Any) -> tuple[int, str]:
    """Open a new descriptor, for reading only, of bytes, a file at a path, or an open file; return it and the file's
    name.

    Raises :exc:`OSError`, and :exc:`~sbuslib.errors.UsageError` for an object without a size, for example a pipe.
    """
    if isinstance(source, (str, os.PathLike)):
        fd, name = os.open(source, _FLAGS), os.path.basename(source)
    elif isinstance(source, int):
        raise UsageError(f"a file is a path, an open file, or bytes, not {source!r}")
    elif not hasattr(source, "read"):
        return _sealed(source), ""
    else:
        try:
            source.flush()
            fd, name = os.open(f"/proc/self/fd/{source.fileno()}", _FLAGS), ""  # which nobody can write to
        except UnsupportedOperation:  # it has no descriptor, as a BytesIO
            source.seek(0)
            return _sealed(source.read()), ""

    # It was opened without waiting, so pipes and devices come here, too.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UsageError("only a file has a size, and can be read by many")
    return fd, name


def _sealed(data: Any) -> int:
    memory = Memory(bytes_of(data))
    memory.seal()
    return memory.fd


def check_readable(fd: int) -> None:
    """Raise :exc:`~sbuslib.errors.DescriptorError` for a file of a stranger that could keep us waiting. Never waits."""
    if is_sealed(fd):
        return
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        mount = next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            fields, _, kind = line.partition(" - ")
            if fields.partition(" ")[0] == mount and kind.partition(" ")[0] in DISKS:
                return
    raise DescriptorError("file of another user that is not on a disk mounted here")


def copy_file(fd: int, to: int, size: int, goes_on: Callable[[], bool]) -> None:
    """Copy a file of this size. ``goes_on`` is called again and again, and ends the copy with ``False``.

    Raises :exc:`OSError`, and :exc:`~sbuslib.errors.DescriptorError` if it has another size, or changes meanwhile.
    """
    before = os.fstat(fd)
    if not stat.S_ISREG(before.st_mode) or before.st_size != size:
        raise DescriptorError("another size than told")

    copy, at = _by_range, 0
    while at < size:
        try:
            done = copy(fd, to, min(CHUNK, size - at), at)
        except OSError as error:
            if copy is _by_sending or error.errno not in _ACROSS:
                raise
            copy = _by_sending
            continue
        at += done
        if not done:
            break
        if not goes_on():
            raise DescriptorError("copy that was stopped")

    after = os.fstat(fd)
    if at < size or (after.st_size, after.st_mtime_ns) != (size, before.st_mtime_ns):
        raise DescriptorError("file that changed while it was copied")


def _by_range(fd: int, to: int, count: int, at: int) -> int:
    return os.copy_file_range(fd, to, count, at, at)


def _by_sending(fd: int, to: int, count: int, at: int) -> int:
    os.lseek(to, at, os.SEEK_SET)
    return os.sendfile(to, fd, at, count)


class Copying:
    """The copy of one file, made by a thread of its own, as a disk may be slow. The file, the sink and the connection
    to the descriptor store are the thread's from now on.

    :param sock: the connection on which the sender gets reports.
    :param sink: takes the bytes.

    Raises :exc:`OSError` if there can be no thread; then they stay the caller's.
    """

    def __init__(self, sock: socket.SocketType, token: bytes, fd: int, size: int, sink: FileSink) -> None:
        self._result: Any = None  # the sink's result
        self._error: Exception | None = None  # its error
        self._is_left = False  # whether no caller waits for it any more
        self._news, self._tells = os.pipe2(
            os.O_CLOEXEC | os.O_NONBLOCK
        )  # a byte when it has gone on, closed at its end
        try:
            in_a_thread(self._run, sock, token, fd, size, sink)
        except OSError:
            os.close(self._news)
            os.close(self._tells)
            raise

    async def wait(self, wait_readable: WaitReadable, timeout: float) -> Any:
        """Wait for the file. A caller that gives up may wait again later, or :meth:`stop` it.

        Raises the error of the copy, and :exc:`~sbuslib.errors.DescriptorError` when it makes no progress for
        ``timeout`` seconds.
        """
        goes_on = True
        while goes_on:
            if not await wait_readable(self._news, timeout):
                raise DescriptorError("file that does not go on")
            goes_on = bool(os.read(self._news, 4_096))
        if self._error is not None:
            raise self._error
        return self._result

    async def stop(self, wait_readable: WaitReadable) -> None:
        """Stop the copy. A file that is not whole is removed, unless the disk takes longer than a second."""
        self._is_left = True
        while await wait_readable(self._news, STOP_SECONDS) and os.read(self._news, 4_096):
            pass
        os.close(self._news)

    def _run(self, sock: socket.SocketType, token: bytes, fd: int, size: int, sink: FileSink) -> None:
        said = monotonic()

        def goes_on() -> bool:
            nonlocal said
            if monotonic() - said > PAUSE:
                said = monotonic()
                say(sock, COPYING, token)
            with suppress(OSError):  # it is full, or its other end has gone
                os.write(self._tells, b".")
            return not self._is_left

        try:
            copy_file(fd, sink.fileno(), size, goes_on)
            self._result = sink.finish()
            say(sock, HAVE, token)
        except Exception as error:
            self._error = error
            sink.discard()
            say(sock, FAILED, token, plainly(error))
        os.close(fd)
        sock.close()
        os.close(self._tells)


def say(sock: socket.SocketType, word: bytes, token: bytes, text: str = "") -> None:
    """Send a report to the sender of a file. It may have gone: errors are ignored."""
    with suppress(OSError):
        sock.send(word + token + text.encode(errors="replace")[:LONGEST_TEXT], socket.MSG_NOSIGNAL)
