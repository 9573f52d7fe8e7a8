"""``sbus replay`` as a program: other keys, again and again, and what it tells meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cli.conftest import Run, Start
from journal.format.journals import flip, message, write
from support import PATIENCE, HubThread

from sbuslib.blocking import Client
from sbuslib.cli import record


def test_keys_get_other_prefixes(run: Run, journal: str, bus: HubThread, path: str) -> None:
    with Client(path) as client:
        client.subscribe(b"")
        done = run("sbuslib", "replay", journal, "-a", path, "--remap", "room/2=new", "--remap", "room/=k/")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "sbus: 6 messages published; 8 were lost when it was recorded\n"
        found = [client.receive(timeout=PATIENCE).key for _ in range(6)]
    assert found == [b"k/1/temp", b"log/a", b"k/1/temp", b"new/temp", b"new/temp", b"k"]


def test_keys_that_nobody_may_publish_under_are_refused(run: Run, journal: str, bus: HubThread, path: str) -> None:
    for new in ("!/cred/1/2/3/", "a/!/"):
        done = run("sbuslib", "replay", journal, "-a", path, "--remap", f"room/={new}")
        assert done.returncode == 2
        assert done.stderr == f"sbus: {new}1/temp: nobody may replay under this key\n"
    done = run("sbuslib", "replay", journal, "-a", path, "--remap", "room")
    assert done.returncode == 2
    assert "argument --remap: 'room' is no pair of prefixes" in done.stderr


def test_a_loop_begins_again_at_the_end(start: Start, journal: str, bus: HubThread, path: str) -> None:
    with Client(path) as client:
        client.subscribe(b"k", b"log/a")
        player = start("sbuslib", "replay", journal, "-a", path, "--loop", "--flat-out")
        assert [client.receive(timeout=PATIENCE).key for _ in range(6)] == [b"log/a", b"k"] * 3
        player.terminate()
        assert player.wait(PATIENCE) < 0


def test_a_loop_over_nothing_ends(run: Run, journal: str, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "replay", "-q", journal, "-a", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run("sbuslib", "replay", journal, "-a", path, "--loop", "-p", "none")
    assert (done.returncode, done.stderr) == (
        0,
        "sbus: 0 messages published; 8 were lost when it was recorded\n",
    )


def test_a_long_replay_gives_a_sign_of_life(start: Start, folder: str, bus: HubThread, path: str) -> None:
    first = message(1, b"a", b"1")
    write(f"{folder}/slow", [[first, message(2, b"a", b"2")._replace(time_ns=first.time_ns + 3_600_000_000_000)]])
    player = start("sbuslib", "replay", f"{folder}/slow", "-a", path)
    assert player.stderr.readline() == b"sbus: 1 messages published ...\n"


def test_an_error_tells_how_many_messages_were_published_before(
    run: Run, folder: str, bus: HubThread, path: str
) -> None:
    first, second = [message(1, b"k", b"one"), message(2, b"k", b"two")], [message(3, b"k", b"three")]
    _, damaged = write(f"{folder}/damaged", [first], [second])
    flip(damaged, Path(damaged).read_bytes().index(b"three"))
    done = run("sbuslib", "replay", f"{folder}/damaged", "-a", path)
    assert done.returncode == 1
    before, error = done.stderr.splitlines()
    assert before == "sbus: 2 messages published"
    assert error.startswith(f"sbus: {damaged}: byte ")
    assert error.endswith("; --skip-corrupt goes on after it")


def test_what_was_due_while_it_was_stopped_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(record, "monotonic", lambda: now)
    clock = record._Clock()

    def stopped(process: int, number: int) -> None:
        nonlocal now
        assert (process, number) == (os.getpid(), signal.SIGSTOP)
        now += 3_600.0

    monkeypatch.setattr(os, "kill", stopped)
    clock.pause()
    assert clock() == 100.0
    now += 1.0
    assert clock() == 101.0
