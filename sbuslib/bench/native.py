"""The C programs of the benchmark, compiled with ``cc``: the load generator ``load.c``, and ``forwarder.c``, a minimal
broker in C as the limit to compare with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec

from ..errors import StateError
from .results import Run

_HERE = Path(__file__).parent
_PATIENCE = 120.0
"""Seconds after which a load counts as hanging."""


class Load:
    """Runs the load generator with the command ``program``."""

    def __init__(self, program: list[str]) -> None:
        self._program = program

    def __call__(self, job: str, *options: object, pass_fds: tuple[int, ...] = ()) -> Run:
        """Run one load, see the head of ``load.c``. Raises :exc:`~sbuslib.errors.StateError` when it fails."""
        command = [*self._program, job, *map(str, options)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PATIENCE, pass_fds=pass_fds, check=False
            )
        except subprocess.TimeoutExpired:
            raise StateError(f"the load did not end within {_PATIENCE:.0f} s") from None
        if done.returncode:
            raise StateError(done.stderr.strip().rpartition("\n")[2] or f"the load ended with status {done.returncode}")
        return msgspec.json.decode(done.stdout, type=Run)


class Tools:
    """The load and the forwarder, compiled into ``folder``. Raises :exc:`~sbuslib.errors.StateError` without ``cc``.

    Each run has its own folder. With a shared one, another user could choose what this program runs.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise StateError("a benchmark needs a C compiler, cc: apt-get install gcc libc6-dev")
        self.compiler = compiler  # its path
        self.forwarder = self._compile(folder, "forwarder")
        """The program."""
        #: The load generator: publishes and receives messages.
        self.load = Load([str(self._compile(folder, "load"))])

    def _compile(self, folder: Path, name: str) -> Path:
        program = folder / name
        command = [self.compiler, "-O2", "-pthread", "-o", str(program), str(_HERE / f"{name}.c")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StateError(f"{self.compiler} cannot compile {name}.c: {done.stderr.strip()}")
        return program
