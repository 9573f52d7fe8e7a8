"""``sbus send`` and ``sbus receive`` as programs."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from programs import wait_until
from support import PATIENCE, HubThread

from sbuslib.blocking import Client
from sbuslib.errors import PeerError

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


def test_a_file_that_does_not_fit_on_the_disk_is_told_and_the_next_one_comes(
    run: Run, start: Start, bus: HubThread, path: str, tmp_path: Path
) -> None:
    large, small, into = tmp_path / "large", tmp_path / "small", tmp_path / "into"
    large.write_bytes(bytes(1_000_000))
    small.write_bytes(b"x")
    into.mkdir()
    limit = 200_000, 200_000
    receiver = start(
        *("sbuslib", "receive", "-a", path, "--into", str(into), "-n", "1", "k"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    ready(receiver)
    assert run("sbuslib", "send", "-a", path, "k", str(large)).returncode == 1
    assert receiver.stderr is not None
    assert receiver.stderr.readline() == f"sbus: {into}: File too large\n".encode()
    assert run("sbuslib", "send", "-a", path, "k", str(small)).returncode == 0
    output, _ = receiver.communicate(timeout=20)
    assert (receiver.returncode, output) == (0, f"{into}/small\n".encode())
    assert os.listdir(into) == ["small"]


def test_nothing_is_left_of_a_file_when_the_receiver_is_killed(
    run: Run, start: Start, bus: HubThread, path: str, tmp_path: Path
) -> None:
    into, large = tmp_path / "into", tmp_path / "large"
    into.mkdir()
    large.touch()
    os.truncate(large, 1_000_000_000)
    receiver = start("sbuslib", "receive", "-a", path, "--into", str(into), "k")
    ready(receiver)
    with Client(path) as sender:
        errors: list[str] = []

        def send() -> None:
            try:
                sender.send_large("k", large, timeout=PATIENCE)
            except PeerError as error:
                errors.append(str(error))

        sending = threading.Thread(target=send)
        sending.start()
        wait_until(lambda: any(transfer.copying for transfer in list(sender._door._transfers.values())), "it copies")
        receiver.kill()
        receiver.wait()
        sending.join()
    assert errors == ["nobody has k: a receiver left"]
    assert os.listdir(into) == []
