"""Store of queues' jobs: a file of SQLite. Each turn of the service is one transaction.

WAL mode with ``synchronous=FULL``: when :meth:`Store.commit` returns, the disk has it. One sync serves all jobs of a
turn. The file is locked for as long as it is open.

With ``sync``, the kernel has it when :meth:`Store.commit` returns, and the disk so many seconds later: the end of a
process loses nothing, the end of the machine loses later commits. SQLite then syncs before it writes its log back into
the file; and the frames of the log have checksums, so only the end of the log is lost.
"""

from __future__ import annotations

import os
import sqlite3
from time import monotonic, time
from typing import Self

from ..errors import StateError
from ..kernel.regular_files import open_regular
from .queue_rules import Row, Turn

_VERSION = 2
_COLUMNS = "number, queue, key, payload, owner, sender, priority, attempts, came, due, expires"


class Store:
    """The jobs of a service in a file, to be used with ``with``.

    Times of jobs are those of ``time.monotonic``, and in the file seconds since 1970. Raises
    :exc:`~sbuslib.errors.StateError` for a file that is in use or is no store. ``sqlite3.Error`` and :exc:`OSError` of
    a method mean that the disk is full or fails, and that nothing of that turn is stored.
    """

    def __init__(self, path: str | os.PathLike[str], sync: float | None = None) -> None:
        os.close(open_regular(path, os.O_RDWR | os.O_CREAT))  # SQLite's other files get its mode
        self._sync = sync
        self._log = -1  # SQLite's log, to sync it
        self._due: float | None = None  # when the log has to be synced
        self._db = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)

        # The lock is taken at once and kept: two services of one file would both give each job.
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(f"PRAGMA synchronous={'FULL' if sync is None else 'NORMAL'}")
            self._db.execute("BEGIN EXCLUSIVE")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise StateError(f"{os.fspath(path)}: version {version} is of another sbuslib")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS jobs (number INTEGER PRIMARY KEY, queue BLOB NOT NULL, key BLOB NOT NULL,"
                " payload BLOB NOT NULL, owner INTEGER, sender BLOB, priority INTEGER NOT NULL,"
                " attempts INTEGER NOT NULL, came REAL NOT NULL, due REAL, expires REAL)"
            )
            self._db.execute("CREATE TABLE IF NOT EXISTS submits (digest BLOB PRIMARY KEY, trusted INTEGER NOT NULL)")
            self._db.execute(f"PRAGMA user_version={_VERSION}")
            self._db.execute("COMMIT")
            if sync is not None:
                self._log = open_regular(f"{os.fspath(path)}-wal")
        except (sqlite3.Error, OSError) as error:
            self._db.close()
            raise StateError(f"{os.fspath(path)}: {error}") from error
        except StateError:
            self._db.close()
            raise

    def load(self) -> list[Row]:
        """Load all jobs, oldest first."""
        since = time() - monotonic()  # from the monotonic clock to that of jobs
        return [
            (*row, came - since, 0.0 if due is None else due - since, float("inf") if until is None else until - since)
            for *row, came, due, until in self._db.execute(f"SELECT {_COLUMNS} FROM jobs ORDER BY number")
        ]

    def load_submits(self) -> list[tuple[bytes, bool]]:
        """Load the submits that are not to be taken in again, oldest first, and whether each is of a trusted user."""
        return self._db.execute("SELECT digest, trusted FROM submits ORDER BY rowid").fetchall()

    def commit(self, turn: Turn) -> None:
        """Store the changes, all or nothing."""
        if not (turn.new or turn.changed or turn.finished or turn.submits):
            return
        since = time() - monotonic()
        new = [
            (
                *(job.number, job.queue.name, job.key, job.payload, job.owner, job.sender, job.priority, job.attempts),
                *(job.came + since, job.due + since if job.due else None),
                job.until + since if job.until != float("inf") else None,
            )
            for job in turn.new
        ]
        changed = [(job.queue.name, job.attempts, job.number) for job in turn.changed]

        db = self._db
        db.execute("BEGIN")
        db.executemany(f"INSERT INTO jobs ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", new)
        db.executemany("UPDATE jobs SET queue = ?, attempts = ? WHERE number = ?", changed)
        db.executemany("DELETE FROM jobs WHERE number = ?", zip(turn.finished))
        kept = [(digest, is_trusted) for digest, is_trusted in turn.submits.items() if is_trusted is not None]
        # One that the turn first forgot, and then took in again, is still here.
        db.executemany("INSERT OR REPLACE INTO submits VALUES (?, ?)", kept)
        db.executemany("DELETE FROM submits WHERE digest = ?", zip(turn.submits.keys() - dict(kept)))
        db.execute("COMMIT")
        if self._sync is not None and self._due is None:
            self._due = monotonic() + self._sync

    def next_sync(self) -> float | None:
        """Time at which :meth:`sync` has something to do."""
        return self._due

    def sync(self, at: float) -> None:
        """Sync committed changes to the disk, if it is time."""
        if self._due is not None and self._due <= at:
            os.fdatasync(self._log)
            self._due = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
        self._db.close()  # which unlocks it, and writes the log back
