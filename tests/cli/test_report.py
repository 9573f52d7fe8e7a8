"""``sbus report`` as a program, without Spark: its errors. ``test_lake.py`` has it with Spark."""

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
        (("report", "traffic", "/nowhere"), 1, "/nowhere"),
        (("report", "traffic", "."), 1, "is no lake"),
        (("report", "traffic", ".", "--output", "-"), 2, "there would be no output"),
        (("report", "traffic", ".", "--levels", "0"), 2, "invalid positive number value"),
        (("report", "latency", "."), 2, "--request"),
        (("report", "subscriptions", ".", "/nowhere"), 1, "/nowhere: No such file or directory"),
        (("report",), 2, "KIND"),
    ],
)
def test_wrong_arguments_are_refused_before_spark_starts(
    run: Run, tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    is_refused(run("sbuslib", *words, cwd=tmp_path), status, said)
