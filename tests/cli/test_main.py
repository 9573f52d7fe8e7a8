"""Every command as a program: its help, and errors that read as errors of a program and not of Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from support import PATIENCE

import sbuslib
from sbuslib.cli.main import COMMANDS

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run: Run, command: str) -> None:
    done = run("sbuslib", *command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: sbus {command} ")
    assert "\nexamples:\n  " in done.stdout


def test_version_is_printed(run: Run) -> None:
    assert run("sbuslib", "--version").stdout == f"sbus {sbuslib.__version__}\n"


PLANTED = """
import sys
from sbuslib.cli import messages
from sbuslib.cli.main import main
def fail(*arguments, **options):
    raise ZeroDivisionError("planted")
messages.connected = fail
sys.exit(main(["whoami"]))
"""


def test_an_unforeseen_error_ends_the_command_with_a_traceback_and_one_line(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLANTED], capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("sbus: whoami ended by an unforeseen error: ZeroDivisionError: planted\n")
