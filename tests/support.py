"""What several test modules need: a raw connection, waiting for what cannot be heard, the vectors' escapes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import gevent
import gevent.socket

from sbuslib.addresses import AbstractAddress, PathAddress, parse_address
from sbuslib.limits import CONTROL_EXTRA, PACKET_BYTES

TESTS = Path(__file__).parent
ROOT = TESTS.parent
WHOAMI = b"CMSG !/cred/whoami"
LONGEST = PACKET_BYTES + CONTROL_EXTRA
PATIENCE = 20.0
"""Seconds after which what has not come never will. Long: it passes only where a test fails."""


def own_key() -> bytes:
    """The credential key of this process."""
    return b"!/cred/%d/%d/%d" % (os.getgid(), os.getuid(), os.getpid())


def unescape(text: str) -> bytes:
    """Bytes of a text in which ``%XX`` stands for a byte."""
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode("ascii"))


def vectors() -> Iterator[tuple[bool, bytes, bytes]]:
    """The rows of ``vectors/matching.tsv``: whether it matches, pattern, key."""
    for line in (TESTS / "vectors" / "matching.tsv").read_text("ascii").splitlines():
        if not line.startswith("#"):
            verdict, pattern, key = line.split("\t")
            yield verdict == "1", unescape(pattern), unescape(key)


def open_descriptors() -> set[tuple[str, str]]:
    """Files and sockets that this process has open; not the event loop's own."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the listing's own
            continue
        if not target.startswith(("anon_inode:", "pipe:")):
            found.add((fd, target))
    return found


def eventually(condition: Callable[[], object]) -> None:
    """Let the event loop run until ``condition`` holds: for what no packet tells of."""
    with gevent.Timeout(PATIENCE, AssertionError("it never came true")):
        while not condition():
            gevent.sleep(0.001)


def python(*arguments: str, **environment: str) -> str:
    """Run another Python with this checkout on its path; what it printed. It must succeed and print no error."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


class Peer:
    """A raw connection to any sbus daemon: packets out, packets in, nothing added. Waits in the event loop."""

    def __init__(self, address: str) -> None:
        parsed = parse_address(address)
        assert isinstance(parsed, (PathAddress, AbstractAddress))
        self.socket = gevent.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST + 16_384)
        self.socket.settimeout(PATIENCE)
        self._early: list[bytes] = []
        try:
            self.socket.connect(parsed.path if isinstance(parsed, PathAddress) else parsed.name)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self.socket.sendmsg([packet])  # send() would leave an empty packet out

    def _receive(self) -> bytes:
        while True:
            try:
                return self.socket.recv(LONGEST + 1)
            except ConnectionResetError:
                continue  # told once, ahead of packets that wait

    def receive(self) -> bytes:
        """The next packet; ``b""`` at the end of the connection."""
        return self._early.pop(0) if self._early else self._receive()

    def barrier(self) -> None:
        """Return when the daemon has acted on everything that was sent here; what comes meanwhile is kept."""
        self.send(WHOAMI)
        while not (packet := self._receive()).startswith(WHOAMI + b"\0"):
            assert packet, "disconnected"
            self._early.append(packet)

    def subscribe(self, *patterns: bytes) -> None:
        """Subscribe, and return when it is in force."""
        self.send(*(b"SUB " + pattern for pattern in patterns))
        self.barrier()

    def publish(self, key: bytes, payload: bytes = b"") -> None:
        self.send(b"MSG %b\0%b" % (key, payload))

    def pending(self) -> list[bytes]:
        """Everything that the daemon sent before now."""
        self.barrier()
        packets, self._early = self._early, []
        return packets

    def is_disconnected(self) -> bool:
        """Wait for whatever comes; whether it is the end."""
        return self.receive() == b""
