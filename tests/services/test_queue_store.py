"""What a queue stores: whole turns, in a file of its own."""

from __future__ import annotations

import os
import sqlite3
import stat
from math import inf
from pathlib import Path

import pytest

from sbuslib.errors import StateError
from sbuslib.services.queue_rules import Jobs, Turn
from sbuslib.services.queue_store import Store

# -- The file of a queue: what it holds after a turn, who may read it, and what it refuses


def test_a_file_holds_what_turns_changed(tmp_path: Path) -> None:
    jobs = Jobs(10, 10_000, 1.0, 3)
    jobs.announce(b"q", b"worker", None, b"", 2, [], 0.0)
    jobs.accept(b"q", [(b"a", b"1"), (b"b\xff", b"\0"), (b"c", b"")], 7, 5.0, sender=b"me", expires=9.0)
    jobs.accept(b"q", [(b"d", b"")], None, 5.0, delay=2.0, priority=3)
    with Store(tmp_path / "q") as store:
        store.commit(jobs.turn(0.0, 5.0))
        assert [row[:8] for row in store.load()] == [
            (1, b"q", b"a", b"1", 7, b"me", 0, 1),
            (2, b"q", b"b\xff", b"\0", 7, b"me", 0, 1),
            (3, b"q", b"c", b"", 7, b"me", 0, 0),
            (4, b"q", b"d", b"", None, None, 3, 0),
        ]
        jobs.finish(jobs.workers[b"worker"], [1], [], 0.0, rejected=[2])
        store.commit(jobs.turn(0.0, 5.0))
    with Store(tmp_path / "q") as store:
        rows = store.load()
        assert [(row[0], row[1], row[7]) for row in rows] == [(2, b"q-dead", 0), (3, b"q", 1), (4, b"q", 0)]
        times = [pytest.approx(row, abs=0.1) for row in [(5.0, 0.0, 14.0), (5.0, 0.0, 14.0), (5.0, 7.0, inf)]]
        assert [row[8:] for row in rows] == times
        again = Jobs(10, 10_000, 1.0, 3)
        again.load(rows)
        assert again.accept(b"q", [(b"e", b"")], None, 5.0)
        assert [job.number for job in again.turn(0.0, 5.0).new] == [5]


def test_a_submit_that_is_forgotten_and_comes_again_in_one_turn_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbuslib.services.queue_entries.MOST_SUBMITS", 2)
    jobs = Jobs(10, 10_000, 1.0, 3)
    with Store(tmp_path / "q") as store:
        for turn in ((b"a", b"b"), (b"c", b"a"), (b"d", b"e", b"d")):
            for digest in turn:
                if digest not in jobs.submits:
                    jobs.submits.add(digest, is_trusted=False)
            store.commit(jobs.turn(0.0, 5.0))
        assert store.load_submits() == [(b"d", 0), (b"e", 0)]


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
        database.execute("PRAGMA user_version=3")
    with pytest.raises(StateError, match="another"):
        Store(tmp_path / "newer")


def test_a_turn_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    with Store(tmp_path / "q") as store:
        turn = _turn()
        store.commit(turn)
        turn.new.insert(0, _turn("before").new[0])
        with pytest.raises(sqlite3.IntegrityError):
            store.commit(turn)
        assert len(store.load()) == 1


def _turn(payload: str = "") -> Turn:
    jobs = Jobs(10, 10_000, 1.0, 3)
    jobs.accept(b"q", [(b"key", payload.encode())], None, 0.0)
    return jobs.turn(0.0, 0.0)
