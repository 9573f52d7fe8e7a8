"""``sbus request`` and ``sbus serve`` as programs, with each other."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable

from support import HubThread

from sbuslib import blocking
from sbuslib.errors import AnswerError

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


def serving(start: Start, path: str, *arguments: str) -> subprocess.Popen[bytes]:
    """``sbus serve``, once it is ready."""
    process = start("sbuslib", "serve", "-a", path, *arguments)
    assert process.stderr is not None
    while b"ready to answer" not in process.stderr.readline():
        assert process.poll() is None
    return process


def test_a_command_answers_and_ctrl_c_ends_it(run: Run, start: Start, bus: HubThread, path: str) -> None:
    process = serving(start, path, "svc/*", "--", "sh", "-c", 'echo "$SBUS_KEY $SBUS_SENDER"; tr a-z A-Z')
    done = run("sbuslib", "request", "-a", path, "svc/1", "hello")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"svc/1 !/cred/\d+/\d+/\d+\nHELLO", done.stdout)
    assert run("sbuslib", "request", "-a", path, "svc/1", "--stdin", input="piped").stdout.endswith("PIPED")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


def test_a_command_that_fails_or_takes_too_long_is_an_error(run: Run, start: Start, bus: HubThread, path: str) -> None:
    serving(start, path, "-j", "2", "svc", "--", "sh", "-c", "echo wrong >&2; exec $(cat)")
    done = run("sbuslib", "request", "-a", path, "svc", "false")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(": wrong\n")
    done = run("sbuslib", "request", "-a", path, "--timeout", "2", "svc", "sleep 60")
    assert done.returncode == 1
    assert "did not answer" in done.stderr or "timed out" in done.stderr  # both ends give up at the same time
    assert run("sbuslib", "request", "-a", path, "svc", "true").returncode == 0


def test_a_command_need_not_read_what_it_is_given(run: Run, start: Start, bus: HubThread, path: str) -> None:
    process = serving(start, path, "svc", "--", "true")
    for _ in range(2):
        done = run("sbuslib", "request", "-a", path, "svc", "--stdin", input="x" * 300_000)  # more than a pipe holds
        assert (done.returncode, done.stderr) == (0, "")
    assert process.poll() is None


def test_all_who_serve_a_key_are_shown(run: Run, bus: HubThread, path: str) -> None:
    def fail(question: object) -> bytes:
        raise AnswerError("no \x1b")

    with (
        blocking.Client(path) as one,
        blocking.Client(path) as other,
        one.serve(b"svc", lambda question: b"one\n\x1b"),
        other.serve(b"svc", lambda question: b"two"),
    ):
        done = run("sbuslib", "request", "-a", path, "--all", "--wait", "2s", "svc")
        assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["one\\n\\x1b", "two"])
        with other.serve(b"svc", fail):
            done = run("sbuslib", "request", "-a", path, "--all", "--wait", "2s", "svc")
            assert (done.returncode, len(done.stdout.splitlines())) == (1, 2)
            assert "no \\x1b" in done.stderr
