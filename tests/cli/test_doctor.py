"""``sbus doctor`` as a program."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from support import HubThread

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_findings_are_lines_and_the_status_is_0_without_a_problem(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "doctor", "-a", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ok       address: {path} (given, 1 of 1): something listens\n" in done.stdout
    assert "problem" not in done.stdout


def test_a_problem_is_shown_with_what_to_do_and_is_status_1(run: Run, path: str) -> None:
    done = run("sbuslib", "doctor", env={"SBUS_ADDRESS": f"{path}\x1b[31m"})
    assert (done.returncode, done.stderr) == (1, "")
    shown = f"{path}\\x1b[31m"
    assert f"problem  address: {shown} (SBUS_ADDRESS, 1 of 1): it does not exist\n" in done.stdout
    assert f"         -> start a hub: sbus hub -a {shown}; or name another: export SBUS_ADDRESS=PATH\n" in done.stdout


def test_json_is_an_object_for_each_finding(run: Run, path: str) -> None:
    done = run("sbuslib", "doctor", "-a", path, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(one["about"], one["level"]) for one in told} >= {("address", "problem")}
    assert all(one.keys() == {"level", "about", "text", "advice"} for one in told)
