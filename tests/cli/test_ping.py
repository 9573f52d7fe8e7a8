"""``sbus ping`` as a program."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable

from support import HubThread, Peer

from sbuslib.limits import Limits

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


def test_each_answer_is_shown_and_their_times(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "ping", "-a", path, "-n", "3", "-i", "0.001")
    assert (done.returncode, done.stderr) == (0, "")
    *lines, summary = done.stdout.splitlines()
    assert len(lines) == 3
    for number, line in enumerate(lines, 1):
        assert re.fullmatch(rf"{re.escape(path)}: number={number} time=[0-9.]+ ms", line)
    assert re.fullmatch(r"least/mean/most = [0-9.]+/[0-9.]+/[0-9.]+ ms", summary)


def test_ctrl_c_ends_it_with_the_summary(start: Start, bus: HubThread, path: str) -> None:
    process = start("sbuslib", "ping", "-a", path, "-i", "10")
    assert process.stdout is not None
    assert b"time=" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, b"")
    assert output.startswith(b"least/mean/most = ")


def test_it_outlives_its_hub(start: Start, bus: HubThread, path: str) -> None:
    process = start("sbuslib", "ping", "-a", path, "-i", "0.001")
    assert process.stdout is not None
    for _ in range(5):
        assert b"time=" in process.stdout.readline()
    bus.stop()
    assert process.stderr is not None
    assert b"waiting for it" in process.stderr.readline()
    with HubThread(path):
        assert b"again" in process.stderr.readline()
        assert b"time=" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def test_json_has_the_time_of_each_answer(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "ping", "-a", path, "-c", "2", "-i", "1ms", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["number"] for line in done.stdout.splitlines()] == [1, 2]


def test_a_tree_with_a_hub_that_does_not_answer_is_partial(run: Run, folder: str) -> None:
    path = f"{folder}/bus"
    with HubThread(path, limits=Limits(sync_wait=0.01)), Peer(path) as silent:
        assert "scope=tree" in run("sbuslib", "ping", "-a", path, "--tree", "-n", "1").stdout
        silent.send(b"CMSG interest/on")
        silent.barrier()
        done = run("sbuslib", "ping", "-a", path, "--tree", "-n", "1")
        assert (done.returncode, done.stderr) == (1, "")
        assert "scope=partial" in done.stdout
        assert run("sbuslib", "ping", "-a", path, "-n", "1").returncode == 0
