"""The last part of the demo: a report of its journal, or one line that says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark.journals import rows, segment
from support import PATIENCE, ROOT

from sbuslib.cli import demo, demo_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_report_is_made_of_the_journal(
    spark: SparkSession,
    journal: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sbuslib.spark.sessions.session", lambda *arguments, **options: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    segment(journal, 1, rows(20))
    report = tmp_path / "traffic.html"
    assert demo_report.main([str(journal), str(tmp_path / "lake"), str(report)]) == 0
    assert "  lake         20 messages as Parquet\n" in capsys.readouterr().out
    assert "<b>20</b><span>messages</span>" in report.read_text("utf-8")


def test_missing_java_is_told_in_one_line(tmp_path: Path) -> None:
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


class Director:
    """The part of the demo's director that its report uses."""

    def __init__(self, journal: str) -> None:
        self.journal = journal
        self.verdicts: list[tuple[bool, str]] = []

    def judge(self, holds: bool, what: str) -> None:
        self.verdicts.append((holds, what))


@pytest.mark.parametrize(
    ("status", "verdicts"),
    [(0, [True]), (demo_report.MISSING, []), (1, [False])],
)
def test_the_demo_judges_the_exit_status_of_its_report(
    status: int, verdicts: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function replaces the process that makes the report."""

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        Path(command[-1]).write_text("a page")
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(demo.subprocess, "run", run)  # type: ignore[attr-defined]
    monkeypatch.setattr(demo.tempfile, "mkdtemp", lambda prefix: str(tmp_path / "kept"))  # type: ignore[attr-defined]
    (tmp_path / "kept").mkdir()
    (tmp_path / "demo").mkdir()
    director = Director(str(tmp_path / "journal"))
    made = demo.make_report(director, str(tmp_path / "demo"))  # type: ignore[arg-type]
    assert [holds for holds, _ in director.verdicts] == verdicts
    assert made == (str(tmp_path / "kept" / "traffic.html") if status == 0 else None)
    assert made is None or Path(made).read_text() == "a page"
