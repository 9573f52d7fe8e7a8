"""Regular files, opened through no link: the one place where this package opens files to write them.

Whoever may make names in a folder could put a link there, and have us truncate what it points to; or a FIFO, and have
us wait for ever. So the last part of a path is never followed, and nothing but a regular file is opened.

**Root and folders of others.** The owner of a folder, or of one above it, can put something else in its place at any
time. Root could so be made to write anywhere; and what root writes there, its owner cannot write any more. So root
writes only where all of the path is root's own, and else refuses with a sentence that says what to type. Sockets hold
nothing, so a hub of root may listen in a folder of others: see :mod:`.sockets`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from ..errors import StateError
from .users import name_of_user

_WRITES = os.O_WRONLY | os.O_RDWR
_LINKS = 40
"""As many links the kernel follows on one path."""


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file through no link, and return the descriptor. Never waits for another process.

    Root writes only to files of its own, in folders of its own. Raises :exc:`OSError`, and
    :exc:`~sbuslib.errors.StateError` where root would have to write for another user.
    """
    writes = bool(flags & _WRITES)
    if writes:
        check_folder(os.path.dirname(path) or ".")

    # 1. The file. It is cut only once it is known to be one that may be.
    try:
        fd = os.open(path, (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "this is a link, which is not followed", os.fspath(path)) from None
        if error.errno == errno.ENXIO:  # a FIFO that nobody reads
            raise _irregular(path) from None
        raise

    # 2. What was opened.
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _irregular(path)
        if writes:
            _check_owner(status.st_uid, os.fspath(path), os.fspath(path))
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_emptied(path: str | os.PathLike[str], mode: int = 0o600) -> BinaryIO:
    """Open a file to write it from its start; one that is there keeps its mode. Raises as :func:`open_regular`."""
    return os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb")


def make_folder(path: str | os.PathLike[str], mode: int = 0o700) -> None:
    """Make a folder, and those above it, unless it is there. Raises as :func:`open_regular`."""
    check_folder(path)
    os.makedirs(path, mode, exist_ok=True)


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise :exc:`~sbuslib.errors.StateError` for a folder where root would have to write for another user.

    Folders that are not there yet belong to nobody.
    """
    if os.geteuid() == 0:
        for place, uid in _owners(os.path.abspath(path)):
            _check_owner(uid, os.fspath(path), place)


def _owners(path: str) -> Iterator[tuple[str, int]]:
    """Yield each folder and each link on the way to a path, with its owner, as the kernel goes."""
    at, names, links = "/", path.split("/")[::-1], 0
    yield at, os.stat(at).st_uid
    while names:
        # 1. The next part of the path.
        if (name := names.pop()) in ("", "."):
            continue
        place = os.path.dirname(at) if name == ".." else os.path.join(at, name)
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield place, status.st_uid
        if not stat.S_ISLNK(status.st_mode):
            at = place
            continue

        # 2. A link, from where it leads.
        links += 1
        if links > _LINKS:
            return
        target = os.readlink(place)
        at = "/" if target.startswith("/") else at
        names += target.split("/")[::-1]


def _check_owner(uid: int, path: str, place: str) -> None:
    if uid == 0 or os.geteuid() != 0 or _is_unknown(uid):
        return
    name = name_of_user(uid)
    program = f"runuser -u {name} --" if name != str(uid) else f"setpriv --reuid {uid} --clear-groups"
    whose = "this" if place == path else place
    raise StateError(
        f"{path}: {whose} belongs to user {name}, who could make root write anywhere: run this as that user, with "
        f"{program} COMMAND"
    )


def _is_unknown(uid: int) -> bool:
    """Whether an id stands for all users that this user namespace does not know, as the owner of / in a sandbox."""
    try:
        with open("/proc/sys/fs/overflowuid", "rb") as overflow, open("/proc/self/uid_map", "rb") as known:
            return uid == int(overflow.read()) and known.read().split() != [b"0", b"0", b"4294967295"]
    except (OSError, ValueError):
        return False


def _irregular(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "this is no regular file", os.fspath(path))
