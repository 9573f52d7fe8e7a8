"""Fixtures: the programs as real processes, ended after the test."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

import gevent
import pytest
from gevent import subprocess as waiting
from journal.format.journals import EXAMPLE, write
from support import PATIENCE, ROOT, HubThread
from tcp.conftest import limits as limits
from tcp.conftest import make_peer as make_peer

from sbuslib.blocking import Client
from sbuslib.cli import daemon, main, relay


class Program(subprocess.Popen[bytes]):
    """A program whose standard input, output and errors are pipes to the test, unless it is started otherwise."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    printed = b""
    told = ""


Start = Callable[..., Program]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Await = Callable[[int], None]


def publish(path: str, *messages: tuple[bytes, bytes]) -> None:
    """Publish pairs of key and payload at the hub there."""
    with Client(path) as client:
        client.publish_many(messages)


def write_little() -> None:
    """In a process: let no file of its own grow beyond 200,000 bytes, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment that names no hub of the machine's, and no size of another terminal."""
    for name in ("SBUS_ADDRESS", "XDG_RUNTIME_DIR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    return os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Start ``python -m`` with arguments; keywords go to ``Popen``, ``env`` is added to the environment."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> Program:
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = Program([sys.executable, "-m", *arguments], env=environment | (env or {}), **{**pipes, **options})
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def serve(start: Start, path: str) -> Start:
    """Start ``sbusd -f``, at :func:`path` unless told, and return when it listens: ``printed`` is its output."""

    def serve(*flags: str, program: str = "sbuslib.cli.daemon", **options: Any) -> Program:
        if program == "sbuslib.cli.daemon":
            flags = ("-f", *(() if "-a" in flags else ("-a", path)), *flags)
        process = start(program, *flags, **options)
        process.printed = process.stdout.read()  # to its end: it closes it once clients can connect
        return process

    return serve


@pytest.fixture
def ready(start: Start, path: str) -> Start:
    """Start a command of ``sbus`` at :func:`path`, and return when it serves: ``told`` is the line that says so."""

    def ready(*words: str, **options: Any) -> Program:
        process = start("sbuslib", words[0], "-a", path, *words[1:], **options)
        while not (line := process.stderr.readline().decode()).endswith("(Ctrl-C ends it)\n"):
            assert line.endswith(" ...\n"), line + process.stderr.read().decode()  # a sign of life
        process.told = line
        return process

    return ready


@pytest.fixture
def execute(environment: dict[str, str]) -> Run:
    """Run ``python -m`` with arguments to its end; ``env`` is added to the environment."""

    def execute(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if "input" in options:
            del pipes["stdin"]
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            env=environment | (env or {}),
            timeout=PATIENCE,
            text=True,
            check=False,
            **{**pipes, **options},
        )

    return execute


CHANGED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGTSTP)
"""Signals whose handlers programs change."""
SERVING = {"hub", "broker", "web", "serve", "retain", "queue", "peer", "gateway", "bridge", "record", "bench"}
"""Words of commands that run until they are told to end."""
MAINS = {"sbuslib": main.main, "sbuslib.cli.daemon": daemon.main, "sbuslib.cli.relay": relay.main}
STREAMS = ("stdin", "stdout", "stderr")


@pytest.fixture
def run(execute: Run, run_here: Run) -> Run:
    """Run ``sbus`` as :func:`execute` does, but in this process where the command ends by itself."""

    def run(program: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return (execute if SERVING & {*arguments[:3]} else run_here)(program, *arguments, **options)

    return run


@pytest.fixture
def run_here(environment: dict[str, str]) -> Run:
    """Run a program in this process, where it must not serve. What it changes in this process is put back."""

    def run_here(
        program: str, *arguments: str, env: dict[str, str] | None = None, input: str = ""
    ) -> subprocess.CompletedProcess[str]:
        modes = ("r", "r+", "r+")
        files = [os.fdopen(os.memfd_create(name), mode) for name, mode in zip(STREAMS, modes, strict=True)]
        os.pwrite(files[0].fileno(), input.encode(), 0)
        handlers, mask = {one: signal.getsignal(one) for one in CHANGED}, signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
            for name, file in zip(STREAMS, files, strict=True):
                patch.setattr(sys, name, stack.enter_context(file))
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setattr(os, "nice", lambda by: 0)
            patch.setattr(resource, "setrlimit", lambda *_: None)
            patch.setattr(gevent, "signal_handler", lambda *_: None)
            try:
                status = MAINS[program](arguments)
            except SystemExit as end:
                if not isinstance(end.code, int):  # this test hangs
                    raise
                status = end.code
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            out, err = (file.seek(0) or file.read() for file in files[1:])
        return subprocess.CompletedProcess(arguments, status, out, err)

    return run_here


@pytest.fixture
def path(folder: str) -> str:
    """Where a hub may listen."""
    return os.path.join(folder, "bus")


@pytest.fixture
def bus(path: str) -> Iterator[HubThread]:
    """A hub at :func:`path`, in a thread."""
    with HubThread(path) as thread:
        yield thread


@pytest.fixture
def journal(folder: str) -> str:
    """A journal with :data:`EXAMPLE`."""
    write(f"{folder}/journal", *EXAMPLE)
    return f"{folder}/journal"


@pytest.fixture
def await_patterns(bus: HubThread) -> Callable[[int], None]:
    """Wait until the clients of :func:`bus` hold so many patterns: a program does not tell that it has subscribed."""

    def wait(count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while bus.call(lambda: bus.hub.statistics().patterns) != count:
            assert time.monotonic() < deadline, "nobody subscribed"
            time.sleep(0.002)

    return wait


@pytest.fixture
def subscribed(start: Start, path: str, await_patterns: Callable[[int], None]) -> Start:
    """Start ``sbus sub`` with arguments, the last of which is its only pattern, and return when that is in force."""

    def subscribed(*arguments: str, **options: Any) -> Program:
        process = start("sbuslib", "sub", "-a", path, *arguments, **options)
        await_patterns(1)
        return process

    return subscribed


@pytest.fixture
def listening(environment: dict[str, str]) -> Iterator[Callable[..., tuple[Any, str]]]:
    """Start ``sbus`` with arguments, and return when it listens: the process, and where."""
    processes: list[Any] = []

    def listening(*arguments: str) -> tuple[Any, str]:
        command = [sys.executable, "-m", "sbuslib", *arguments]
        process: Any = waiting.Popen(command, stdout=waiting.PIPE, stderr=waiting.PIPE, env=environment)
        processes.append(process)
        said = process.stderr.readline().decode()
        assert said.startswith("sbus: listening at "), said
        return process, said.split()[3]

    yield listening
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
