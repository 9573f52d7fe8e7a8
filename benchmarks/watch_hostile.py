"""How long a hub keeps a good user waiting beside a stranger who watches, subscribes and is present without end.

    python benchmarks/watch_hostile.py [--count N] [--seconds S] [CASE...]

The stranger is another user, where this runs as root. The good user asks the hub for a ``hub/sync``, one question after
another; with the case ``subscribes`` it subscribes and unsubscribes before each. Shown is the hub's own CPU time for an
answer, besides the time by the clock, on which other work of the machine tells.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from tcp_hostile import show

from sbuslib.bench.process import cpu_seconds

HUB = "import sys; from sbuslib import Hub; Hub(sys.argv[1], mode=0o777).serve_forever()"
STRANGER = 2002
"""The stranger's user id."""


class Raw:
    """A client that speaks packets; it does not read while it sends."""

    def __init__(self, address: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.connect(address)
        self._numbers = count(1)  # of its questions

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self._sock.send(packet)

    def sync(self) -> None:
        """Wait until all earlier packets are in force; other packets from the hub are dropped."""
        token = b"%d" % next(self._numbers)
        self.send(b"CMSG hub/sync\0" + token)
        while not self._sock.recv(500_000).startswith(b"CMSG hub/sync\0" + token + b"\0"):
            pass


def changes(address: str, number: int) -> Iterator[None]:
    """Wide watches, beside patterns that come and go."""
    client = Raw(address)
    for at in range(number):
        client.send(b"CMSG interest/watch\0*/%d/*/x" % at, b"SUB a/*/%d/x" % at)
        if not at % 500:
            client.sync()
    client.sync()
    for at in count():
        yield
        client.send(b"UNSUB a/*/%d/x" % (at % number), b"SUB a/*/%d/x" % (at % number))
        client.sync()


def subscribes(address: str, number: int) -> Iterator[None]:
    """Wide watches that stay as they are."""
    client = Raw(address)
    for at in range(number):
        client.send(b"CMSG interest/watch\0*/%d/*/x" % at)
        if not at % 500:
            client.sync()
    client.sync()
    while True:
        yield
        time.sleep(0.05)


def present(address: str, number: int) -> Iterator[None]:
    """Presences, of which all are watched, and watched no more."""
    client, watcher = Raw(address), Raw(address)
    for at in range(number):
        client.send(b"CMSG presence/on\0%d p/%d\0" % (at + 1, at))
        if not at % 500:
            client.sync()
    client.sync()
    while True:
        yield
        watcher.send(b"CMSG presence/watch\0p/", b"CMSG presence/unwatch\0p/")
        watcher.sync()


CASES: dict[str, Callable[[str, int], Iterator[None]]] = {
    "changes": changes, "subscribes": subscribes, "present": present
}  # fmt: skip


@contextmanager
def stranger(case: str, address: str, number: int) -> Iterator[None]:
    """Have a process be the stranger, from when it has all that it holds."""
    ready, tell = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(STRANGER)
                os.setuid(STRANGER)
            os.nice(19)
            for turn, _ in enumerate(CASES[case](address, number)):
                if not turn:
                    os.write(tell, b"x")
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(ready, 1), "the stranger failed"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)


def ask(address: str, hub: int, seconds: float, subscribes: bool) -> list[tuple[float, float]]:
    """Ask for so many seconds; for each answer the hub's CPU time, and that by the clock."""
    client, waited, until = Raw(address), [], time.monotonic() + seconds
    while time.monotonic() < until:
        spent, began = cpu_seconds([hub]), time.monotonic()
        if subscribes:
            client.send(b"SUB good/*/x", b"UNSUB good/*/x")
        client.sync()
        waited.append((cpu_seconds([hub]) - spent, time.monotonic() - began))
        time.sleep(0.002)
    return waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}: all")
    parser.add_argument("--count", type=int, default=2_000, metavar="N", help="watches, patterns, presences")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="so long is asked")
    options = parser.parse_args()

    for case in options.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            address = f"{folder}/bus"
            hub = subprocess.Popen([sys.executable, "-c", HUB, address])
            try:
                while not os.path.exists(address):
                    time.sleep(0.01)
                alone = ask(address, hub.pid, options.seconds / 3, case == "subscribes")
                with stranger(case, address, options.count):
                    beside = ask(address, hub.pid, options.seconds, case == "subscribes")
            finally:
                hub.kill()
                hub.wait()
        print(f"{case}, {options.count:,}: alone {show(alone)};\n    beside the stranger {show(beside)}", flush=True)


if __name__ == "__main__":
    main()
