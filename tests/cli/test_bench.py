"""``sbus bench`` as a program."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from cli.conftest import Run, Start
from support import PATIENCE, HubThread, eventually

from sbuslib.bench.scenarios import SCENARIOS

SHORT = ("--rounds", "1", "--window", "0.001")
pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


def test_list_shows_every_scenario(run: Run) -> None:
    done = run("sbuslib", "bench", "--list")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [scenario.name for scenario in SCENARIOS]


def test_without_an_address_bench_starts_a_hub(run: Run, tmp_path: Path) -> None:
    done = run("sbuslib", "bench", "one", "trip", *SHORT, "--size", "50", "--runs", str(tmp_path / "runs.json"))
    assert done.returncode == 0, done.stderr
    assert "one to one" in done.stdout
    assert "round trip" in done.stdout
    runs = json.loads((tmp_path / "runs.json").read_bytes())
    assert {record["scenario"] for record in runs["records"]} == {"one", "trip"}
    assert runs["plan"]["payload"] == 50


def test_with_an_address_bench_measures_that_daemon(run: Run, bus: HubThread, path: str, tmp_path: Path) -> None:
    done = run("sbuslib", "bench", "-a", path, "one", "clients", *SHORT, "--runs", str(tmp_path / "runs.json"))
    assert done.returncode == 0, done.stderr
    records = json.loads((tmp_path / "runs.json").read_bytes())["records"]
    assert {record["scenario"] for record in records} == {"one"}, "the idle clients need a hub of its own"
    assert "daemon" in {record["target"] for record in records}
    assert bus.hub.statistics().published > 0


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"  # a zombie is gone but for its status
    except FileNotFoundError:
        return False


def test_processes_that_bench_started_end_with_it(start: Start) -> None:
    process = start("sbuslib", "bench", "one", "--window", "5")
    assert b"cases" in process.stderr.readline()  # by now hub and forwarder are there
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        children = [int(pid) for pid in file.read().split()]
    assert len(children) >= 1
    process.terminate()
    assert process.wait(PATIENCE) == -signal.SIGINT
    eventually(lambda: not any(map(runs, children)))
