"""``sbus send`` and ``sbus receive`` as programs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from support import HubThread

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


def ready(process: subprocess.Popen[bytes]) -> None:
    """Wait until ``sbus receive`` says that it receives."""
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"sbus: ready")


def test_files_are_sent_and_received(run: Run, start: Start, bus: HubThread, path: str, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    files = [tmp_path / "a.txt", tmp_path / "b\n.txt"]
    files[0].write_bytes(b"x" * 300_000)
    files[1].write_bytes(b"")
    receiver = start("sbuslib", "receive", "-a", path, "--into", str(into), "-n", "2", "--timeout", "20", "files/*")
    ready(receiver)
    sent = run("sbuslib", "send", "-a", path, "files/x", *map(str, files))
    assert sent.returncode == 0, sent.stderr
    assert sent.stderr.splitlines()[0] == f"sbus: {files[0]}: 1 of 1 have it"
    output, _ = receiver.communicate(timeout=20)
    assert receiver.returncode == 0
    first, second = output.decode().splitlines()
    assert first == f"{into}/a.txt"
    assert Path(first).read_bytes() == files[0].read_bytes()
    assert len(Path(second).name) == 32, "a name with a newline is not used"


def test_a_file_nobody_takes_is_an_error(run: Run, start: Start, bus: HubThread, path: str, tmp_path: Path) -> None:
    assert run("sbuslib", "send", "-a", path, "k", "/nowhere").stderr == "sbus: /nowhere: No such file or directory\n"
    source = tmp_path / "a"
    source.write_bytes(bytes(2_000))
    done = run("sbuslib", "send", "-a", path, "k", str(source), "--timeout", "0.01")
    assert done.returncode == 1
    assert "0 of 1 receivers took the file within 0.01 s" in done.stderr
    receiver = start("sbuslib", "receive", "-a", path, "--into", str(tmp_path), "--most", "1K", "k")
    ready(receiver)
    done = run("sbuslib", "send", "-a", path, "k", str(source))
    assert done.returncode == 1
    assert "2,000 bytes are more than 1,024" in done.stderr
    receiver.send_signal(signal.SIGTERM)
    receiver.communicate(timeout=20)
    assert receiver.returncode == 0
    assert os.listdir(tmp_path) == ["a"]
