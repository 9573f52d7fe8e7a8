"""What one hop through a relay costs.

Run ``python benchmarks/relay_hop.py``. The same messages go from
a publisher to a subscriber over one hub and over two that a relay joins, in turn, and the CPU time of the hubs
is compared: no more than 2.2 times as much is wanted. Each message crosses the link in a wrapper, with its sender. The
same again for a subscriber that asks for senders; and all of it once with plain packets and once with batches.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import threading
import time

from sbuslib import blocking
from sbuslib.bench import daemons
from sbuslib.bench.process import cpu_seconds

MESSAGES = {False: 64_000, True: 640_000}
"""How many in a round: with plain packets, and with batches, which cost so much less that more are needed."""
ROUNDS = 5
WINDOW = 3_200
"""Messages that may be under way: a link is never held back, so that without a bound some would be lost."""


def carry(publisher: blocking.Client, subscriber: blocking.Client, pids: list[int], messages: int) -> float:
    """CPU microseconds of the hubs for each of so many messages, none of which is lost."""
    subscription = subscriber.subscribe(b"room/1/temp")
    assert subscriber.sync("tree") == "tree"
    before = cpu_seconds(pids)

    def publish() -> None:
        for number in range(messages // 640):
            while number * 640 - count > WINDOW:
                time.sleep(0.0005)
            publisher.publish_many([(b"room/1/temp", b"x" * 100)] * 640)

    count = 0
    thread = threading.Thread(target=publish)
    thread.start()
    while count < messages:
        count += len(subscriber.receive_many(timeout=20))
    thread.join()
    used = cpu_seconds(pids) - before
    subscription.unsubscribe()
    return used / messages * 1e6


def report(name: str, one: list[float], two: list[float]) -> None:
    ratios = [b / a for a, b in zip(one, two, strict=True)]
    print(f"{name}: one hub {statistics.median(one):.2f} µs of CPU a message of 100 bytes, ", end="")
    print(f"two hubs and a relay {statistics.median(two):.2f} µs")
    print(f"  ratio {statistics.median(ratios):.2f} (of {ROUNDS} pairs from {min(ratios):.2f} to {max(ratios):.2f})")


def hop() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        daemons.relayed(f"{folder}/top", f"{folder}/below") as hubs,
        blocking.Client(hubs.address) as subscriber,
        blocking.Client(hubs.address) as near,
        blocking.Client(hubs.below) as far,
    ):
        for batches, senders in itertools.product((False, True), (False, True)):
            subscriber.socket.send(b"CMSG senders/on" if senders else b"CMSG senders/off")
            for client in (subscriber, near, far):
                client._connection.session.batches = batches
                client.socket.send(b"CMSG batch/on" if batches else b"CMSG batch/off")
            one: list[float] = []
            two: list[float] = []
            for _ in range(ROUNDS):
                one.append(carry(near, subscriber, hubs.pids[:1], MESSAGES[batches]))
                two.append(carry(far, subscriber, hubs.pids, MESSAGES[batches]))
            form = "batches" if batches else "plain packets"
            report(form + (", with senders" if senders else ""), one, two)


if __name__ == "__main__":
    print(f"{os.uname().release}, Python {sys.version.split()[0]}")
    hop()
