"""``sbus plan`` as a program, without Spark. ``tests/spark`` has it with Spark."""

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


def test_the_plan_of_a_simulated_tree_needs_no_java(run: Run, tmp_path: Path) -> None:
    words = ("plan", "--simulate", "30", "--fan-out", "3", "--csv", "load")
    done = run("sbuslib", *words, cwd=tmp_path, env={"JAVA_HOME": str(tmp_path)})
    assert done.stdout.splitlines() == ["plan.html", "load"], done.stderr
    assert "Spark" not in done.stderr
    lines = (tmp_path / "load" / "links.csv").read_text().splitlines()
    assert len(lines) == 1 + 29
    assert (tmp_path / "plan.html").read_text().startswith("<!DOCTYPE html>")
