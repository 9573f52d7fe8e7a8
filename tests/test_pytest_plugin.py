"""The fixtures for users' tests, in a pytest of its own, and what loading them costs every other run of pytest."""

from __future__ import annotations

import configparser
from pathlib import Path

from docs.pages import DOCS, blocks
from support import ROOT, python

from sbuslib import pytest_plugin

EXAMPLE = """
import os
from sbuslib.blocking import Client

def test_one(sbus_hub, sbus_published):
    assert os.environ["SBUS_ADDRESS"] == sbus_hub.address
    with Client() as client:
        client.publish(b"room/1", b"21")
    sbus_published.assert_published(b"room/1", b"21")
    sbus_published.assert_not_published(b"alarm/")

def test_other(sbus_published):
    assert sbus_published.messages == []
    assert "SBUS_ADDRESS" in os.environ

def test_none():
    assert "SBUS_ADDRESS" not in os.environ
"""
WITH_PLUGIN = {"PYTEST_PLUGINS": pytest_plugin.__name__, "PYTEST_ADDOPTS": "-p no:cacheprovider"}


def test_each_test_has_a_hub_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(EXAMPLE)
    for block in blocks(DOCS / "how-to" / "testing.md"):
        if block.what == "file":
            (tmp_path / block.name).write_text(block.text)
    assert "4 passed" in python("-m", "pytest", "-q", str(tmp_path), **WITH_PLUGIN)


def test_loading_the_plugin_loads_nothing_else(tmp_path: Path) -> None:
    code = (
        "import pytest, sys; before = set(sys.modules); import sbuslib.pytest_plugin; print(*set(sys.modules) - before)"
    )
    loaded = set(python("-c", code).split())
    assert loaded == {"sbuslib", "sbuslib.lazy", "sbuslib.pytest_plugin"}


def test_pytest_finds_the_plugin_by_the_name_of_its_module() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options.entry_points"]["pytest11"].split() == ["sbuslib.pytest_plugin", "=", pytest_plugin.__name__]
