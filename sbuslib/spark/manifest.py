"""The manifest of a lake: which of its directories count.

A lake is a directory of batch directories, each of which holds Parquet files by date and hub. A batch directory counts
once the manifest names it, and the manifest is replaced whole, by a rename: so a batch is there whole or not at all,
whoever is killed when, and ``compact`` can put one directory in the place of many. What reads the lake reads what the
manifest names and nothing else.

Beside the directories the manifest tells of each journal which batch was the last: one that comes again, since its
driver was killed before Spark noted that it was done, is left out.

No Spark here. A lake is a directory of this machine's, or one that all workers see under the same path.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..errors import StateError
from ..segments.directory import sync_directory

__all__ = ["Entry", "Manifest", "Retired", "Stream", "changed", "is_lake", "locked", "read_manifest"]

_FOLDER = "_sbus"
_NAME = "manifest.json"


class Entry(msgspec.Struct, frozen=True):
    """A directory that counts: its name in the lake, and what its files hold together."""

    path: str
    rows: int
    bytes: int
    files: int


class Stream(msgspec.Struct, frozen=True):
    """How far a journal was taken in: by the query of this id, up to and with this batch, from this place."""

    query: str
    batch: int
    place: str


class Retired(msgspec.Struct, frozen=True):
    """A directory that another has replaced, and when, in seconds since the epoch: readers may still be at it."""

    path: str
    since: float


class Manifest(msgspec.Struct, frozen=True):
    """What stands in the file. ``streams`` has the identities of journals for keys."""

    version: int = 1
    entries: tuple[Entry, ...] = ()
    streams: dict[str, Stream] = {}
    retired: tuple[Retired, ...] = ()


def _path(lake: str | os.PathLike[str]) -> Path:
    return Path(lake, _FOLDER, _NAME)


def is_lake(place: str | os.PathLike[str]) -> bool:
    """Whether there is a lake at a directory of this machine."""
    return _path(place).is_file()


def read_manifest(lake: str | os.PathLike[str]) -> Manifest:
    """The manifest as it is now. Raises :exc:`~sbuslib.errors.StateError` when that is no lake of this release."""
    path = _path(lake)
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise StateError(f"{os.fspath(lake)} is no lake: sbus lake ingest makes one") from None
    except msgspec.DecodeError as error:
        raise StateError(f"{path}: {error}") from None
    if manifest.version != 1:
        raise StateError(f"{path} is of version {manifest.version}, of which this release knows nothing")
    return manifest


@contextmanager
def locked(path: str | os.PathLike[str], wait: bool = True) -> Iterator[None]:
    """Hold a lock of the kernel's on a file, which is made; it ends with its process, however that ends.

    Raises :exc:`~sbuslib.errors.StateError` when another process holds it, unless it is waited for.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    except BlockingIOError:
        raise StateError(f"{os.fspath(path)} is held by another process, which does the same") from None
    finally:
        os.close(descriptor)


class _Change:
    """A manifest that may be replaced."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest


@contextmanager
def changed(lake: str | os.PathLike[str]) -> Iterator[_Change]:
    """Change the manifest, which is made where there is none: what ``manifest`` is at the end is written.

    One process at a time. Durable when it returns, and all or nothing whenever the process is killed.
    """
    path = _path(lake)
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        before = read_manifest(lake) if path.exists() else None
        change = _Change(before or Manifest())
        yield change
        if change.manifest != before:
            temporary = folder / f"{_NAME}.new"
            with open(temporary, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(change.manifest)))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_directory(folder)
