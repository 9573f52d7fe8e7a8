"""What a stranger meets first: ``./run``, and what an installed package brings."""

from __future__ import annotations

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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with ``run`` and no ``.venv``, in which nothing is ever installed."""
    shutil.copy(ROOT / "run", tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("sh", "cat", "sed", "dirname", "find"):
        found = shutil.which(name)
        assert found
        (tmp_path / "bin" / name).symlink_to(found)
    return tmp_path


def fake_python(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


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


def test_without_a_command_it_tells_them(checkout: Path) -> None:
    done = run(checkout)
    assert done.returncode == 2
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["./run", "demo"],
        ["./run", "test"],
        ["./run", "hub"],
    ]
    assert run(checkout, "--help").returncode == 0


@pytest.mark.parametrize("command", ["demo", "test", "hub"])
def test_no_python(checkout: Path, command: str) -> None:
    done = run(checkout, command)
    assert done.returncode == 1
    assert done.stderr == "run: Python 3.11 or newer is missing: apt-get install python3 python3-venv\n"


@pytest.mark.parametrize("command", ["demo", "test", "hub"])
def test_an_old_python(checkout: Path, command: str) -> None:
    fake_python(checkout / "bin" / "python3", '[ "$1" = -V ] && echo Python 3.9.2 && exit; exit 1')
    done = run(checkout, command)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("run: Python 3.9.2 is too old, 3.11 or newer is needed: apt-get install python3.11")


def test_a_newer_python_beside_an_old_one_is_found(checkout: Path) -> None:
    fake_python(checkout / "bin" / "python3", "exit 1")
    fake_python(checkout / "bin" / "python3.12", 'case "$2" in *version_info*) exit 0 ;; esac; exit 1')
    assert "venv module" in run(checkout, "demo").stderr, "it went on with the newer one"


def test_no_venv_module(checkout: Path) -> None:
    python = fake_python(checkout / "python", 'case "$2" in *version_info*) exit 0 ;; esac; exit 1')
    done = run(checkout, "demo", PYTHON=str(python))
    assert (done.returncode, done.stderr) == (
        1,
        "run: Python's venv module is missing: apt-get install python3-venv\n",
    )


def test_a_python_that_is_none(checkout: Path) -> None:
    done = run(checkout, "demo", PYTHON="/nowhere/python")
    assert (done.returncode, done.stderr) == (1, "run: PYTHON=/nowhere/python is not a Python 3.11 or newer\n")


@pytest.fixture
def installed() -> importlib.metadata.Distribution:
    try:
        distribution = importlib.metadata.distribution("sbuslib")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("sbuslib is not installed: run the tests through tox")
    if not any(str(file).endswith("sbus.1") for file in distribution.files or ()):
        pytest.skip("an editable install has no data files")
    return distribution


def test_what_is_installed(installed: importlib.metadata.Distribution) -> None:
    files = {os.path.basename(file): installed.locate_file(file) for file in installed.files or ()}
    assert installed.version == sbuslib.__version__
    for name in ("sbus.1", "sbusd.1"):
        place = os.path.realpath(str(files[name]))
        assert place == os.path.realpath(os.path.join(sys.prefix, "share", "man", "man1", name))
    assert "py.typed" in files
    assert "LICENSE" in files


@pytest.mark.parametrize("program", ["sbus", "sbusd"])
def test_the_installed_programs(installed: importlib.metadata.Distribution, program: str) -> None:
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
    extras = {"tcp", "spark", "report", "bench", "test", "dev"}
    assert set(installed.metadata.get_all("Provides-Extra") or ()) == extras
