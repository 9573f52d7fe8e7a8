"""``sbus lake`` as a program: its errors, and a journal that becomes a lake and a page."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from segments.journals import EXAMPLE, write

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

Start = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_journal_becomes_a_lake_and_a_page(start: Start, tmp_path: Path) -> None:
    write(str(tmp_path / "journal"), *EXAMPLE)
    (tmp_path / "other").mkdir()
    ingest = start("sbuslib", "lake", "ingest", "journal", "other", "lake", cwd=tmp_path)
    said, told = ingest.communicate()
    assert ingest.returncode == 0, told
    assert re.fullmatch(rb"lake: 9 new rows in 1 files, [\d,]+ bytes\n", said)
    assert b"starting Spark" not in told, "nothing for it to do"
    report = start("sbuslib", "report", "traffic", "lake", cwd=tmp_path)
    said, told = report.communicate()
    assert (report.returncode, said) == (0, b"traffic.html\n"), told
    assert "<b>6</b><span>messages</span>" in (tmp_path / "traffic.html").read_text("utf-8")


def test_a_journal_that_fails_is_named_and_the_others_are_taken_in(run: Run, tmp_path: Path) -> None:
    write(str(tmp_path / "journal"), *EXAMPLE)
    done = run("sbuslib", "lake", "ingest", "-q", "/nowhere", "journal", "lake", cwd=tmp_path)
    assert (done.returncode, done.stdout.split()[1]) == (1, "9")
    assert done.stderr.splitlines() == [
        "sbus: /nowhere: no such directory",
        "sbus: 1 of 2 journals could not be taken in",
    ]
