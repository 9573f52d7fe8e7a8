"""The file of a queue: what it holds after a turn, who may read it, and what it refuses."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from sbuslib.errors import StateError
from sbuslib.services.queue_rules import Jobs, Turn
from sbuslib.services.queue_store import Store


def test_a_file_holds_what_turns_changed(tmp_path: Path) -> None:
    jobs = Jobs(10, 10_000, 1.0, 3)
    jobs.announce(b"worker", None, b"", 2, [], 0.0)
    jobs.accept([(b"a", b"1"), (b"b\xff", b"\0"), (b"c", b"")], 7)
    with Store(tmp_path / "q") as store:
        store.commit(jobs.turn(0.0))
        assert store.load() == [(1, b"a", b"1", 7, 1), (2, b"b\xff", b"\0", 7, 1), (3, b"c", b"", 7, 0)]
        jobs.finish(jobs.workers[b"worker"], [1], [2], 0.0)
        store.commit(jobs.turn(0.0))
    with Store(tmp_path / "q") as store:
        rows = store.load()
        assert rows == [(2, b"b\xff", b"\0", 7, 2), (3, b"c", b"", 7, 1)]
        again = Jobs(10, 10_000, 1.0, 3)
        again.load(rows)
        assert again.accept([(b"d", b"")], None)
        assert [job.number for job in again.turn(0.0).new] == [4]


def test_a_file_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Store(tmp_path / "q") as store:
            store.commit(_turn())
            assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    finally:
        os.umask(before)


def test_a_file_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path / "q"), pytest.raises(StateError, match="locked"):
        Store(tmp_path / "q")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q").write_bytes(b"something else" * 100)
    with pytest.raises(StateError, match="not a database"):
        Store(tmp_path / "q")
    with sqlite3.connect(tmp_path / "newer") as database:
        database.execute("PRAGMA user_version=2")
    with pytest.raises(StateError, match="newer"):
        Store(tmp_path / "newer")


def test_a_turn_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    with Store(tmp_path / "q") as store:
        turn = _turn()
        store.commit(turn)
        turn.new.insert(0, Jobs(1, 1, 1.0, 1).jobs.get(1) or _turn("before").new[0])
        with pytest.raises(sqlite3.IntegrityError):
            store.commit(turn)
        assert len(store.load()) == 1


def _turn(payload: str = "") -> Turn:
    jobs = Jobs(10, 10_000, 1.0, 3)
    jobs.accept([(b"key", payload.encode())], None)
    return jobs.turn(0.0)
