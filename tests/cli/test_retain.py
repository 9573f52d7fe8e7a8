"""``sbus retain`` and ``sbus get`` as programs."""

from __future__ import annotations

import signal
from pathlib import Path

from cli.conftest import Run, Start
from support import HubThread


def test_the_newest_message_is_shown_also_after_a_restart(
    run: Run, ready: Start, bus: HubThread, path: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "last.db")
    assert "nobody keeps a/1: start sbus retain" in run("sbuslib", "get", "-a", path, "a/1").stderr
    for kept in (0, 2):
        service = ready("retain", "--store", file, "--max-keys", "2", "a/")
        assert service.told == f"sbus: {kept} keys are kept of {path} (Ctrl-C ends it)\n"
        if not kept:
            for key, payload in (("a/0", "gone"), ("a/1", "old"), ("a/1", "x\ty"), ("a/2", "z")):
                assert run("sbuslib", "pub", "-a", path, key, payload).returncode == 0
        done = run("sbuslib", "get", "-a", path, "a/*")
        assert (done.returncode, done.stdout, done.stderr) == (0, "a/1\tx\\ty\na/2\tz\n", "")
        assert run("sbuslib", "get", "-a", path, "--raw", "a/1").stdout == "x\ty"
        done = run("sbuslib", "get", "-a", path, "a/3")
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "sbus: no message is kept there\n")
        service.send_signal(signal.SIGTERM)
        service.communicate(timeout=20)
        assert service.returncode == 0


def test_a_file_that_is_no_database_is_an_error(run_here: Run, bus: HubThread, path: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text" * 1_000)
    done = run_here("sbuslib", "retain", "-a", path, "--store", str(tmp_path / "text"), "a/")
    assert (done.returncode, done.stderr) == (1, f"sbus: {tmp_path}/text: file is not a database\n")
