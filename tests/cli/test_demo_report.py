"""The last part of the demo as a program. ``tests/spark/test_commands.py`` has it with Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import PATIENCE, ROOT

from sbuslib.cli import demo_report


def test_a_missing_java_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sbuslib.cli.demo_report", tmp_path / "journal", tmp_path / "lake", tmp_path / "x"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (demo_report.MISSING, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith("  no report: Spark needs Java 17")
