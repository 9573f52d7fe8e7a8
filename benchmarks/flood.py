"""What one subscriber that has stopped reading costs nine others, in each soft and hard mode but ``block``.

Run ``python benchmarks/flood.py``. For each mode a hub, a publisher and a process that reads for nine subscribers;
a tenth subscriber chose the mode, and is alternately subscribed and not reading, or not there at all. Both take
turns within one run of about two minutes; what is compared is the messages that the nine receive in a second.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from sbuslib import blocking
from sbuslib.outbox import HARD, SOFT
from sbuslib.seqpacket import make_area

READERS = 9
PAIRS = 9
SECONDS = 0.5
FLOOR = 0.95
MODES = [("soft", mode) for mode in SOFT if mode != "block"] + [("hard", mode) for mode in HARD if mode != "block"]


@contextlib.contextmanager
def hub_process() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/bus"
        process = subprocess.Popen(
            [sys.executable, "-m", "sbuslib", "hub", "-a", address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        process.stdout.read()  # closed once it listens
        try:
            yield address
        finally:
            process.terminate()
            process.wait()


def readers(address: str, pipe: int) -> None:
    """Read for all of them; tell now and then how many messages came in all, and when."""
    clients = [blocking.Client(address) for _ in range(READERS)]
    for client in clients:
        client.flood_control(soft="block")  # so that the publisher has their speed, and nothing is lost
        client.subscribe(b"bench/")
    poll = select.poll()
    for client in clients:
        poll.register(client.fileno(), select.POLLIN)
    sockets = {client.fileno(): client.socket for client in clients}
    area, count, told = make_area(), 0, time.monotonic()
    os.write(pipe, b"0 0\n")
    while True:
        for fd, _ in poll.poll(20):
            count += len(area.receive(sockets[fd]))
        now = time.monotonic()
        if now - told > 0.02:
            os.write(pipe, b"%d %f\n" % (count, now))
            told = now


def publisher(address: str) -> None:
    with blocking.Client(address, timeout=60) as client:
        while True:
            client.publish_many([(b"bench/one", b"x" * 90)] * 1_024)


class Stopped:
    """The tenth: a plain socket that subscribes, chooses a mode, and never reads again."""

    def __init__(self, address: str, kind: str, mode: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(address)
        self.socket.send(b"CMSG blocking/%b/%b" % (kind.encode(), mode.encode()))
        self.socket.send(b"SUB bench/")


class Meter:
    def __init__(self, pipe: int) -> None:
        self._file = os.fdopen(pipe, "rb")
        self._file.readline()

    def rate(self, seconds: float) -> float:
        """Messages a second over the next ``seconds``."""
        start = self._fresh(time.monotonic())
        end = self._fresh(start[1] + seconds)
        return (end[0] - start[0]) / (end[1] - start[1])

    def _fresh(self, since: float) -> tuple[int, float]:
        while True:
            count, at = self._file.readline().split()
            if float(at) >= since:
                return int(count), float(at)


def start(function: object, *arguments: object) -> int:
    pid = os.fork()
    if not pid:
        try:
            function(*arguments)  # type: ignore[operator]
        finally:
            os._exit(1)
    return pid


def measure(kind: str, mode: str) -> float:
    """The nine's rate beside the stopped one, as part of their rate without it."""
    ratios, with_, without = [], [], []
    with hub_process() as address, blocking.Client(address) as asking:
        reading, writing = os.pipe()
        children = [start(readers, address, writing)]
        os.close(writing)
        meter = Meter(reading)
        children.append(start(publisher, address))
        try:
            meter.rate(0.5)
            for pair in range(PAIRS):
                rates = {}
                for there in (True, False) if pair % 2 else (False, True):
                    tenth = Stopped(address, kind, mode) if there else None
                    time.sleep(0.3)  # its buffers are full, or it is gone
                    rates[there] = meter.rate(SECONDS)
                    if tenth is not None:
                        tenth.socket.close()
                        time.sleep(0.1)
                ratios.append(rates[True] / rates[False])
                with_.append(rates[True])
                without.append(rates[False])
            told = asking.statistics()
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    lost = ", ".join(f"{count:,} {cause}" for cause, count in sorted(told.lost.items())) or "nothing"
    ratio = statistics.median(ratios)
    alone, beside = statistics.median(without), statistics.median(with_)
    print(
        f"{kind} {mode:8} {alone:9,.0f} received/s without, {beside:9,.0f} with: "
        f"{ratio:.3f} (pairs {' '.join(f'{one:.2f}' for one in sorted(ratios))}); lost for the tenth: {lost}",
        flush=True,
    )
    assert told.queued + sum(told.lost.values()) + told.delivered == told.routed
    return ratio


def main() -> int:
    print(f"python {' '.join(sys.argv)}")
    ratios = [measure(kind, mode) for kind, mode in MODES]
    fine = min(ratios) >= FLOOR
    print(f"flood: {min(ratios):.3f} of the rate at the least, {FLOOR} is wanted: {'fine' if fine else 'NOT FINE'}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
