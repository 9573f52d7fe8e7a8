"""A queue whose parties are killed and stopped: no accepted job is lost, none is done twice without the mark."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic, sleep

import pytest
from cli.conftest import Start
from support import ROOT, TESTS

from sbuslib.blocking import Client
from sbuslib.errors import NoServerError

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
