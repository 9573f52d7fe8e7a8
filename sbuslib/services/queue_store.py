"""Where a queue keeps its jobs: a file of SQLite, of which each turn of the service is one transaction.

WAL mode with ``synchronous=FULL``: when :meth:`Store.commit` returns, the disk has it. One sync serves all jobs of a
turn. The file is locked for as long as it is open.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Self

from ..errors import StateError
from .queue_rules import Turn

__all__ = ["Row", "Store"]

Row = tuple[int, bytes, bytes, int | None, int]
"""Number, key, payload, owner, attempts."""

_VERSION = 1


class Store:
    """The jobs of one queue in a file, to be used with ``with``.

    Raises :exc:`~sbuslib.errors.StateError` for a file that is in use or is no store. ``sqlite3.Error`` of a method
    means that the disk is full or fails, and that nothing of that turn is stored.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite's other files get its mode
        self._db = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("BEGIN EXCLUSIVE")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise StateError(f"{os.fspath(path)}: version {version} is of a newer sbuslib")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS jobs (number INTEGER PRIMARY KEY, key BLOB NOT NULL,"
                " payload BLOB NOT NULL, owner INTEGER, attempts INTEGER NOT NULL)"
            )
            self._db.execute(f"PRAGMA user_version={_VERSION}")
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._db.close()
            raise StateError(f"{os.fspath(path)}: {error}") from error
        except StateError:
            self._db.close()
            raise

    def load(self) -> list[Row]:
        """All jobs, oldest first."""
        return self._db.execute("SELECT number, key, payload, owner, attempts FROM jobs ORDER BY number").fetchall()

    def commit(self, turn: Turn) -> None:
        """Store what has changed, all or nothing."""
        if not (turn.new or turn.again or turn.finished):
            return
        db = self._db
        db.execute("BEGIN")
        new = [(job.number, job.key, job.payload, job.owner, job.attempts) for job in turn.new]
        again = [(job.attempts, job.number) for job in turn.again]
        db.executemany("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", new)
        db.executemany("UPDATE jobs SET attempts = ? WHERE number = ?", again)
        db.executemany("DELETE FROM jobs WHERE number = ?", zip(turn.finished))
        db.execute("COMMIT")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()  # which unlocks it
