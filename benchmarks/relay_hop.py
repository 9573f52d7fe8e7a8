"""What one hop through a relay costs, and what a link's bookkeeping of interest does.

Run ``python benchmarks/relay_hop.py [hop|interest ...]``; without a name, both. For the hop, the same messages go from
a publisher to a subscriber over one hub and over two that a relay joins, in turn, and the CPU time of the hubs
is compared: no more than 2.2 times as much is wanted. The same again for a subscriber that asks for senders, for which
each message crosses the link in a wrapper.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from sbuslib import blocking
from sbuslib.interest import Interest

MESSAGES = 64_000
ROUNDS = 7


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, in seconds, from the scheduler's own account."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def start(*arguments: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()  # closed once it listens
    return process


def carry(publisher: blocking.Client, subscriber: blocking.Client, pids: list[int]) -> float:
    """CPU seconds of the hubs for the messages, none of which is lost."""
    subscriber.subscribe(b"room/1/temp")
    assert subscriber.sync("tree") == "tree"
    before = sum(map(cpu_seconds, pids))

    def publish() -> None:
        for _ in range(MESSAGES // 640):
            publisher.publish_many([(b"room/1/temp", b"x" * 100)] * 640)

    thread = threading.Thread(target=publish)
    thread.start()
    count = 0
    while count < MESSAGES:
        count += len(subscriber.receive_many(timeout=20))
    thread.join()
    used = sum(map(cpu_seconds, pids)) - before
    subscriber.unsubscribe(b"room/1/temp")
    return used


def report(name: str, one: list[float], two: list[float]) -> None:
    ratios = [b / a for a, b in zip(one, two, strict=True)]
    print(f"{name}: one hub {statistics.median(one):.2f} µs of CPU a message of 100 bytes, ", end="")
    print(f"two hubs and a relay {statistics.median(two):.2f} µs")
    print(f"  ratio {statistics.median(ratios):.2f} (of {ROUNDS} pairs from {min(ratios):.2f} to {max(ratios):.2f})")


def hop() -> None:
    with tempfile.TemporaryDirectory() as folder:
        top, below = f"{folder}/top", f"{folder}/below"
        master = start("sbuslib", "hub", "-a", top)
        slave = start("sbuslib.cli.relay", "--upstream", top, "--listen", below)
        try:
            with blocking.Client(top) as subscriber, blocking.Client(top) as near, blocking.Client(below) as far:
                while far.whoami().count(b"!/cred/") < 2 or subscriber.sync("tree") != "tree":
                    time.sleep(0.01)
                for name, senders in (("without senders", False), ("with senders", True)):
                    subscriber.senders(senders)
                    one: list[float] = []
                    two: list[float] = []
                    for _ in range(ROUNDS):
                        one.append(carry(near, subscriber, [master.pid]) / MESSAGES * 1e6)
                        two.append(carry(far, subscriber, [master.pid, slave.pid]) / MESSAGES * 1e6)
                    report(name, one, two)
        finally:
            for process in (slave, master):
                process.terminate()
                process.wait()


def interest() -> None:
    link = Interest()
    link.add(b"room/")
    patterns = [b"room/%d/*" % n for n in range(100_000)]
    for name, change in (("add", link.add), ("remove", link.remove)):
        started = time.process_time()
        for pattern in patterns:
            change(pattern)
        each = (time.process_time() - started) / len(patterns)
        print(f"{name} one of 100,000 patterns below a covering one: {each * 1e6:.1f} µs; {len(link)} announced")


if __name__ == "__main__":
    print(f"{os.uname().release}, Python {sys.version.split()[0]}")
    for wanted in sys.argv[1:] or ("hop", "interest"):
        {"hop": hop, "interest": interest}[wanted]()
