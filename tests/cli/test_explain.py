"""``sbus explain`` as a program."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

RULES = """\
separator = "/"

[[rules]]
users = ["*"]
publish = ["public/"]

[[rules]]
users = ["@root"]
publish = ["tenants/%u/"]
subscribe = ["room/*/temp"]
"""


@pytest.fixture
def file(folder: str) -> str:
    path = Path(folder, "sbus.toml")
    path.write_text(RULES)
    return str(path)


@pytest.mark.parametrize(
    ("asked", "status", "answer"),
    [
        (("root", "publish", "public/x"), 0, 'yes: {}:3: publish "public/"'),
        (("0", "publish", "tenants/root/x"), 0, 'yes: {}:7: publish "tenants/%u/", which is "tenants/root/" for 0'),
        (("root", "publish", "tenants/other/x"), 1, "no: no rule lets root publish this"),
        (("root", "subscribe", "room/*/temp"), 0, 'yes: {}:7: subscribe "room/*/temp"'),
        (("root", "subscribe", ""), 1, "no: no rule lets root subscribe this"),
        (("daemon", "publish", "tenants/daemon/x"), 1, "no: no rule lets daemon publish this"),
        (
            ("root", "publish", "!/cred/1/2/3/x"),
            0,
            "yes: rules are not asked about secrets, and anybody may publish them",
        ),
    ],
)
def test_the_answer_and_the_rule(run: Run, file: str, asked: tuple[str, ...], status: int, answer: str) -> None:
    done = run("sbuslib", "explain", *asked, "--config", file)
    assert (done.returncode, done.stdout, done.stderr) == (status, answer.format(file) + "\n", "")


def test_errors_read_as_errors(run: Run, file: str) -> None:
    done = run("sbuslib", "explain", "nobody-at-all", "publish", "x", "--config", file)
    assert (done.returncode, done.stderr) == (1, "sbus: there is no user 'nobody-at-all' on this machine\n")
    Path(file).write_text("rulez = 3")
    done = run("sbuslib", "explain", "root", "publish", "x", "--config", file)
    assert (done.returncode, done.stderr) == (1, f"sbus: {file}: rulez: there is no such key: did you mean 'rules'?\n")
    Path(file).write_text("")
    done = run("sbuslib", "explain", "root", "publish", "x", "--config", file)
    assert (done.returncode, done.stdout) == (0, f"yes: {file} has no rules, so everybody may do anything\n")
