"""``sbus completion``: what may come next, and bash itself completes with what it printed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import PATIENCE, ROOT

from sbuslib.cli.completion import SCRIPTS, candidates

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sbus who", "whoami"),
        ("sbus journal re", "record replay"),
        ("sbus hub re", "reload"),
        ("sbus hub --rel", "--relay"),
        ("sbus help jo", "journal"),
        ("sbus help journal se", "seal"),
        ("sbus sub --send", "--senders"),
        ("sbus sub --soft q", "queue"),
        ("sbus sub --count ", ""),
        ("sbus journal ingest --fol", "--follow"),
        ("sbus record --dur", "--durability"),
        ("sbus completion f", "fish"),
        ("sbusd --fore", "--foreground"),
        ("sbus-relay --upstream-", "--upstream-user"),
        ("sbus --ver", "--version"),
    ],
)
def test_what_may_come_next(line: str, found: str) -> None:
    assert " ".join(candidates(line.split(" "))) == found


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_shell_has_a_script_that_asks_sbus(run: Run, shell: str) -> None:
    done = run("sbuslib", "completion", shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, SCRIPTS[shell], "")
    assert f"sbus completion {shell} -- " in done.stdout
    done = run("sbuslib", "completion", shell, "--", "sbus", "journal", "ver")
    assert (done.returncode, done.stdout) == (0, "verify\n")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "sbus"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m sbuslib "$@"\n')
    program.chmod(0o755)
    (tmp_path / "sbus.bash").write_text(SCRIPTS["bash"])
    for words, completed in ((("who",), "whoami"), (("sub", "--send"), "--senders"), (("help", "whoa"), "whoami")):
        asked = (
            f'. "{tmp_path}/sbus.bash"; PATH="{tmp_path}:$PATH"; COMP_WORDS=(sbus {" ".join(words)}); '
            f'COMP_CWORD={len(words)}; _sbus; echo "${{COMPREPLY[@]}}"'
        )
        found = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert found.stdout.split() == [completed]
