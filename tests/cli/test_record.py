"""Commands that record, replay, seal and report, as programs."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from cli.conftest import Run, Start
from docs.pages import DOCS, blocks
from journal.format.journals import EXAMPLE, START_NS, Row, records_of, segment, write
from support import PATIENCE, HubThread, eventually

from sbuslib import blocking, read
from sbuslib.blocking import Client
from sbuslib.cli.main import main
from sbuslib.errors import NoServerError

# -- ``sbus record`` as a program: what it tells, how it ends, and what it refuses


@pytest.fixture
def journal(folder: str) -> str:
    return os.path.join(folder, "journal")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_published_is_recorded_until_a_signal(
    ready: Start, bus: HubThread, path: str, journal: str, number: signal.Signals
) -> None:
    recording = ready("record", "--max-bytes", "1G", "-p", "room/", journal)
    assert recording.told == f"sbus: recording {path} into {journal} (Ctrl-C ends it)\n"
    with Client(path) as client:
        client.publish(b"hall", b"")
        client.publish_many((b"room/%d" % (n % 2), b"%d" % n) for n in range(100))
        client.sync()
    recording.send_signal(number)
    assert recording.wait(PATIENCE) == 0
    assert recording.stderr.read() == b"sbus: 100 messages recorded, row 101 is the last\n"
    payloads = [record.payload for record in records_of(journal) if record.kind == "message"]
    assert payloads == [b"%d" % n for n in range(100)]


def test_a_hub_that_is_not_there_yet_is_waited_for(start: Start, path: str, journal: str) -> None:
    recording = start("sbuslib", "record", "-v", "-a", path, journal)
    lines = iter(recording.stderr.readline, b"")
    log = f"sbus: client of {path}: waiting for a hub: no hub at {path}: ".encode()
    assert any(log in line for line in lines)
    with HubThread(path):
        assert any(line.startswith(f"sbus: recording {path} into {journal}".encode()) for line in lines)
        recording.terminate()
        assert recording.wait(PATIENCE) == 0


def test_a_journal_has_one_recorder(ready: Start, run_here: Run, bus: HubThread, path: str, journal: str) -> None:
    recording = ready("record", journal)
    done = run_here("sbuslib", "record", "-a", path, journal)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"is recorded into already by process {recording.pid}" in done.stderr


def test_a_black_box_is_recorded_at_a_signal(ready: Start, bus: HubThread, path: str, journal: str) -> None:
    recording = ready("record", "--last", "1h", journal)
    assert recording.told == f"sbus: recording the last 3600 s of {path} into {journal} (Ctrl-C ends it)\n"
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


TRIGGERED = """
import os, signal, sys
from sbuslib.cli import main, record

def make(arguments, make=record._client_recorder):
    os.kill(os.getpid(), signal.SIGUSR1)
    return make(arguments)

