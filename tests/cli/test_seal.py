"""``sbus seal`` as a program."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from segments.journals import EXAMPLE, write

from sbuslib import read

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


def test_a_journal_is_sealed_once(run: Run, tmp_path: Path) -> None:
    write(str(tmp_path / "journal"), *EXAMPLE)
    done = run("sbuslib", "seal", "journal", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/journal/sealed: 9 rows sealed, in 1 files\n")
    assert done.stderr.startswith("sbus: 0123456789abcdef-00000000000000000001-00000000000000000009-2025")
    again = run("sbuslib", "seal", "journal", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, f"{tmp_path}/journal/sealed: 0 rows sealed, in 0 files\n")
    assert read(tmp_path / "journal").num_rows == 9


def test_a_follower_ends_at_the_signal(start: Start, tmp_path: Path) -> None:
    write(str(tmp_path / "journal"), *EXAMPLE)
    sealing = start("sbuslib", "seal", "--follow", "--to", "elsewhere", "journal", cwd=tmp_path)
    assert sealing.stderr is not None
    assert b"9 rows" in sealing.stderr.readline(), "the day of the segments is over"
    os.kill(sealing.pid, signal.SIGTERM)
    said, _ = sealing.communicate()
    assert sealing.returncode == 0
    assert said == f"{tmp_path}/elsewhere: 9 rows sealed, in 1 files\n".encode()
