"""``sbus units``: what it prints and writes, and that the page shows the same units."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from docs.pages import DOCS, blocks
from support import PATIENCE, ROOT

from sbuslib.cli import relay
from sbuslib.cli.units import read_unit, unit_names

Run = Callable[..., "subprocess.CompletedProcess[str]"]
UNITS = ROOT / "sbuslib" / "cli" / "systemd"


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``sbusd`` is found in a folder of the test, where it is not beside Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbusd").write_text("#!/bin/sh\n")
    (folder / "sbusd").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_units_are_listed(run: Run) -> None:
    done = run("sbuslib", "units")
    assert [line.split()[0] for line in done.stdout.splitlines()] == unit_names()
    assert all(line[22:].strip() for line in done.stdout.splitlines()), "each with what it is for"


@pytest.mark.parametrize("user", [False, True])
def test_units_are_installed_with_the_path_of_the_programs(
    run: Run, programs: dict[str, str], tmp_path: Path, user: bool
) -> None:
    target = tmp_path / "units"
    done = run("sbuslib", "units", "--install", str(target), *["--user"] * user, env=programs)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(target)) == unit_names(user)
    assert done.stdout.split() == [str(target / name) for name in unit_names(user)]
    for path in target.iterdir():
        assert "@BIN@" not in path.read_text()
    service = (target / ("sbus-user.service" if user else "sbus.service")).read_text()
    (line,) = [line for line in service.splitlines() if line.startswith("ExecStart=")]
    program = line.removeprefix("ExecStart=").split()[0]
    assert os.access(os.path.join(os.path.dirname(program), "sbusd"), os.X_OK)
    if not user:  # it is meant to be changed
        (target / "sbus.toml").write_text("mine")
    again = run("sbuslib", "units", "--install", str(target), *["--user"] * user, env=programs)
    assert again.returncode == 0, "what is there already is the same"
    assert user or (target / "sbus.toml").read_text() == "mine"


def test_a_changed_unit_is_not_replaced(run: Run, programs: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sbus.socket").write_text("mine")
    done = run("sbuslib", "units", "--install", str(tmp_path), env=programs)
    assert done.returncode == 1
    assert done.stderr.startswith(f"sbus: {tmp_path}/sbus.socket is there with other contents: remove it")
    assert sorted(os.listdir(tmp_path)) == ["bin", "sbus.socket"]


def test_the_page_shows_the_units() -> None:
    shown = [block.text for block in blocks(DOCS / "how-to" / "service.md") if block.language == "ini"]
    assert shown == [read_unit(name, "/usr/local/bin") for name in ("sbus.socket", "sbus.service")]
    (rules,) = [block.text for block in blocks(DOCS / "how-to" / "multi-tenant.md") if block.language == "toml"]
    assert rules == read_unit("sbus.toml", "")


@pytest.mark.parametrize("name", unit_names())
def test_no_unit_gives_its_service_a_user_namespace(name: str) -> None:
    """In one, every user but its own is unknown: the hub would not know its clients."""
    assert not re.search("^PrivateUsers=", read_unit(name, ""), re.MULTILINE)


def test_units_start_existing_programs_with_existing_arguments() -> None:
    from sbuslib.cli import daemon

    parsers = {"@BIN@/sbusd": daemon.build_parser, "@BIN@/sbus-relay": relay.build_parser}
    services = sorted(path for path in UNITS.glob("*.service") if "-serve@" not in path.name)
    assert len(services) == 3
    for path in services:
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(path)
        program, *arguments = unit["Service"]["ExecStart"].replace("$SBUSD_OPTIONS", "").split()
        parsed = parsers[program]().parse_args(arguments)
        assert unit["Service"]["Type"] == "notify"
        if parsed.address == "/dev/fd/3":
            assert (UNITS / path.name.replace(".service", ".socket")).exists()
        if program == "@BIN@/sbus-relay":
            assert parsed.export_patterns, "a tenant exports named patterns only"
            assert parsed.import_patterns, "and imports named ones"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze: apt-get install systemd")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for path in (one for one in UNITS.iterdir() if one.suffix != ".toml"):
        # The programs need not be installed where this is tested.
        text = path.read_text().replace("@BIN@/sbusd", "/bin/true").replace("@BIN@/sbus-relay", "/bin/true")
        text = text.replace("@BIN@/sbus", "/bin/true")
        (tmp_path / path.name.replace("@.", "@root.")).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "Unknown" not in done.stderr
    assert [line for line in done.stderr.splitlines() if "sbus" in line and "specifier" in line] == []
