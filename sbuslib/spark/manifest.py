"""The manifest of a lake: which of its directories count.

A lake is a directory of batch directories, each of which holds Parquet files by date and hub. A batch directory counts
once the manifest names it. The manifest is replaced by a rename, so a batch is in the lake whole or not at all, also
after a kill, and ``compact`` can replace many directories by one. Readers of the lake read only the directories that
the manifest names.

For each journal the manifest also names the last batch. When a driver is killed before Spark notes that the batch is
done, the batch comes again, and is left out.

This module needs no Spark. A lake is a local directory, or one that all workers see under the same path.
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
    """A directory that counts: its name in the lake, and the totals of its files."""

    path: str
    rows: int
    bytes: int
    files: int


class Stream(msgspec.Struct, frozen=True):
    """How far a journal was taken in: the id of Spark's query, its last batch, and the place of the journal."""

    query: str
    batch: int
    place: str


class Retired(msgspec.Struct, frozen=True):
    """A directory that was replaced, and when, in seconds since the epoch. Readers may still use it."""

    path: str
    since: float


class Manifest(msgspec.Struct, frozen=True):
    """The content of the file. The keys of ``streams`` are the identities of journals."""

    version: int = 1
    entries: tuple[Entry, ...] = ()
    streams: dict[str, Stream] = {}
    retired: tuple[Retired, ...] = ()


def _path(lake: str | os.PathLike[str]) -> Path:
    return Path(lake, _FOLDER, _NAME)


def is_lake(place: str | os.PathLike[str]) -> bool:
    """Whether a local directory is a lake."""
    return _path(place).is_file()


def read_manifest(lake: str | os.PathLike[str]) -> Manifest:
    """The manifest as it is now. Raises :exc:`~sbuslib.errors.StateError` if it is missing or of another release."""
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
    """Hold ``flock(2)`` on a file, which is made. The kernel releases the lock when the process ends.

    Raises :exc:`~sbuslib.errors.StateError` when another process holds the lock and ``wait`` is false.
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
    """Change the manifest: write the ``manifest`` that the block leaves. A missing manifest is made.

    One process at a time. The change is durable when the block has ended; after a kill, all of it or nothing is there.
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
