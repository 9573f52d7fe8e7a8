"""``sbus record`` as a program: what it tells, how it ends, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

import pytest
from segments.journals import records_of
from support import PATIENCE, HubThread

from sbuslib.blocking import Client

Start = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def journal(folder: str) -> str:
    return os.path.join(folder, "journal")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_published_is_recorded_until_a_signal(
    start: Start, bus: HubThread, path: str, journal: str, number: signal.Signals
) -> None:
    recording = start("sbuslib", "record", "-a", path, "--keep-bytes", "1G", "-p", "room/", journal)
    assert recording.stderr is not None
    assert recording.stderr.readline().decode() == f"sbus: recording {path} into {journal} (Ctrl-C ends it)\n"
    with Client(path) as client:
        client.publish(b"hall", b"")
        client.publish_many((b"room/%d" % (n % 2), b"%d" % n) for n in range(100))
        client.sync()
    recording.send_signal(number)
    assert recording.wait(PATIENCE) == 0
    assert recording.stderr.read() == b"sbus: 100 messages recorded, row 100 is the last\n"
    assert [record.payload for record in records_of(journal)] == [b"%d" % n for n in range(100)]


def test_a_hub_that_is_not_there_yet_is_waited_for(start: Start, path: str, journal: str) -> None:
    recording = start("sbuslib", "record", "-a", path, journal)
    assert recording.stderr is not None
    assert recording.stderr.readline() == b"sbus: waiting for a hub ...\n"
    with HubThread(path):
        assert recording.stderr.readline().decode().startswith(f"sbus: recording {path} into {journal}")
        recording.terminate()
        assert recording.wait(PATIENCE) == 0


def test_a_journal_has_one_recorder(start: Start, run: Run, bus: HubThread, path: str, journal: str) -> None:
    recording = start("sbuslib", "record", "-a", path, journal)
    assert recording.stderr is not None
    recording.stderr.readline()
    done = run("sbuslib", "record", "-a", path, journal)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"is recorded into already by process {recording.pid}" in done.stderr


def test_a_black_box_is_recorded_at_a_signal(start: Start, bus: HubThread, path: str, journal: str) -> None:
    recording = start("sbuslib", "record", "-a", path, "--last", "1h", journal)
    assert recording.stderr is not None
    told = recording.stderr.readline().decode()
    assert told == f"sbus: recording the last 3600 s of {path} into {journal} (Ctrl-C ends it)\n"
    with Client(path) as client:
        client.publish(b"room", b"1")
        client.sync()
    lines = list[bytes]()
    while lines[-1:] != [b"sbus: 1 messages recorded\n"]:  # the first signal may come before the message
        recording.send_signal(signal.SIGUSR1)
        lines.append(recording.stderr.readline())
    recording.terminate()
    assert recording.wait(PATIENCE) == 0
    assert [record.payload for record in records_of(journal)] == [b"1"]
