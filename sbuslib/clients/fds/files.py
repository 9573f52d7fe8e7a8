"""Files received from other processes: written to one folder, and nowhere outside of it."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ...kernel.defaults import temporary_folder
from ...kernel.regular_files import check_folder

LONGEST_NAME: Final = 200
"""Bytes of a file's name. Most file systems take 255, and a number may be added."""
_NO_FILES_WITHOUT_NAME: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""Errors of open(2) where the file system or the kernel has no ``O_TMPFILE``."""
MOST_OF_A_NAME: Final = 1_000
"""Most files of one name in a folder, distinguished by numbers."""


def safe_name(name: str, otherwise: str) -> str:
    """Return a name that a stranger chose, if it is plainly that of a file in a folder; else the other name."""
    plain = name.isprintable() and name[:1] not in ("", ".", "-", "~") and "/" not in name
    return name if plain and len(name.encode()) <= LONGEST_NAME else otherwise


class FileSink:
    """Takes the bytes of one received file: a temporary file, or one that appears in ``folder`` once it is whole.

    No file there is ever replaced: one of the same name gets a number. Only the user of the process may read it. Until
    it is whole it has no name, so a kill leaves no file behind. Where the file system has no nameless files, its name
    begins with ``.sbus-`` until then.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, name: str) -> None:
        self._folder = folder
        self._name = name
        self._path: str | None = None  # while it has a name before it is whole
        if folder is None:
            self._file: Any = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115
            return
        check_folder(folder)
        try:
            descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _NO_FILES_WITHOUT_NAME:
                raise
            descriptor, self._path = tempfile.mkstemp(dir=folder, prefix=".sbus-")
        self._file = os.fdopen(descriptor, "w+b")  # the received bytes, without a name until the file is whole

    def fileno(self) -> int:
        """The descriptor, for writing at any offset."""
        number: int = self._file.fileno()
        return number

    def write(self, data: memoryview) -> None:
        self._file.write(data)

    def finish(self) -> Any:
        """Return the path of the whole file, or the temporary file, open, at its start. Raises :exc:`OSError`."""
        self._file.flush()
        if self._folder is None:
            self._file.seek(0)
            return self._file
        stem, end = os.path.splitext(self._name)
        for number in range(MOST_OF_A_NAME):
            path = Path(self._folder, f"{stem}-{number}{end}" if number else self._name)
            with suppress(FileExistsError):
                # This replaces nothing. With ``src_dir_fd`` it follows the link of /proc to the file without a name.
                source = self._path or f"/proc/self/fd/{self._file.fileno()}"
                os.link(source, path, src_dir_fd=self._file.fileno())
                self.discard()
                return path
        raise FileExistsError(f"there are {MOST_OF_A_NAME:,} files {self._name} in {self._folder}")

    def discard(self) -> None:
        """Remove the file, unless it is whole. Also after an error of :meth:`write`, for example a full disk."""
        with suppress(OSError):  # it is closed all the same
            self._file.close()
        if self._path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
