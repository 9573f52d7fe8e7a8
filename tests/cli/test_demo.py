"""The demo succeeds, and fails when a part of it does not happen."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import PATIENCE

from sbuslib.cli import demo, demo_report
from sbuslib.lake.blocks import read_records

Start = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

Told = list[dict[str, Any]]

DEMO = "sbuslib.cli.demo"


def test_the_demo_shows_all_its_parts_and_succeeds(run: Run, folder: str) -> None:
    done = run(DEMO, "--rounds", "2", "--pause", "0.01", "--no-report", env={"TMPDIR": folder})
    assert done.returncode == 0, done.stdout + done.stderr
    *_, summary = done.stdout.partition("Summary:\n")
    *verdicts, last = summary.splitlines()
    assert len(verdicts) == 9
    assert all(verdict.startswith("  ok ") for verdict in verdicts)
    assert "brought 6 of 6 messages" in verdicts[0]
    assert "brought 2 of 2 messages" in verdicts[1]
    assert last == "All of it happened."
    assert os.listdir(folder) == []


def test_the_demo_leaves_its_recording_for_a_report_later(run: Run, folder: str) -> None:
    os.mkdir(f"{folder}/kept")
    done = run(DEMO, "--rounds", "1", "--pause", "0.01", "--keep", f"{folder}/kept", env={"TMPDIR": folder})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report" not in done.stdout
    assert os.listdir(folder) == ["kept"]
    keys = {record.key for record in read_records(f"{folder}/kept/journal")}
    assert f"machine/{os.uname().nodename}/memory".encode() in keys


@pytest.mark.parametrize("status", [0, 1, demo_report.MISSING])
def test_the_report_is_made_of_the_recording_that_was_left(
    status: int, folder: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A function replaces the process that makes the report."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        Path(command[-1]).write_text("a page")
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(demo.subprocess, "run", run)  # type: ignore[attr-defined]
    monkeypatch.setattr(demo.tempfile, "mkdtemp", lambda prefix: f"{folder}/page")  # type: ignore[attr-defined]
    assert demo.main(["--report", folder]) == (status == 1)
    assert commands[0][3] == f"{folder}/journal"
    assert ("The report: " in capfd.readouterr().out) == (status == 0)


@pytest.mark.parametrize("name", ["recorder", "publisher", "wildcard", "exact", "alice", "bob", "eavesdropper"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_demo_fails_when_a_process_is_ended_at_its_start(
    name: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start = demo.Director.start

    def start_and_end(self: demo.Director, its_name: str, role: str, *arguments: object) -> demo.Actor:
        actor = start(self, its_name, role, *arguments)
        if its_name == name:
            actor.process.send_signal(number)
            actor.process.wait(PATIENCE)
        return actor

    monkeypatch.setattr(demo.Director, "start", start_and_end)
    assert demo.direct(rounds=1, pause=0.01) == 1
    output = capfd.readouterr().out
    assert re.search(rf"  FAILED  {name} \(process \d+\) was ended by signal {number:d}\n", output)
    assert "The demo failed: 1 of " in output


@pytest.mark.parametrize("name", ["hub", "wildcard"])
def test_the_demo_fails_when_a_process_is_killed_while_it_publishes(start: Start, folder: str, name: str) -> None:
    process = start(DEMO, "--rounds", "100000", "--pause", "0.01", env={"TMPDIR": folder}, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    victim = 0
    for line in process.stdout:
        if found := re.match(rf"  {name} +process (\d+)".encode(), line):
            victim = int(found[1])
        if b"KiB/s" in line:
            break
    os.kill(victim, signal.SIGKILL)
    output, _ = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 1, output
    assert b"  FAILED  " in output
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("event", "verdict"),
    [
        ("received", "machine/*/ brought 3 of 3 messages, in order"),
        ("checked", "bob proved to alice"),
        ("saw", "the eavesdropper's wildcards brought 0 public"),
        ("disconnected", "the eavesdropper was disconnected"),
    ],
)
def test_the_demo_fails_when_a_report_is_missing_or_wrong(
    event: str, verdict: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told = demo.Actor.told
    # Received messages are in the wrong order, checks come twice, other reports are missing.
    changes: dict[str, Callable[[Told], Told]] = {"received": lambda told: told[::-1], "checked": lambda told: told * 2}

    def told_otherwise(self: demo.Actor, name: str) -> Told:
        reports = told(self, name)
        if name != event:
            return reports
        return changes[name](reports) if name in changes else []

    monkeypatch.setattr(demo.Actor, "told", told_otherwise)
    assert demo.direct(rounds=1, pause=0.01) == 1
    assert f"  FAILED  {verdict}" in capfd.readouterr().out


def test_the_hub_of_the_demo_ends_when_the_demo_is_killed(start: Start) -> None:
    process = start(DEMO, "--rounds", "100000", "--pause", "0.01", stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    hub = None
    for line in process.stdout:
        if found := re.match(rb"  hub +process (\d+)", line):
            hub = os.pidfd_open(int(found[1]))
        if b"KiB/s" in line:
            break
    assert hub is not None
    process.kill()
    try:
        assert select.select([hub], [], [], PATIENCE)[0]
    finally:
        os.close(hub)


def test_the_demo_ends_without_a_traceback_when_its_output_is_closed(start: Start) -> None:
    process = start(DEMO)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE) == 1
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()


class Director:
    """The part of the demo's director that its report uses."""

    def __init__(self, journal: str) -> None:
        self.journal = journal
        self.verdicts: list[tuple[bool, str]] = []

    def judge(self, holds: bool, what: str) -> None:
        self.verdicts.append((holds, what))


@pytest.mark.parametrize(
    ("status", "verdicts"),
    [(0, [True]), (demo_report.MISSING, []), (1, [False])],
)
def test_the_demo_judges_the_exit_status_of_its_report(
    status: int, verdicts: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function replaces the process that makes the report."""

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        Path(command[-1]).write_text("a page")
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(demo.subprocess, "run", run)  # type: ignore[attr-defined]
    monkeypatch.setattr(demo.tempfile, "mkdtemp", lambda prefix: str(tmp_path / "kept"))  # type: ignore[attr-defined]
    (tmp_path / "kept").mkdir()
    (tmp_path / "demo").mkdir()
    director = Director(str(tmp_path / "journal"))
    made = demo.make_report(director, str(tmp_path / "demo"))  # type: ignore[arg-type]
    assert [holds for holds, _ in director.verdicts] == verdicts
    assert made == (str(tmp_path / "kept" / "traffic.html") if status == 0 else None)
    assert made is None or Path(made).read_text() == "a page"
