"""What a hub costs: a key never seen before among 100,000 patterns, an idle client, a start.

Run ``python benchmarks/scale.py [keys|idle|start ...]``; without a name, all. Everything is measured in
this run on this machine, and where a figure is a comparison, the two sides take turns. What a message costs is told by
``sbus bench``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sbuslib import blocking
from sbuslib.bench import daemons
from sbuslib.bench.process import cpu_seconds, raise_descriptor_limit, resident_bytes


@contextmanager
def hub_process() -> Iterator[tuple[str, int]]:
    """A hub in a process of its own: its address and process id."""
    with tempfile.TemporaryDirectory() as folder, daemons.hub(f"{folder}/bus") as hub:
        yield hub.address, hub.pids[0]


def burst_cpu(client: blocking.Client, pid: int, keys: list[bytes]) -> float:
    """CPU seconds that the hub spends on one message under each of ``keys``."""
    client.sync()
    before = cpu_seconds([pid])
    client.publish_many((key, b"x" * 100) for key in keys)
    client.sync()
    return cpu_seconds([pid]) - before


def keys() -> None:
    """A key never seen before: with no pattern of others, and with 100,000."""
    ratios = []
    with (
        hub_process() as (empty, empty_pid),
        hub_process() as (full, full_pid),
        daemons.idle_patterns(full, 100_000),
        blocking.Client(empty) as a,
        blocking.Client(full) as b,
    ):
        for turn in range(7):
            new = [b"room/%d-%d/temperature" % (turn, n) for n in range(20_000)]
            ratios.append((burst_cpu(a, empty_pid, new), burst_cpu(b, full_pid, new)))
    none, many = (statistics.median(side) / 20_000 * 1e6 for side in zip(*ratios, strict=True))
    print(f"new key: {none:.2f} µs of hub CPU with no patterns, {many:.2f} µs with 100,000: {many / none:.2f} times")


def idle(count: int = 10_000) -> None:
    """Resident memory of the hub for each idle client, which has said hello and holds a pattern."""
    count = min(count, raise_descriptor_limit() - 100)
    with hub_process() as (address, pid), blocking.Client(address) as warm:
        before = resident_bytes(pid)
        with daemons.idle_clients(address, count):
            warm.sync()
            each = (resident_bytes(pid) - before) / count
    print(f"idle: {each / 1024:.2f} KiB of the hub's memory for each of {count:,} clients with a pattern each")


def start() -> None:
    """From starting a hub until it is ready to accept."""
    times = []
    for _ in range(15):
        began = time.perf_counter()
        with hub_process():
            times.append(time.perf_counter() - began)
    print(f"start: ready to accept after {statistics.median(times):.3f} s (slowest of {len(times)}: {max(times):.3f})")


if __name__ == "__main__":
    jobs = {"keys": keys, "idle": idle, "start": start}
    for name in sys.argv[1:] or jobs:
        jobs[name]()
