"""``sbus help`` as a program."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_help_shows_what_the_option_shows(run: Run) -> None:
    for words in ((), ("pub",), ("journal", "record")):
        done = run("sbuslib", "help", *words)
        assert (done.returncode, done.stdout) == (0, run("sbuslib", *words, "--help").stdout)
