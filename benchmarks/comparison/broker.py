"""Other brokers, each started for the purpose where it is installed, and driven as it is fastest: by batched writes.

A broker here is a program that is started in a folder, and three things about its protocol: how a publisher and a
subscriber introduce themselves, what a message is on its way in, and how long it is on its way out. The handshakes are
made here; the streams that then stand are handed to the load (``load stream`` of ``load.c``), which writes as many
messages at once as go into 64 KiB and counts what comes. Brokers that drop what a slow subscriber has not read yet are
told not to, so that nothing is lost that could be kept.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from sbuslib.bench.native import Load
from sbuslib.bench.results import Run
from sbuslib.errors import StateError

__all__ = [
    "KEY",
    "PATIENCE",
    "Broker",
    "NotInstalledError",
    "connect_stream",
    "exactly",
    "find_program",
    "free_port",
    "until",
    "version_of",
]

KEY = b"bench/0000000/00000000"
"""The routing key: as long as the load's own are."""

PATIENCE = 60.0
"""Seconds after which a broker that has not answered never will."""


class NotInstalledError(StateError):
    """A broker is not installed here; the message says what is missing."""


def free_port() -> int:
    """A TCP port of this machine that nobody listens at, for now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def connect_stream(path: str, timeout: float) -> socket.socket:
    """A blocking connection to a Unix-domain stream socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


class Broker(ABC):
    """A broker that runs. ``folder`` is its own, for sockets, settings and whatever it writes."""

    name: ClassVar[str]
    """What it is called in results, and in :mod:`comparison.clients`."""
    title: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it listens: a path, or ``127.0.0.1:PORT``."""

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments. Raises :exc:`NotInstalledError`."""

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Which release this is."""

    def environment(self) -> dict[str, str]:
        """What the program finds in its environment beside what is there already."""
        return {}

    @property
    def pids(self) -> list[int]:
        """The processes whose CPU time counts."""
        assert self.process is not None
        return [self.process.pid]

    @contextmanager
    def running(self) -> Iterator[Broker]:
        """Start it, and stop it in the end.

        Raises :exc:`NotInstalledError`, and :exc:`StateError` when it does not start.
        """
        command = self.command()
        self.process = subprocess.Popen(
            command,
            env=os.environ | self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            end = time.monotonic() + PATIENCE
            while not self.is_up():
                if self.process.poll() is not None or time.monotonic() > end:
                    raise StateError(f"{command[0]} did not start")
                time.sleep(0.02)
            yield self
        finally:
            self.stop()
            self.process.wait()

    def stop(self) -> None:
        """End its process."""
        assert self.process is not None
        self.process.terminate()

    def is_up(self) -> bool:
        """Whether clients may come."""
        with suppress(OSError):
            self.dial().close()
            return True
        return False

    def dial(self) -> socket.socket:
        """A connection that says nothing yet."""
        host, _, port = self.address.rpartition(":")
        if host:
            sock = socket.create_connection((host, int(port)), PATIENCE)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        return connect_stream(self.address, PATIENCE)

    # -- the protocol -----------------------------------------------------------------------------------------

    @abstractmethod
    def publisher(self) -> socket.socket:
        """A connection that may publish. Made after the subscribers."""

    @abstractmethod
    def subscriber(self) -> socket.socket:
        """A connection that has subscribed to :data:`KEY`."""

    @abstractmethod
    def frame(self, payload: bytes) -> bytes:
        """What a publisher writes for a message."""

    @abstractmethod
    def unit(self, payload: bytes) -> int:
        """How many bytes a subscriber reads for a message."""

    def run(self, load: Load, count: int, *, receivers: int = 1, size: int = 100, trips: bool = False) -> Run:
        """Messages from one publisher to ``receivers``, or as many round trips."""
        payload = b"x" * size
        path = self.folder / "frame"
        path.write_bytes(self.frame(payload))
        socks: list[socket.socket] = []
        try:
            socks.extend(self.subscriber() for _ in range(receivers))
            socks.append(self.publisher())
            *incoming, outbound = (str(sock.fileno()) for sock in socks)
            pids = ",".join(map(str, self.pids))
            return load(
                *("streamtrip" if trips else "stream", "-n", count, "-w", max(1, count // 10), "-P", pids),
                *("-i", ",".join(incoming), "-o", outbound, "-f", path, "-z", self.unit(payload)),
                pass_fds=tuple(sock.fileno() for sock in socks),
            )
        finally:
            for sock in socks:
                sock.close()


def exactly(sock: socket.socket, length: int) -> bytes:
    """The next so many bytes. Raises :exc:`StateError` when the connection ends before, and :exc:`OSError`."""
    data = b""
    while len(data) < length:
        more = sock.recv(length - len(data))
        if not more:
            raise StateError("the broker closed the connection")
        data += more
    return data


def until(sock: socket.socket, end: bytes) -> bytes:
    """What comes, byte by byte, until it ends so: handshakes are short, and nothing behind may be taken."""
    data = b""
    while not data.endswith(end):
        data += exactly(sock, 1)
    return data


def find_program(*names: str) -> str:
    """The first of these programs that is here; servers are often where no user's path leads."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    for name in names:
        found = shutil.which(name, path=path)
        if found:
            return found
    raise NotInstalledError(f"{names[0]} is not installed")


def version_of(*command: str) -> str:
    """The first number with dots that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    numbers = [word.strip("v=,") for word in (done.stdout + done.stderr).split() if "." in word]
    return next((word for word in numbers if word[:1].isdigit()), "unknown")
