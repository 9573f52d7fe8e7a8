"""What one subscriber that has stopped reading costs nine others, in each soft and hard mode but ``block``.

Run ``python benchmarks/flood.py [pairs]``. For each mode a hub, a publisher and a process that reads for nine
subscribers; a tenth subscriber chose the mode, and is alternately subscribed and not reading, or not there at all.
Both take turns, a fifth of a second each, within one run of two minutes (40 pairs a mode); what is compared is the
messages that the nine receive in a second, and in a second of the hub's processor time, which tells the same on a
machine that does other things as well. For the hard modes the tenth's queue is short, so that it is full all of the
time. Where the mode throws the tenth out, the time until then is measured too; elsewhere its buffers are full before
the clock starts.
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
from typing import NamedTuple

import plain

from sbuslib import blocking
from sbuslib.bench.process import cpu_seconds
from sbuslib.kernel.areas import make_area
from sbuslib.limits import Limits
from sbuslib.wire.modes import HARD, SOFT

READERS = 9
PAIRS = 40
SECONDS = 0.2
ERROR_SECONDS = 0.6
"""Where the mode throws the tenth out, of which there are half as many pairs: until then it costs what others cost."""
SETTLE = 0.05
"""Seconds in which what the tenth left behind is forgotten."""
SHORT = 256
"""Packets that may wait for the tenth in the hard modes."""
FLOOR = 0.95
MODES = [("soft", mode) for mode in SOFT if mode != "block"] + [("hard", mode) for mode in HARD if mode != "block"]
HUB = """
import sys
from sbuslib import Hub, Limits
hub = Hub(sys.argv[1], limits=Limits(queued_packets=int(sys.argv[2])))
hub.start()
print("ready", flush=True)
hub.serve_forever()
"""


@contextlib.contextmanager
def hub_process(queued_packets: int) -> Iterator[tuple[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/bus"
        process = subprocess.Popen(
            [sys.executable, "-c", HUB, address, str(queued_packets)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield address, process.pid
        finally:
            process.terminate()
            process.wait()


def readers(address: str, hub: int, pipe: int) -> None:
    """Read for all of them; tell every moment how many messages came in all, when, and what the hub took for it."""
    sockets = {sock.fileno(): sock for sock in (plain.reader(address, b"bench/") for _ in range(READERS))}
    poll = select.poll()
    for fd in sockets:
        poll.register(fd, select.POLLIN)
    area, count, told = make_area(), 0, 0.0
    while True:
        for fd, _ in poll.poll(5):
            count += len(area.receive(sockets[fd]))
        now = time.monotonic()
        if now - told > 0.005:
            os.write(pipe, b"%d %f %f\n" % (count, now, cpu_seconds([hub])))
            told = now


def publisher(address: str) -> None:
    plain.publish(address, b"bench/one", b"x" * 90)


class Stopped:
    """The tenth: a plain socket that subscribes, chooses a mode, and never reads."""

    def __init__(self, asking: blocking.Client, kind: str, mode: str) -> None:
        before = self._pent_up(asking)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(asking.address)
        self._socket.send(b"CMSG blocking/%b/%b" % (kind.encode(), mode.encode()))
        self._socket.send(b"SUB bench/")
        while mode != "error" and self._pent_up(asking) <= before:
            time.sleep(0.01)

    @staticmethod
    def _pent_up(asking: blocking.Client) -> int:
        told = asking.statistics()
        return told.queued + sum(told.lost.values())

    def leave(self) -> None:
        self._socket.close()


class Rate(NamedTuple):
    """Messages for each second."""

    wall: float
    cpu: float


class Meter:
    def __init__(self, pipe: int) -> None:
        self._file = os.fdopen(pipe, "rb")
        self._file.readline()

    def rate(self, seconds: float) -> Rate:
        """Messages over the next ``seconds``, for each of them and for each of the hub's processor time."""
        start = self._fresh(time.monotonic())
        end = self._fresh(start[1] + seconds)
        count, wall, cpu = (after - before for before, after in zip(start, end, strict=True))
        return Rate(count / wall, count / cpu)

    def _fresh(self, since: float) -> tuple[float, float, float]:
        while True:
            count, at, cpu = map(float, self._file.readline().split())
            if at >= since:
                return count, at, cpu


def start(function: object, *arguments: object) -> int:
    pid = os.fork()
    if not pid:
        try:
            function(*arguments)  # type: ignore[operator]
        finally:
            os._exit(1)
    return pid


def measure(kind: str, mode: str, pairs: int) -> Rate:
    """The nine's rates beside the stopped one, as parts of their rates without it."""
    rates: dict[bool, list[Rate]] = {True: [], False: []}
    limits = Limits()
    with (
        hub_process(SHORT if kind == "hard" else limits.queued_packets) as (address, hub),
        blocking.Client(address) as asking,
    ):
        reading, writing = os.pipe()
        children = [start(readers, address, hub, writing)]
        os.close(writing)
        meter = Meter(reading)
        children.append(start(publisher, address))
        try:
            meter.rate(0.5)
            seconds = ERROR_SECONDS if mode == "error" else SECONDS
            for pair in range(pairs // 2 if mode == "error" else pairs):
                for there in (True, False) if pair % 2 else (False, True):
                    tenth = Stopped(asking, kind, mode) if there else None
                    rates[there].append(meter.rate(seconds))
                    if tenth is not None:
                        tenth.leave()
                        time.sleep(SETTLE)
            told = asking.statistics()
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    with_, without = ([Rate(*map(statistics.median, zip(*rates[there], strict=True)))] for there in (True, False))
    ratios = [
        Rate(*(a / b for a, b in zip(*pair, strict=True))) for pair in zip(rates[True], rates[False], strict=True)
    ]
    wall, cpu = (sorted(column) for column in zip(*ratios, strict=True))
    ratio = Rate(statistics.median(wall), statistics.median(cpu))
    lost = ", ".join(f"{count:,} {cause}" for cause, count in sorted(told.lost.items())) or "nothing"
    quarter = len(wall) // 4
    print(
        f"{kind} {mode:8} {without[0].wall:9,.0f} received/s without, {with_[0].wall:9,.0f} with: {ratio.wall:.3f} "
        f"(half of the pairs {wall[quarter]:.2f} to {wall[-1 - quarter]:.2f}); by the hub's CPU time {ratio.cpu:.3f} "
        f"({cpu[quarter]:.2f} to {cpu[-1 - quarter]:.2f}); lost for the tenth: {lost}",
        flush=True,
    )
    assert told.queued + sum(told.lost.values()) + told.delivered == told.routed
    return ratio


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    print(f"python {' '.join(sys.argv)}")
    ratios = [measure(kind, mode, pairs) for kind, mode in MODES]
    wall, cpu = (min(column) for column in zip(*ratios, strict=True))
    fine = wall >= FLOOR
    print(
        f"flood: {wall:.3f} of the rate at the least, {cpu:.3f} by CPU time; {FLOOR} is wanted: "
        f"{'fine' if fine else 'NOT FINE'}"
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
