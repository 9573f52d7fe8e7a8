"""What a hub costs: a message, a key never seen before among 100,000 patterns, an idle client, a start.

Run ``python benchmarks/scale.py [keys|idle|start|throughput ...]``; without a name, all. Everything is measured in
this run on this machine, and where a figure is a comparison, the two sides take turns.
"""

from __future__ import annotations

import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sbuslib import blocking
from sbuslib.seqpacket import make_area, wait

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def start_hub(address: str) -> subprocess.Popen[bytes]:
    """A hub in a process of its own, whose standard output ends once it listens."""
    command = [sys.executable, "-m", "sbuslib", "hub", "-a", address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


@contextmanager
def hub_process() -> Iterator[tuple[str, int]]:
    """A hub in a process of its own: its address and process id."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/bus"
        process = start_hub(address)
        assert process.stdout is not None
        process.stdout.read()  # closed once it listens
        try:
            yield address, process.pid
        finally:
            process.terminate()
            process.wait()


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, in seconds, from the scheduler's own account."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def burst_cpu(client: blocking.Client, pid: int, keys: list[bytes]) -> float:
    """CPU seconds that the hub spends on one message under each of ``keys``."""
    client.sync()
    before = cpu_seconds(pid)
    client.publish_many((key, b"x" * 100) for key in keys)
    client.sync()
    return cpu_seconds(pid) - before


def keys() -> None:
    """A key never seen before: with no pattern of others, and with 100,000."""
    ratios = []
    with hub_process() as (empty, empty_pid), hub_process() as (full, full_pid):
        holders = [blocking.Client(full) for _ in range(10)]
        for n, holder in enumerate(holders):
            patterns = [
                pattern
                for m in range(2_500)
                for pattern in (
                    b"host/%d-%d/*/load" % (n, m),
                    b"host/%d-%d/disk/%d" % (n, m, m),
                    b"service/%d-%d/" % (n, m),
                    b"v%d-%d*/state" % (n, m),
                )
            ]
            holder.subscribe(*patterns)
        with blocking.Client(empty) as a, blocking.Client(full) as b:
            for turn in range(7):
                new = [b"room/%d-%d/temperature" % (turn, n) for n in range(20_000)]
                ratios.append((burst_cpu(a, empty_pid, new), burst_cpu(b, full_pid, new)))
    none, many = (statistics.median(side) / 20_000 * 1e6 for side in zip(*ratios, strict=True))
    print(f"new key: {none:.2f} µs of hub CPU with no patterns, {many:.2f} µs with 100,000: {many / none:.2f} times")


def idle(count: int = 10_000) -> None:
    """Resident memory of the hub for each idle client."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(count, hard - 100)
    with hub_process() as (address, pid):
        warm = blocking.Client(address)
        before = resident_bytes(pid)
        sockets = []
        for _ in range(count):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.connect(address)
            sockets.append(sock)
        for sock in sockets:  # each has said hello, and holds a pattern
            sock.send(b"CMSG !/cred/whoami")
            sock.recv(100)
            sock.send(b"SUB idle/%d" % sock.fileno())
        warm.sync()
        each = (resident_bytes(pid) - before) / count
        print(f"idle: {each / 1024:.2f} KiB of the hub's memory for each of {count:,} clients with a pattern each")
        for sock in sockets:
            sock.close()


def start() -> None:
    """From starting sbusd to a client's accepted connection."""
    times = []
    for _ in range(15):
        with tempfile.TemporaryDirectory() as folder:
            address = f"{folder}/bus"
            began = time.perf_counter()
            process = start_hub(address)
            assert process.stdout is not None
            process.stdout.read()
            times.append(time.perf_counter() - began)
            process.terminate()
            process.wait()
    print(f"start: ready to accept after {statistics.median(times):.3f} s (slowest of {len(times)}: {max(times):.3f})")


def throughput(messages: int = 300_000) -> None:
    """One publisher, one subscriber, 100 bytes each."""
    with hub_process() as (address, pid):
        rates, cpus = [], []
        for _ in range(3):
            ready, go = os.pipe()
            child = os.fork()
            if child == 0:
                with blocking.Client(address) as client:
                    client.subscribe(b"bench/")
                    client.flood_control(soft="block")  # lose nothing, however far the publisher is ahead
                    os.write(go, b".")
                    area, left = make_area(), messages
                    while left:
                        wait(client.socket, 1, None)
                        left -= len(area.receive(client.socket))
                os._exit(0)
            os.read(ready, 1)
            with blocking.Client(address) as client:
                before, began = cpu_seconds(pid), time.perf_counter()
                client.publish_many((b"bench/one", b"x" * 90) for _ in range(messages))
                os.waitpid(child, 0)
                rates.append(messages / (time.perf_counter() - began))
                cpus.append((cpu_seconds(pid) - before) / messages * 1e6)
        rate, cpu = statistics.median(rates), statistics.median(cpus)
        print(f"one to one: {rate:,.0f} messages/s, {cpu:.2f} µs of hub CPU each")


if __name__ == "__main__":
    jobs = {"keys": keys, "idle": idle, "start": start, "throughput": throughput}
    for name in sys.argv[1:] or jobs:
        jobs[name]()
