"""The load in C, and the one in Python where there is no compiler."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sbuslib.bench.native import Tools
from sbuslib.errors import StateError

COMPILER = shutil.which("cc")


def test_a_load_that_fails_says_why(place: Path, tools: Tools) -> None:
    with pytest.raises(StateError, match="No such file"):
        Tools(place, "").load("trip", "-a", place / "none")
    if COMPILER is not None:
        with pytest.raises(StateError, match="No such file"):
            tools.load("packets", "-a", place / "none", "-P", os.getpid())
