"""Clients that connect, subscribe, publish and die at random, beside one that behaves well.

Run ``python benchmarks/churn.py [seconds]``; without a number, for 60, and as many beforehand. There are 1,000
clients at any time, in four processes, about a hundred of which die each second; how many the hub had at once is
asked of it all the time. A publisher and a reader beside them check that every message comes, in order. The hub is
``sbusd``, which gives memory back to the system. After it, the hub's memory, descriptors, patterns and queues are
compared with what they were before, and its log is shown.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from sbuslib import blocking
from sbuslib.cli.heap import LOOK_SECONDS
from sbuslib.errors import DisconnectedError

CLIENTS = 1_000
PROCESSES = 4
GROWTH = 1.10
GROUPS = 200
"""Keys that the clients publish under and subscribe to."""
ACTS = 50
PAUSE = 0.1
"""What a process does at once, and the seconds from one such go to the next: the hub is to be busy, not the backlog
full, or those that die would be in the backlog still."""
LOOKS = 5
"""The memory of the hub has settled when it was the same this many times: ``sbusd`` may put off giving some back."""


def churn(address: str, count: int, seed: int) -> None:
    """Keep ``count`` clients, each of which dies after a few acts, some of them in the middle of one."""
    rng = random.Random(seed)
    socks: list[socket.socket] = []

    def act(sock: socket.socket) -> None:
        match rng.randrange(9):
            case 0:
                sock.send(b"SUB churn/%d/" % rng.randrange(GROUPS))
            case 1:
                sock.send(b"SUB %x/*/%x" % (rng.getrandbits(20), rng.getrandbits(20)))
            case 2:
                sock.send(b"UNSUB churn/%d/" % rng.randrange(GROUPS))
            case 3 | 4:
                for _ in range(rng.randrange(1, 20)):
                    sock.send(b"MSG churn/%d/x\0" % rng.randrange(GROUPS) + bytes(rng.choice((10, 200, 5_000))))
            case 5:
                sock.send(b"CMSG blocking/soft/" + rng.choice((b"queue", b"discard", b"block", b"error")))
            case 6:
                for _ in range(rng.randrange(30)):
                    sock.recv(500_000)
            case 7:
                sock.send(rng.choice((b"CMSG !/cred/whoami", b"CMSG hub/features", b"CMSG notices/on")))
            case 8 if rng.random() < 0.05:
                sock.send(b"nonsense")

    due = time.monotonic()
    while True:
        while len(socks) < count:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.setblocking(False)
            try:
                sock.connect(address)
            except OSError:
                sock.close()
                break
            socks.append(sock)
        for _ in range(ACTS):
            if not socks:
                break
            number = rng.randrange(len(socks))
            gone = rng.random() < 0.05
            try:
                act(socks[number])
            except BlockingIOError:
                pass
            except OSError:
                gone = True
            if gone:
                socks[number].close()
                socks[number] = socks[-1]
                socks.pop()
        due += PAUSE
        time.sleep(max(0.0, due - time.monotonic()))


def child(function: Callable[..., object], *arguments: Any) -> int:
    pid = os.fork()
    if not pid:
        try:
            function(*arguments)
        except BaseException as error:
            print(f"a process of clients failed: {error!r}", flush=True)
        finally:
            os._exit(1)
    return pid


class Good:
    """A publisher and a reader that behave well: every message comes once, and in order."""

    def __init__(self, address: str) -> None:
        self.reader = blocking.Client(address, timeout=60)
        self.writer = blocking.Client(address, timeout=60)
        self.reader.notices()
        self.reader.subscribe(b"good")
        self.sent = self.received = 0
        self.wrong = ""
        self.slowest = 0.0
        self._stop = False
        self._threads = [threading.Thread(target=self._write), threading.Thread(target=self._read)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop = True
        for thread in self._threads:
            thread.join()
        if not self.wrong and self.received != self.sent:
            self.wrong = f"{self.sent - self.received} did not come"

    def _write(self) -> None:
        while not self._stop:
            pairs = [(b"good", b"%d %f" % (self.sent + n, time.monotonic())) for n in range(20)]
            self.writer.publish_many(pairs)
            self.sent += len(pairs)
            time.sleep(0.005)
        self.writer.publish(b"good", b"end")

    def _read(self) -> None:
        with contextlib.suppress(DisconnectedError):
            while (payload := self.reader.receive(timeout=60).payload) != b"end":
                number, at = payload.split()
                self.slowest = max(self.slowest, time.monotonic() - float(at))
                if int(number) != self.received and not self.wrong:
                    self.wrong = f"{int(number)} came where {self.received} was due"
                self.received += 1


def memory(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def settled(asking: blocking.Client, pid: int, clients: int) -> tuple[float, int]:
    """Memory and descriptors once all other clients and their patterns are gone, and the hub had time to notice."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        told, before = asking.statistics(), descriptors(pid)
        sizes = []
        for _ in range(LOOKS):
            time.sleep(LOOK_SECONDS)
            sizes.append(memory(pid))
        if (
            told.clients == clients
            and told.patterns <= 1
            and not told.queued
            and descriptors(pid) == before
            and max(sizes) - min(sizes) < 0.5
        ):
            break
    return memory(pid), descriptors(pid)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def storm(address: str, seconds: float, hub: int) -> list[int]:
    """How many descriptors the hub had meanwhile, four times a second from when all clients had come."""
    children = [child(churn, address, CLIENTS // PROCESSES, seed) for seed in range(PROCESSES)]
    seen = []
    end = time.monotonic() + seconds
    try:
        while (now := time.monotonic()) < end:
            if end - now < 0.9 * seconds:
                seen.append(descriptors(hub))
            time.sleep(0.25)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)
    return sorted(seen)


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    print(f"python {' '.join(sys.argv)}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        address, log = f"{folder}/bus", f"{folder}/log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "sbuslib.cli.daemon", "-f", "-a", address], stdout=subprocess.PIPE, stderr=file
            )
        assert process.stdout is not None
        process.stdout.read()  # to its end: it listens
        pid = process.pid
        try:
            good = Good(address)
            with good.reader, good.writer, blocking.Client(address, timeout=60) as asking:
                # What a hub takes once for all, such as its tables and buffers, is no leak: so a storm of the same
                # length comes first.
                storm(address, seconds, pid)
                before = settled(asking, pid, 3)
                good.start()
                began = asking.statistics()
                at_once = [count - before[1] for count in storm(address, seconds, pid)]
                good.stop()
                told = asking.statistics()
                after = settled(asking, pid, 3)
                end = asking.statistics()
                lost = good.reader.lost
        finally:
            process.terminate()
            process.wait()
        with open(log) as file:
            lines = file.read().splitlines()
    growth = after[0] / before[0]
    print(
        f"churn: {seconds:.0f} s, {told.clients_total - began.clients_total:,} clients came and went "
        f"({at_once[0]:,} to {at_once[-1]:,} at once, {at_once[len(at_once) // 2]:,} half of the time), "
        f"{told.routed - began.routed:,} messages routed, "
        f"{sum(told.breaches.values()):,} violations"
    )
    print(f"well-behaved: {good.received:,} of {good.sent:,} came in order, the slowest after {good.slowest:.3f} s; "
          f"lost {lost or 'nothing'}; {good.wrong or 'nothing wrong'}")  # fmt: skip
    print(f"hub: {before[0]:.1f} MiB before, {after[0]:.1f} after: {growth:.3f}; {before[1]} descriptors before, "
          f"{after[1]} after; {end.patterns} pattern and {end.queued} messages left")  # fmt: skip
    balanced = end.routed == end.delivered + end.queued + sum(end.lost.values())
    traceback = any("Traceback" in line for line in lines)
    print(f"log of {len(lines)} lines, {'WITH A TRACEBACK' if traceback else 'no traceback'}; books "
          f"{'balance' if balanced else 'DO NOT BALANCE'}")  # fmt: skip
    for line in lines:
        print("  ", line)
    fine = not good.wrong and not lost and growth <= GROWTH and after[1] == before[1] and balanced and not traceback
    print("fine" if fine else "NOT FINE: nothing lost, memory within 10 %, no descriptor leaked and no traceback")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
