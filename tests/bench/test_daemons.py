"""Which process a daemon is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support import HubThread

from sbuslib.bench import daemons
from sbuslib.bench.native import Tools

COMPILER = shutil.which("cc")


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


@needs_compiler
def test_the_process_of_a_daemon_is_found_by_its_socket(place: Path, tools: Tools) -> None:
    with HubThread(str(place / "bus")):
        run = tools.load("packets", "-a", place / "bus", "-n", 200)
        assert (run.received, run.lost) == (200, 0)
        assert run.cpu > 0
        assert daemons.other(str(place / "bus")).pids == [os.getpid()]
