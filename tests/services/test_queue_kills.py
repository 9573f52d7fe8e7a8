"""What a queue stores, and what is left of it when all is killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic, sleep

import pytest
from cli.conftest import Start
from support import ROOT, TESTS

from sbuslib.blocking import Client
from sbuslib.errors import NoServerError, StateError
from sbuslib.services.queue_rules import Jobs, Turn
from sbuslib.services.queue_store import Store

# -- A queue whose parties are killed and stopped: no accepted job is lost, none is done twice without the mark


class ClientPort:
    """A process that is killed and started again: a program of ours, or :mod:`services.working`."""

    def __init__(self, start: Start, *arguments: str) -> None:
        self._start = start
        self._arguments = arguments
        self.begin()

    def begin(self) -> None:
        self.process = self._start(*self._arguments, env={"PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"})
        line = self.process.stderr.readline()
        assert b"(Ctrl-C ends it)" in line, line

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Worker(ClientPort):
    """A worker whose lines are read. It may be stopped for a while."""

    def __init__(self, start: Start, address: str, done: list[tuple[int, int]]) -> None:
        self._done = done
        super().__init__(start, "services.working", address)

    def begin(self) -> None:
        super().begin()
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()

    def _read(self, lines: Iterable[bytes]) -> None:
        with suppress(ValueError):  # it is closed when the test ends
            for line in lines:
                if line.endswith(b"\n"):
                    number, attempt = line.split()
                    self._done.append((int(number), int(attempt)))


@pytest.mark.promise("patterns.md", "An accepted job is not lost")
@pytest.mark.seconds(120)
def test_no_accepted_job_is_lost_and_none_is_done_twice_without_the_mark(start: Start, folder: str) -> None:
    address = f"{folder}/bus"
    hub = ClientPort(start, "sbuslib", "hub", "-r", "-a", address)
    options = ["--store", f"{folder}/jobs", "--limit", "1", "--attempts", "1000"]
    service = ClientPort(start, "services.working", "queue", "-a", address, *options, "mail", "mail/")
    done: list[tuple[int, int]] = []
    workers = [Worker(start, address, done) for _ in range(2)]
    accepted: set[int] = set()
    ended = threading.Event()

    def submit() -> None:
        number = 0
        with Client(address, reconnect=True, timeout=60) as client:
            while not ended.is_set():
                jobs = [(b"mail/%d" % (n % 7), b"%d" % n) for n in range(number, number + 20)]
                number += 20
                with suppress(TimeoutError, NoServerError):  # nobody knows
                    client.queue("mail").submit_many(jobs, timeout=0.5)
                    accepted.update(int(payload) for _, payload in jobs)

    submitting = threading.Thread(target=submit, daemon=True)
    submitting.start()
    dice = random.Random(7)
    for victim in (service, workers[0], hub, "stop", service):
        count = len(done)
        end = monotonic() + 30
        while len(done) < count + 40:
            assert monotonic() < end, "nothing is done any more"
            sleep(dice.uniform(0, 0.01))
        if isinstance(victim, str):
            workers[0].process.send_signal(signal.SIGSTOP)
        else:
            victim.kill()
            victim.begin()
    ended.set()
    submitting.join()
    workers[0].process.send_signal(signal.SIGCONT)
    end = monotonic() + 60
    while accepted - {number for number, _ in list(done)}:
        assert monotonic() < end, f"lost: {sorted(accepted - {number for number, _ in done})[:10]}"
        sleep(0.01)
    attempts = sorted(done)
    assert len(set(attempts)) == len(attempts), "each time that a job was done it had another attempt"
    assert len(accepted) > 100


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
