"""Fixtures; and lets these tests import ``benchmarks``, which is in the checkout and is never installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from support import ROOT

from sbuslib.bench.native import Tools

# Last, so that `sbuslib` is still the installed one.
sys.path.append(str(ROOT))


@pytest.fixture
def place(folder: str) -> Path:
    return Path(folder)


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler: apt-get install gcc libc6-dev")
    return Tools(tmp_path_factory.mktemp("tools"))
