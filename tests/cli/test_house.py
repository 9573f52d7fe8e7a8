"""``./run``, and the files of the installed package."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support import PATIENCE, ROOT

import sbuslib
from sbuslib.cli import manual


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with ``run`` and no ``.venv``, in which nothing is ever installed."""
    # Where a Java of this machine's would be found, whatever the path is.
    program(tmp_path / "run", (ROOT / "run").read_text().replace("/usr/lib/jvm", f"{tmp_path}/jvm"))
    (tmp_path / "bin").mkdir()
    for name in ("sh", "cat", "sed", "dirname", "find", "env", "true", "mktemp", "rm"):
        found = shutil.which(name)
        assert found
        (tmp_path / "bin" / name).symlink_to(found)
    program(tmp_path / "bin" / "java", java(17))
    (tmp_path / "setup.cfg").write_text("install_requires =\n    gevent>=1\n    msgspec>=1\n\n")
    return tmp_path


def program(path: Path, script: str) -> Path:
    """A shell script at a path."""
    path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def java(version: int) -> str:
    """A program that prints its version as Java does."""
    return f"echo 'openjdk version \"{f'1.{version}' if version < 9 else version}.0.2\" 2026-01-01' >&2"


def run(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "run", *arguments],
        env={"PATH": str(checkout / "bin"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_run_without_a_command_lists_the_commands(checkout: Path) -> None:
    done = run(checkout)
    assert done.returncode == 2
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["./run", "demo"],
        ["./run", "test"],
        ["./run", "hub"],
    ]
    assert run(checkout, "--help").returncode == 0


@pytest.mark.parametrize("command", ["demo", "test", "hub"])
def test_a_missing_python_is_told_with_the_command_that_installs_it(checkout: Path, command: str) -> None:
    done = run(checkout, command)
    assert done.returncode == 1
    assert done.stderr == "run: Python 3.11 or newer is missing: apt-get install python3 python3-venv\n"


@pytest.mark.parametrize("command", ["demo", "test", "hub"])
def test_an_old_python_is_refused(checkout: Path, command: str) -> None:
    program(checkout / "bin" / "python3", '[ "$1" = -V ] && echo Python 3.9.2 && exit; exit 1')
    done = run(checkout, command)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("run: Python 3.9.2 is too old, 3.11 or newer is needed: apt-get install python3.11")


def test_a_newer_python_beside_an_old_one_is_found(checkout: Path) -> None:
    program(checkout / "bin" / "python3", "exit 1")
    program(checkout / "bin" / "python3.12", 'case "$2" in *version_info*) exit 0 ;; esac; exit 1')
    assert "venv module" in run(checkout, "demo").stderr, "it went on with the newer one"


def test_a_missing_venv_module_is_told(checkout: Path) -> None:
    python = program(checkout / "python", 'case "$2" in *version_info*) exit 0 ;; esac; exit 1')
    done = run(checkout, "demo", PYTHON=str(python))
    assert (done.returncode, done.stderr) == (1, "run: Python's venv module is missing: apt-get install python3-venv\n")


def test_a_wrong_python_variable_is_refused(checkout: Path) -> None:
    done = run(checkout, "demo", PYTHON="/nowhere/python")
    assert (done.returncode, done.stderr) == (1, "run: PYTHON=/nowhere/python is not a Python 3.11 or newer\n")


MISSING = "run: Java 17 or newer, which Spark needs, is missing"
INSTALLING = f"{MISSING}: installing it, some 200 MB, which takes a minute"
TO_INSTALL = f"{MISSING}: apt-get install openjdk-17-jre-headless"


@pytest.fixture
def prepared(checkout: Path) -> Path:
    """A checkout with a ``.venv`` whose Python notes in ``calls`` what it is to run, and runs ``python.sh`` if any."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / ".place").write_text(str(checkout))
    log = f'[ "$1" = -c ] || echo "$*" >>{checkout}/calls'
    program(checkout / ".venv" / "bin" / "python", f"{log}\n[ ! -e {checkout}/python.sh ] || . {checkout}/python.sh")
    program(checkout / "bin" / "python3", "exit 0")
    return checkout


def calls(checkout: Path) -> list[str]:
    """What was run, without the paths of folders."""
    text = (checkout / "calls").read_text().replace(str(checkout), ".")
    return [line.partition(" /")[0] for line in text.splitlines()]


def test_the_demo_shows_the_bus_before_it_installs_anything_for_the_report(prepared: Path) -> None:
    done = run(prepared, "demo")
    assert done.returncode == 0
    assert calls(prepared) == [
        "tools/install.py ./.venv 60 gevent>=1 msgspec>=1",
        "-m sbuslib.cli.demo --keep",
        "tools/install.py ./.venv 2500 -e .[report,spark]",
        "-m sbuslib.cli.demo --report",
    ]
    assert "960 MB" in done.stderr, "how large it is"
    assert "2 to 5 minutes" in done.stderr, "and how long it takes"
    (prepared / "calls").unlink()
    assert run(prepared, "demo").returncode == 0
    assert [call.partition(" ")[0] for call in calls(prepared)] == ["-m", "-m"], "nothing is installed twice"


def test_the_demo_ends_where_the_bus_fails(prepared: Path) -> None:
    (prepared / "python.sh").write_text('case "$*" in *--keep*) exit 7 ;; esac')
    assert run(prepared, "demo").returncode == 7
    assert "report" not in (prepared / "calls").read_text()


def test_ctrl_c_between_the_bus_and_the_report_is_a_success(prepared: Path) -> None:
    (prepared / "python.sh").write_text('case "$*" in *spark*) kill -INT 0 ;; esac')
    done = subprocess.run(
        [prepared / "run", "demo"],
        env={"PATH": str(prepared / "bin")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        start_new_session=True,  # as a terminal does, the signal goes to all that runs there
    )
    assert done.returncode == 0
    assert done.stderr.endswith("run: the bus was shown; ./run demo goes on to the report another time\n")
    assert "--report" not in (prepared / "calls").read_text()


def without_java(checkout: Path, who: int, offered: dict[str, int]) -> tuple[int, list[str], list[str]]:
    """The demo without Java: its status, what it told once the bus was shown, and commands of root.

    ``who`` is the user's id, and ``offered`` tells of packages of Java which version they bring.
    """
    binaries, log = checkout / "bin", checkout / "log"
    (binaries / "java").unlink(missing_ok=True)
    program(binaries / "id", f"echo {who}")
    cases = "".join(
        f"*{name}) {shutil.which('cp')} -p {program(checkout / name, java(version))} {binaries}/java ;;\n"
        for name, version in offered.items()
    )
    program(binaries / "apt-get", f'echo "$*" >>{log}\ncase "$*" in update) ;;\n{cases}*) exit 100 ;;\nesac')
    done = run(checkout, "demo")
    *_, told = done.stderr.partition("with success\n")
    return done.returncode, told.splitlines(), log.read_text().splitlines() if log.exists() else []


def test_java_is_installed_where_that_is_allowed(prepared: Path) -> None:
    status, told, commands = without_java(prepared, 0, {"openjdk-17-jre-headless": 17})
    assert commands == ["update", "install -y --no-install-recommends openjdk-17-jre-headless"]
    assert told[:2] == [INSTALLING, "run: installing openjdk-17-jre-headless"]
    assert status == 0


def test_a_newer_java_is_installed_where_java_17_is_not_packaged(prepared: Path) -> None:
    status, _, commands = without_java(prepared, 0, {"openjdk-21-jre-headless": 21})
    assert [command.split()[-1] for command in commands[1:]] == ["openjdk-17-jre-headless", "openjdk-21-jre-headless"]
    assert status == 0


def test_java_is_installed_with_sudo(prepared: Path) -> None:
    program(prepared / "bin" / "sudo", f'[ "$1" = -n ] || exit 9; shift; echo "sudo $1" >>{prepared}/log; exec "$@"')
    status, _, commands = without_java(prepared, 1000, {"openjdk-17-jre-headless": 17})
    assert commands[:3] == ["sudo true", "sudo apt-get", "update"]
    assert status == 0


def test_a_missing_java_is_told_where_it_may_not_be_installed(prepared: Path) -> None:
    assert without_java(prepared, 1000, {"openjdk-17-jre-headless": 17}) == (1, [TO_INSTALL], [])


def test_a_java_that_cannot_be_installed_is_told(prepared: Path) -> None:
    status, told, commands = without_java(prepared, 0, {"default-jre-headless": 11})
    assert (status, told[0], told[-1]) == (1, INSTALLING, TO_INSTALL)
    assert len(commands) == 4


def test_a_newer_java_beside_an_old_one_is_found(checkout: Path) -> None:
    program(checkout / "bin" / "java", java(11))
    newer = checkout / "jvm" / "java-21" / "bin"
    newer.mkdir(parents=True)
    program(newer / "java", java(21))
    program(checkout / "bin" / "python3", 'case "$2" in *version_info*) exit 0 ;; esac; exit 1')
    assert "venv module" in run(checkout, "test").stderr, "it went on"


@pytest.mark.parametrize("version", [8, 11])
def test_an_old_java_home_is_refused(checkout: Path, version: int) -> None:
    (checkout / "old" / "bin").mkdir(parents=True)
    program(checkout / "old" / "bin" / "java", java(version))
    program(checkout / "bin" / "python3", "exit 0")
    done = run(checkout, "test", JAVA_HOME=f"{checkout}/old")
    assert done.stderr.splitlines()[-1] == f"run: JAVA_HOME={checkout}/old is no Java 17 or newer, which Spark needs"


def test_a_hub_needs_no_java(checkout: Path) -> None:
    (checkout / "bin" / "java").unlink()
    program(checkout / "bin" / "python3", 'case "$2" in *version_info*) exit 0 ;; esac; exit 1')
    assert "venv module" in run(checkout, "hub").stderr


@pytest.fixture
def installed() -> importlib.metadata.Distribution:
    try:
        distribution = importlib.metadata.distribution("sbuslib")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("sbuslib is not installed: run the tests through tox")
    if not any(str(file).endswith("share/man/man1/sbus.1") for file in distribution.files or ()):
        pytest.skip("an editable install has no data files")
    return distribution


def test_the_installed_package_has_its_files(installed: importlib.metadata.Distribution) -> None:
    files = {os.path.basename(file): installed.locate_file(file) for file in installed.files or ()}
    assert installed.version == sbuslib.__version__
    for name in manual.files():
        place = os.path.realpath(str(files[os.path.basename(name)]))
        assert os.path.dirname(place) == os.path.realpath(os.path.join(sys.prefix, "share", os.path.dirname(name)))
    assert {"py.typed", "pyspark_sbus.py", "log4j2.properties"} <= set(files)
    assert "LICENSE" in files


@pytest.mark.parametrize("program", ["sbus", "sbusd"])
def test_the_installed_programs_run(installed: importlib.metadata.Distribution, program: str) -> None:
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), program), "--version"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{program} {sbuslib.__version__}\n")


def test_the_core_needs_two_packages(installed: importlib.metadata.Distribution) -> None:
    required = [line for line in installed.requires or () if "extra ==" not in line]
    assert sorted(line.partition(">")[0] for line in required) == ["gevent", "msgspec"]
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    extras = set(settings["options.extras_require"])
    assert set(installed.metadata.get_all("Provides-Extra") or ()) == extras
