"""``sbus plan`` as a program, without Spark: its errors. ``tests/spark`` has it with Spark."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.refusals import is_refused

pytest.importorskip("pyspark")


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("plan",), 2, "LAKE"),
        (("plan", "lake"), 2, "TOPOLOGY"),
        (("plan", "lake", "/nowhere"), 1, "/nowhere: No such file or directory"),
        (("plan", "lake", "--simulate", "3"), 2, "leave LAKE"),
        (("plan", "--simulate", "0"), 2, "one hub or more"),
        (("plan", "--simulate", "3", "--output", "-"), 2, "there would be no output"),
    ],
)
def test_wrong_arguments_are_refused_before_spark_starts(
    run: Run, tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    is_refused(run("sbuslib", *words, cwd=tmp_path), status, said)
