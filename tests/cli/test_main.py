"""Every command as a program: its help, and errors that read as errors of a program and not of Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from support import PATIENCE, HubThread

import sbuslib
from sbuslib.cli.main import COMMANDS

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run: Run, command: str) -> None:
    done = run("sbuslib", *command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: sbus {command} ")
    assert "\nexamples:\n  " in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("pub", "a/!/b", "x"),
        ("pub", "a", "--file", "/nowhere"),
        ("pub", "a", "--file", "/"),
        ("sub", "!/cred/1/2/3"),
        ("sub", "--timeout", "soon", ""),
        ("whoami", "-a", "/dev/fd/99"),
        ("whoami", "-a", ""),
        ("hub", "-a", "/nowhere/bus"),
        ("hub", "-a", "/"),
        ("hub", "-u", "nobody-of-this-name"),
        ("hub", "--separator", "0"),
        ("record", "/dev/null"),
        ("journal", "cat", "/etc/passwd"),
        ("journal", "info", "/"),
        ("replay", "/nowhere", "--to", "/nowhere"),
        ("replay", "/", "--to", "/nowhere", "--remap", "x"),
        ("report", "traffic", "/nowhere", "--separator", "!"),
        ("peer", "--listen", "nowhere"),
        ("peer", "--listen", ":99999"),
        ("gateway", "--listen", ":0", "--export", "a/!/b"),
        ("bench", "nonsense"),
        ("units", "nonsense"),
        ("lake", "ingest", "/nowhere", "lake"),
    ],
    ids=" ".join,
)
def test_errors_have_no_spellings_of_python(run: Run, bus: HubThread, path: str, words: tuple[str, ...]) -> None:
    done = run("sbuslib", "-q", *words, env={"SBUS_ADDRESS": path})  # a loaded machine is told of waits
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]  # signs of life after a second
    assert len(said) == 1 or said[0].startswith("usage: ")
    assert not re.search(r"b'|\[Errno|Traceback|=True|=None|\bNone\b|<class", done.stderr), done.stderr


def test_a_full_disk_is_told_without_its_number(run: Run, bus: HubThread, path: str) -> None:
    """Also where the error is part of another."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        done = run("sbuslib", "whoami", "-a", path, stdout=full)
    assert done.returncode != 0
    assert "[Errno" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [(), ("nonsense",), ("pub", "key"), ("sub",), ("sub", "-n", "0", ""), ("sub", "--raw", "--json", "")]
)
def test_wrong_arguments_are_refused(run: Run, arguments: tuple[str, ...]) -> None:
    done = run("sbuslib", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: sbus")


@pytest.mark.parametrize("command", [(), ("hub",), ("pub",), ("sub",), ("whoami",)])
def test_the_help_has_examples(run: Run, command: tuple[str, ...]) -> None:
    done = run("sbuslib", *command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nexamples:\n  sbus " in done.stdout
    assert "SBUS_ADDRESS" in done.stdout


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