record._client_recorder = make
sys.exit(main.main(sys.argv[1:]))
"""
"""Runs ``sbus``, which gets a SIGUSR1 while its recorder is made."""


def test_a_signal_to_record_does_not_end_a_black_box_that_is_starting(bus: HubThread, path: str, journal: str) -> None:
    command = [sys.executable, "-c", TRIGGERED, "journal", "record", "-a", path, "--last", "1h", journal]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "recording the last" in process.stderr.readline()
        finally:
            process.terminate()
    assert process.returncode == 0


# -- ``sbus seal`` as a program


def test_a_journal_is_sealed_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(str(tmp_path / "journal"), *EXAMPLE)
    done = run("sbuslib", "seal", "journal")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/journal/sealed: 9 rows sealed, in 1 files\n")
    assert done.stderr.startswith("sbus: 0123456789abcdef-00000000000000000001-00000000000000000009-2025")
    again = run("sbuslib", "seal", "journal")
    assert (again.returncode, again.stdout) == (0, f"{tmp_path}/journal/sealed: 0 rows sealed, in 0 files\n")
    assert read(tmp_path / "journal").num_rows == 9


# -- ``sbus lake`` as a program: its errors, and a journal that becomes a lake and a page

pytest.importorskip("pyarrow")

pytest.importorskip("duckdb")


def test_a_journal_becomes_a_lake_and_a_page(start: Start, tmp_path: Path) -> None:
    write(str(tmp_path / "journal"), *EXAMPLE)
    (tmp_path / "other").mkdir()
    ingest = start("sbuslib", "lake", "ingest", "journal", "other", "lake", cwd=tmp_path)
    said, told = ingest.communicate()
    assert ingest.returncode == 0, told
    assert re.fullmatch(rb"lake: 9 new rows in 1 files, [\d,]+ bytes\n", said)
    assert b"starting Spark" not in told, "nothing for it to do"
    report = start("sbuslib", "report", "traffic", "lake", cwd=tmp_path)
    said, told = report.communicate()
    assert (report.returncode, said) == (0, b"traffic.html\n"), told
    assert "<b>6</b><span>messages</span>" in (tmp_path / "traffic.html").read_text("utf-8")


def test_a_journal_that_fails_is_named_and_the_others_are_taken_in(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(str(tmp_path / "journal"), *EXAMPLE)
    done = run("sbuslib", "lake", "ingest", "-q", "/nowhere", "journal", "lake")
    assert (done.returncode, done.stdout.split()[1]) == (1, "9")
    assert done.stderr.splitlines() == [
        "sbus: /nowhere: no such directory",
        "sbus: 1 of 2 journals could not be taken in",
    ]


# -- ``sbus report`` with DuckDB: what it prints, writes and refuses. ``tests/spark`` has it with Spark


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, without Java, with the journal of what the tutorial's program publishes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    rows = []
    for number in range(500):
        at = START_NS + number * 10_000_000
        rows += [Row(b"room/%d/temp" % room, b"21.5", at) for room in (1, 2)]
        if number % 10 == 0:
            rows.append(Row(b"ask/target", b'{"id": %d}' % number, at))
            rows.append(Row(b"answer/target", b'{"id": %d, "target": 21}' % number, at + 3_000_000))
    segment(tmp_path / "journal", 1, rows)
    return tmp_path


def test_traffic_is_a_page_and_tables(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "traffic", "journal", "--csv", "tables", "--levels", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == ["traffic.html", "tables"]
    text = (recorded / "traffic.html").read_text("utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "<b>1,100</b><span>messages</span>" in text
    assert text.count("<svg") == 2
    assert "Made by sbus with DuckDB on " in text
    with (recorded / "tables" / "by_level.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert first == {"level": "1", "prefix": "room/", "messages": "1000", "bytes": "4000", "keys": "2", "largest": "4"}


def test_subscriptions_are_those_of_the_tutorial(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (patterns,) = [block.text for block in blocks(DOCS / "tutorial-spark.md") if block.language == "text"]
    (recorded / "patterns.txt").write_text(patterns)
    assert main(["report", "subscriptions", "journal", "patterns.txt", "--output", "-", "--csv", "tables"]) == 0
    assert capsys.readouterr().out == "tables\n"
    with (recorded / "tables" / "patterns.csv").open(newline="") as file:
        found = [(row["pattern"], row["messages"], row["covered_by"]) for row in csv.DictReader(file)]
    assert found == [
        ("room/*/temp", "1000", ""),
        ("room/1/temp", "500", "room/*/temp"),
        ("ask/", "50", ""),
        ("room/*/humidity", "0", ""),
    ]


@pytest.mark.parametrize(
    ("choice", "status", "said"),
    [
        (("--hub", "none"), 1, "journal: nothing of hub none was recorded"),
        (("--start", "2040-01-01"), 1, "journal: nothing was recorded in that time"),
        (("--end", f"@{START_NS // 1_000_000_000}"), 1, "journal: nothing was recorded in that time"),
        (("--engine", "duckdb", "--conf", "a=b"), 2, "--master and --conf are for Spark"),
        (("--output", "/nowhere/x.html"), 2, "cannot be written"),
    ],
)
def test_what_gives_no_report_is_told(
    recorded: Path, choice: tuple[str, ...], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "traffic", "journal", *choice]) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


# -- ``sbus watch`` on a bus in use: from what is published to the alert, and how it ends

PAUSE = 0.05

ABOVE, BELOW = b"alerts/above/room/", b"alerts/below/beat"


def test_alerts_are_published_until_a_signal_ends_the_process_group(start: Start, bus: HubThread, path: str) -> None:
    options = ("--window", "1", "--above", "room/", "2", "--below", "beat", "1")
    watching = start("sbuslib", "watch", "-a", path, *options, start_new_session=True)
    told = dict[bytes, dict[str, object]]()
    with blocking.Client(path) as client:
        client.subscribe(b"alerts/")
        for number in range(round(PATIENCE / PAUSE)):
            client.publish(b"room/%d" % number)
            try:
                alert = client.receive(timeout=PAUSE)
            except TimeoutError:
                continue
            told[alert.key] = json.loads(alert.payload)
            if {ABOVE, BELOW} <= told.keys():
                break
    above, below = told[ABOVE], told[BELOW]
    assert (above["kind"], above["pattern"], above["limit"]) == ("above", "room/", 2)
    assert isinstance(above["messages"], int)
    assert above["messages"] > 2
    assert (below["kind"], below["pattern"], below["messages"]) == ("below", "beat", 0)
    os.killpg(watching.pid, signal.SIGTERM)
    shown, complaints = watching.communicate()
    assert watching.returncode == 0, complaints
    assert b"room/ " in shown
    assert b"alerts/above/room/: " in shown


def test_a_bus_is_watched_by_the_separator_of_its_hub_and_still_tells_that_nobody_serves(
    start: Start, folder: str
) -> None:
    path = f"{folder}/dotted"
    with HubThread(path, separator=b".") as bus, blocking.Client(path) as client:
        watching = start("sbuslib", "watch", "-a", path, "--window", "1", "--above", "room.*.temp", "0")
        eventually(lambda: bus.call(lambda: bus.hub.statistics().clients) == 2)
        with pytest.raises(NoServerError):
            client.request(b"room.1.color", timeout=PATIENCE)
        alerts = client.subscribe(b"alerts.")
        while True:
            client.publish(b"room.1.temp")
            with suppress(TimeoutError):
                assert alerts.receive(timeout=PAUSE).key == b"alerts.above.room.*.temp"
                break
        watching.terminate()
        shown, _ = watching.communicate()
    assert b"room. " in shown
