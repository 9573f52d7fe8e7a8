"""``sbus report`` as a program, without Spark: its errors. ``test_lake.py`` has it with Spark."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

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
    done = run("sbuslib", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "starting Spark" not in done.stderr
