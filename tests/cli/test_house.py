"""``./run``, and the files of the installed package and of the source distribution."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support import PATIENCE, ROOT

import sbuslib


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with ``run`` and no ``.venv``, in which nothing is ever installed."""
    # Where a Java of this machine's would be found, whatever the path is.
    program(tmp_path / "run", (ROOT / "run").read_text().replace("/usr/lib/jvm", f"{tmp_path}/jvm"))
    (tmp_path / "bin").mkdir()
    for name in ("sh", "cat", "sed", "dirname", "find", "env", "true"):
        found = shutil.which(name)
        assert found
        (tmp_path / "bin" / name).symlink_to(found)
    program(tmp_path / "bin" / "java", java(17))
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
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        ANNOUNCED,
        "run: Python's venv module is missing: apt-get install python3-venv",
    ]


def test_a_wrong_python_variable_is_refused(checkout: Path) -> None:
    done = run(checkout, "demo", PYTHON="/nowhere/python")
    assert (done.returncode, done.stderr) == (1, "run: PYTHON=/nowhere/python is not a Python 3.11 or newer\n")


ANNOUNCED = "run: the first time, this installs 960 MB into .venv, mostly Spark, and needs Java 17: 2 to 5 minutes"
MISSING = "run: Java 17 or newer, which Spark needs, is missing"
INSTALLING = f"{MISSING}: installing it, some 200 MB, which takes a minute"
TO_INSTALL = f"{MISSING}: apt-get install openjdk-17-jre-headless"


def without_java(checkout: Path, who: int, offered: dict[str, int], **environment: str) -> tuple[list[str], list[str]]:
    """Run without Java, with a Python that gets as far as its venv module: what was complained, and commands of root.

    ``who`` is the user's id, and ``offered`` tells of packages of Java which version they bring.
    """
    binaries, log = checkout / "bin", checkout / "log"
    (binaries / "java").unlink(missing_ok=True)
    program(binaries / "python3", 'case "$2" in *version_info*) exit 0 ;; esac; exit 1')
    program(binaries / "id", f"echo {who}")
    cases = "".join(
        f"*{name}) {shutil.which('cp')} -p {program(checkout / name, java(version))} {binaries}/java ;;\n"
        for name, version in offered.items()
    )
    program(binaries / "apt-get", f'echo "$*" >>{log}\ncase "$*" in update) ;;\n{cases}*) exit 100 ;;\nesac')
    done = run(checkout, "demo", **environment)
    assert done.returncode == 1
    return done.stderr.splitlines(), log.read_text().splitlines() if log.exists() else []


def test_java_is_installed_where_that_is_allowed(checkout: Path) -> None:
    complaints, commands = without_java(checkout, 0, {"openjdk-17-jre-headless": 17})
    assert commands == ["update", "install -y --no-install-recommends openjdk-17-jre-headless"]
    assert complaints[:3] == [ANNOUNCED, INSTALLING, "run: installing openjdk-17-jre-headless"]
    assert "venv module" in complaints[3], "it went on"


def test_a_newer_java_is_installed_where_java_17_is_not_packaged(checkout: Path) -> None:
    complaints, commands = without_java(checkout, 0, {"openjdk-21-jre-headless": 21})
    assert [command.split()[-1] for command in commands[1:]] == ["openjdk-17-jre-headless", "openjdk-21-jre-headless"]
    assert "venv module" in complaints[-1], "it went on"


def test_java_is_installed_with_sudo(checkout: Path) -> None:
    program(checkout / "bin" / "sudo", f'[ "$1" = -n ] || exit 9; shift; echo "sudo $1" >>{checkout}/log; exec "$@"')
    complaints, commands = without_java(checkout, 1000, {"openjdk-17-jre-headless": 17})
    assert commands[:3] == ["sudo true", "sudo apt-get", "update"]
    assert "venv module" in complaints[-1], "it went on"


def test_a_missing_java_is_told_where_it_may_not_be_installed(checkout: Path) -> None:
    assert without_java(checkout, 1000, {"openjdk-17-jre-headless": 17}) == ([ANNOUNCED, TO_INSTALL], [])


def test_a_java_that_cannot_be_installed_is_told(checkout: Path) -> None:
    complaints, commands = without_java(checkout, 0, {"default-jre-headless": 11})
    assert complaints[:2] == [ANNOUNCED, INSTALLING]
    assert complaints[-1] == TO_INSTALL
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


def test_a_source_distribution_has_what_its_tests_read(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    folders = ("sbuslib", "tests", "docs", "examples", "benchmarks", "man")
    copy = tmp_path / "copy"
    for folder in folders:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".*"))
    for path in (path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".git")):
        shutil.copy(path, copy)
    wanted = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    build = "from setuptools import build_meta; build_meta.build_sdist('out')"
    subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, timeout=PATIENCE, check=True)
    (made,) = (copy / "out").iterdir()
    with tarfile.open(made) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    assert wanted - there == set()


@pytest.fixture
def installed() -> importlib.metadata.Distribution:
    try:
        distribution = importlib.metadata.distribution("sbuslib")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("sbuslib is not installed: run the tests through tox")
    if not any(str(file).endswith("sbus.1") for file in distribution.files or ()):
        pytest.skip("an editable install has no data files")
    return distribution


def test_the_installed_package_has_its_files(installed: importlib.metadata.Distribution) -> None:
    files = {os.path.basename(file): installed.locate_file(file) for file in installed.files or ()}
    assert installed.version == sbuslib.__version__
    for name in os.listdir(ROOT / "man"):
        place = os.path.realpath(str(files[name]))
        assert place == os.path.realpath(os.path.join(sys.prefix, "share", "man", "man1", name))
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
    extras = {"cli", "metrics", "tcp", "spark", "report", "bench", "test", "dev"}
    assert set(installed.metadata.get_all("Provides-Extra") or ()) == extras
