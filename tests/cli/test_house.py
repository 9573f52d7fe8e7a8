"""``./run``: what it installs, says and starts."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from support import PATIENCE, ROOT

JAVA = "echo 'openjdk version \"{}.0.2\" 2026-01-01' >&2"
NEW = 'case "$2" in *version_info*) exit 0 ;; esac; exit 1'
"""A Python that is new enough, and cannot make an environment."""


def program(path: Path, script: str) -> Path:
    """A shell script at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with ``run``, Java 17 and no Python, in which nothing is ever installed."""
    # Where a Java of this machine's would be found, whatever the path is.
    program(tmp_path / "run", (ROOT / "run").read_text().replace("/usr/lib/jvm", f"{tmp_path}/jvm"))
    program(tmp_path / "bin" / "java", JAVA.format(17))
    for name in ("sh", "cat", "sed", "dirname", "find", "env", "true", "mktemp", "rm", "grep"):
        found = shutil.which(name)
        assert found
        (tmp_path / "bin" / name).symlink_to(found)
    return tmp_path


@pytest.fixture
def prepared(checkout: Path) -> Path:
    """One with a ``.venv`` whose programs note in ``calls`` what they are to do, and run ``python.sh`` if any."""
    (checkout / "setup.cfg").touch()
    for name in ("python", "sbus"):
        note = f'[ "$1" = -c ] || echo "{name} $*" >>{checkout}/calls'
        program(checkout / ".venv" / "bin" / name, f"{note}\n[ ! -e {checkout}/python.sh ] || . {checkout}/python.sh")
    (checkout / ".venv" / ".place").write_text(str(checkout))
    return checkout


def run(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "run", *arguments],
        env={"PATH": str(checkout / "bin"), "TMPDIR": str(checkout), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        start_new_session=True,  # as a terminal does, a signal goes to all that runs there
    )


def calls(checkout: Path) -> list[str]:
    """What was run, without the paths of folders."""
    text = (checkout / "calls").read_text().replace(f"{checkout}/", "")
    return [" ".join(line.split()[:5]).partition(" sbus-demo")[0] for line in text.splitlines()]


def test_run_without_a_command_lists_the_commands(checkout: Path) -> None:
    done = run(checkout)
    assert done.returncode == 2
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["demo", "check", "test", "hub"]
    assert run(checkout, "--help").returncode == 0


@pytest.mark.parametrize("command", ["test", "hub"])
@pytest.mark.parametrize("python", [None, "exit 1"], ids=["missing", "old"])
def test_a_python_that_will_not_do_gets_the_command_that_installs_one(
    checkout: Path, command: str, python: str | None
) -> None:
    if python:
        program(checkout / "bin" / "python3", python)
    done = run(checkout, command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("run: Python 3.11 or newer is missing: apt-get install python3 ")
    done = run(checkout, command, PYTHON="/nowhere/python")
    assert done.stderr.splitlines()[-1] == "run: PYTHON=/nowhere/python is not a Python 3.11 or newer"


def test_the_demo_shows_the_bus_before_it_installs_anything_for_the_report(prepared: Path) -> None:
    done = run(prepared, "demo")
    assert done.returncode == 0
    shown, reported = "python examples/demo.py", "sbus report traffic"
    assert [call for call in calls(prepared) if "pip" not in call] == [shown, reported]
    assert calls(prepared)[0] == "python -m pip install --disable-pip-version-check"
    assert calls(prepared).index(shown) == 1
    assert "960 MB" in done.stderr, "how large it is"
    assert "2 to 5 minutes" in done.stderr, "and how long it takes"
    (prepared / "calls").unlink()
    assert run(prepared, "demo").returncode == 0
    assert calls(prepared) == [shown, reported], "nothing is installed twice"


def test_ctrl_c_between_the_bus_and_the_report_is_a_success(prepared: Path) -> None:
    (prepared / "python.sh").write_text('case "$*" in *spark*) kill -INT 0 ;; esac')
    done = run(prepared, "demo")
    assert done.returncode == 0
    assert done.stderr.endswith("run: the bus was shown; ./run demo goes on to the report another time\n")
    assert "sbus report" not in (prepared / "calls").read_text()


@pytest.mark.parametrize("fails", [False, True])
def test_what_pip_prints_is_shown_only_if_it_fails(prepared: Path, fails: bool) -> None:
    (prepared / "python.sh").write_text(
        f'case "$*" in *"pip install"*) echo WARNING: as root >&2; exit {fails:d} ;; esac'
    )
    done = run(prepared, "demo")
    assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (fails, fails)
    if not fails:
        assert done.stderr.splitlines()[-1].endswith("Then try docs/tutorial.md, in three terminals")


TO_INSTALL = "run: Java 17 or newer, which Spark needs, is missing: apt-get install openjdk-17-jre-headless"


@pytest.mark.parametrize(
    ("who", "offered", "commands", "status"),
    [
        (0, {"openjdk-17-jre-headless": 17}, ["update", "openjdk-17-jre-headless"], 0),
        (0, {"default-jre-headless": 21}, ["update", "openjdk-17-jre-headless", "default-jre-headless"], 0),
        (0, {"default-jre-headless": 11}, ["update", "openjdk-17-jre-headless", "default-jre-headless"], 1),
        (1000, {"openjdk-17-jre-headless": 17}, [], 1),
    ],
)
def test_java_is_installed_where_that_is_allowed_and_else_reported(
    prepared: Path, who: int, offered: dict[str, int], commands: list[str], status: int
) -> None:
    """``offered`` tells of packages of Java which version they bring."""
    binaries, log = prepared / "bin", prepared / "log"
    (binaries / "java").unlink()
    program(binaries / "id", f"echo {who}")
    cases = "".join(
        f"*{name}) {shutil.which('cp')} -p {program(prepared / name, JAVA.format(version))} {binaries}/java ;;\n"
        for name, version in offered.items()
    )
    program(binaries / "apt-get", f'echo "$*" >>{log}\ncase "$*" in update) ;;\n{cases}*) exit 100 ;;\nesac')
    done = run(prepared, "demo")
    assert done.returncode == status
    assert [line.split()[-1] for line in log.read_text().splitlines()] == commands if commands else not log.exists()
    assert (done.stderr.splitlines()[-1] == TO_INSTALL) == bool(status)
    assert "Java 17 or newer, which Spark needs, is missing: some 200 MB" in done.stderr, "before it is installed"


def test_servers_are_reported_before_they_are_installed_and_tests_run_without_them(prepared: Path) -> None:
    program(prepared / "bin" / "id", "echo 1000")
    program(prepared / "bin" / "nats-server", "")
    done = run(prepared, "test", "-e", "lint")
    told = [line for line in done.stderr.splitlines() if "are skipped else" in line]
    assert len(told) == 1
    assert "chromium chromium-driver" in told[0]
    assert "nats-server" not in told[0]
    assert calls(prepared)[-1] == "python -m tox run -qq", "they are skipped"
