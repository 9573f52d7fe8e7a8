"""What every command over Spark has to do with wrong arguments."""

from __future__ import annotations

import subprocess


def is_refused(done: subprocess.CompletedProcess[str], status: int, said: str) -> None:
    """The command ended so, said so on standard error alone, and did not begin to start Spark."""
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "starting Spark" not in done.stderr
