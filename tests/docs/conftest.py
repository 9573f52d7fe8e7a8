"""A folder for a page's files, with the commands that a reader has after the installation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from docs.pages import Desk
from support import ROOT


@pytest.fixture
def desk(folder: str) -> Desk:
    """A folder with ``sbus``, ``sbusd`` and ``python`` on the path, whether or not the package is installed."""
    place = Path(folder)
    programs = place / "bin"
    programs.mkdir()
    for name, arguments in (("sbus", "-m sbuslib"), ("sbusd", "-m sbuslib.cli.daemon"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        program.chmod(0o755)
    work = place / "w"
    work.mkdir()
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "LC_ALL": "C.UTF-8",
    }
    for name in ("SBUS_ADDRESS", "XDG_RUNTIME_DIR", "SBUS_SYSCALLS"):
        environment.pop(name, None)
    return Desk(work, f"{place}/bus", environment)
