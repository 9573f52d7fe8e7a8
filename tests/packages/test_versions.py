"""The versions that the package allows are the versions that are tested."""

from __future__ import annotations

import re
from configparser import ConfigParser

from support import ROOT


def section(file: str, name: str) -> dict[str, str]:
    """One section of a file of settings."""
    parser = ConfigParser(interpolation=None)
    parser.read(ROOT / file)
    return dict(parser[name])


def test_the_lowest_versions_are_tested_and_those_of_the_debian_package() -> None:
    allowed = dict(re.findall(r"(\S+)>=(\S+)", section("setup.cfg", "options")["install_requires"]))
    tested = dict(re.findall(r"(\S+)==(\S+)", section("tox.ini", "testenv:lowest")["deps"]))
    control = dict(re.findall(r"python3-(\S+) \(>= (\S+)\)", (ROOT / "debian/control").read_text("utf-8")))
    assert set(allowed) == {"gevent", "msgspec"}
    assert {name: version.removesuffix(".0") for name, version in tested.items()} == allowed
    assert control == allowed


def test_the_workflow_runs_both_environments() -> None:
    workflow = (ROOT / ".github/workflows/tests.yml").read_text("utf-8")
    assert "tox -e lowest" in workflow
    assert "tox -e debian13" in workflow
    assert "lowest" in section("tox.ini", "tox")["env_list"]
