"""Jobs a second through a shared queue, from one publisher to eight workers, each a process.

Run ``python benchmarks/shared_queue.py``. Jobs have 100 bytes and sixteen keys. All kinds are measured in turns, and
told as medians of the rounds: in memory and durable, with room for 256 jobs in a worker and for 8, published and
submitted. The durable queue stores in ``$TMPDIR``.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from sbuslib.blocking import Client

ROUNDS = 3
WORKERS = 8
PAYLOAD = b"x" * 100
KINDS = {
    "memory, room 256": (200_000, 256, "--memory", False),
    "memory, room 8": (50_000, 8, "--memory", False),
    "durable, room 256": (100_000, 256, "--file", False),
    "durable, room 8": (30_000, 8, "--file", False),
    "durable, submitted, room 256": (100_000, 256, "--file", True),
}
"""Jobs, room, where they are kept, whether they are submitted."""


def work(address: str, done: Any, number: int, room: int, ready: Any, stop: Any) -> None:
    def count(_: object) -> None:
        done[number] += 1

    with Client(address) as client, client.work("mail", count, room=room):
        ready.release()
        stop.wait()


def put(address: str, count: int, submits: bool) -> None:
    jobs = [(b"mail/%d" % (number % 16), PAYLOAD) for number in range(count)]
    with Client(address) as client:
        if submits:
            client.submit_many("mail", jobs)
        else:
            client.publish_many(jobs)


def serve(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a program of ours, and wait until it says that it is there."""
    process = subprocess.Popen([sys.executable, "-m", "sbuslib", *arguments], stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()
    return process


def measure(folder: str, count: int, room: int, where: str, submits: bool) -> float:
    """Jobs a second, from the first that is done to the last."""
    context = multiprocessing.get_context("spawn")
    address, stop, ready = os.path.join(folder, "bus"), context.Event(), context.Semaphore(0)
    done: Any = context.Array("q", WORKERS, lock=False)
    kept = [where] if where == "--memory" else [where, os.path.join(folder, "jobs")]
    hub = serve("hub", "-r", "-a", address)
    queue = serve("queue", "-a", address, "--jobs", str(count), "--bytes", "1G", *kept, "mail", "mail/")
    workers = [
        context.Process(target=work, args=(address, done, number, room, ready, stop)) for number in range(WORKERS)
    ]
    putter = context.Process(target=put, args=(address, count, submits))
    for process in workers:
        process.start()
    for _ in workers:
        ready.acquire()
    time.sleep(1)  # so that all are known
    putter.start()
    while not sum(done):
        time.sleep(0.001)
    began, first = time.perf_counter(), sum(done)
    while sum(done) < count:
        time.sleep(0.001)
    rate = (count - first) / (time.perf_counter() - began)
    stop.set()
    for process in (*workers, putter):
        process.join()
    for service in (queue, hub):
        service.terminate()
        service.communicate()
    return rate


def main() -> None:
    rates: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(ROUNDS):
        for name, kind in KINDS.items():
            with tempfile.TemporaryDirectory(prefix="sbus-") as folder:
                rates[name].append(measure(folder, *kind))
    for name, found in rates.items():
        print(f"{name:<30} {statistics.median(found):>10,.0f}/s   ({min(found):,.0f} to {max(found):,.0f})")


if __name__ == "__main__":
    main()
