"""What many messages in one packet gain: Python clients at both ends, payloads of 100 bytes, a struct for each message.

Run ``python benchmarks/batch.py [MESSAGES [KEYS]]``: the messages are dealt to so many keys in turn. Each way of
publishing is measured with one subscriber and with ten, in turns, and told as medians: messages and deliveries a second
by the clock, and CPU time a message of the hub, of the publisher and of one subscriber. The processor times add up to
what the machine could do if nothing else ran on it.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from sbuslib import Client, blocking
from sbuslib.bench.process import cpu_seconds

ROUNDS = 5
PAIRS = 10_000
"""Messages that ``publish_many`` is given at once."""


Pairs = list[tuple[bytes, bytes]]


def many(client: Any, count: int, pairs: Pairs) -> None:
    """``publish_many``, batched where the client may."""
    for _ in range(count // len(pairs)):
        client.publish_many(pairs)


def loop(client: Any, count: int, pairs: Pairs) -> None:
    """``publish``: a packet each."""
    for _ in range(count // len(pairs)):
        for key, payload in pairs:
            client.publish(key, payload)


def batch(client: Any, count: int, pairs: Pairs) -> None:
    """``publish`` of a batch, which sends when a packet is full."""
    with client.batch() as collecting:
        for _ in range(count // len(pairs)):
            for key, payload in pairs:
                collecting.publish(key, payload)


WAYS: dict[str, tuple[Callable[[Any, int, Pairs], None], bool, bool]] = {
    "publish_many, in batches": (many, True, False),
    "publish_many, plain packets all the way": (many, False, False),
    "publish_many of plain packets, coalesced by the hub": (many, False, True),
    "publish of a batch": (batch, True, False),
    "publish, coalesced by the hub": (loop, True, True),
}
"""Name to how to publish, whether both ends batch, and whether the publisher does not and the subscribers do."""


def publisher(address: str, keys: int, pipe: Connection) -> None:
    names = [b"room/%d/temp" % number for number in range(keys)]
    pairs = [(names[number % keys], b"x" * 100) for number in range(PAIRS)]
    with Client(address) as client:
        while True:
            way, count = pipe.recv()
            run, batches, _ = WAYS[way]
            client._session.batches = batches
            before = time.process_time()
            run(client, count, pairs)
            pipe.send(time.process_time() - before)


def subscriber(address: str, pipe: Connection) -> None:
    with blocking.Client(address) as client:
        client.flood_control(soft="block")
        client.subscribe(b"room/*/temp")
        while True:
            way, count = pipe.recv()
            _, batches, put_together = WAYS[way]
            client.socket.send(b"CMSG batch/on" if batches or put_together else b"CMSG batch/off")
            client.sync()
            pipe.send(None)
            before = time.process_time()
            while count > 0:
                count -= len(client.receive_many(timeout=30))
            pipe.send((time.monotonic(), time.process_time() - before))


def start(function: Callable[..., None], *arguments: object) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=function, args=(*arguments, there), daemon=True)
    process.start()
    there.close()
    return process, here


def measure(way: str, count: int, pid: int, publishing: Connection, subscribing: list[Connection]) -> list[float]:
    """One round: seconds by the clock, and of the hub's, the publisher's and a subscriber's CPU."""
    for pipe in subscribing:
        pipe.send((way, count))
    for pipe in subscribing:
        pipe.recv()
    before, began = cpu_seconds([pid]), time.monotonic()
    publishing.send((way, count))
    ends, used = zip(*[pipe.recv() for pipe in subscribing], strict=True)
    published = publishing.recv()
    return [max(ends) - began, cpu_seconds([pid]) - before, published, statistics.mean(used)]


def main(count: int, keys: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = os.path.join(folder, "bus")
        hub = subprocess.Popen([sys.executable, "-m", "sbuslib", "hub", "-a", address], stdout=subprocess.PIPE)
        assert hub.stdout is not None
        hub.stdout.read()  # closed once it listens
        processes = []
        try:
            process, publishing = start(publisher, address, keys)
            processes.append(process)
            subscribing: list[Connection] = []
            for receivers in (1, 10):
                while len(subscribing) < receivers:
                    process, pipe = start(subscriber, address)
                    processes.append(process)
                    subscribing.append(pipe)
                each = max(PAIRS, count // receivers // PAIRS * PAIRS)
                rounds: dict[str, list[list[float]]] = {way: [] for way in WAYS}
                for _ in range(ROUNDS):
                    for way, found in rounds.items():
                        found.append(measure(way, each, hub.pid, publishing, subscribing))
                print(
                    f"one to {receivers}: messages/s, deliveries/s; µs of CPU a message of hub, publisher, subscriber"
                )
                for way, found in rounds.items():
                    clock, *cpu = (statistics.median(values) for values in zip(*found, strict=True))
                    spent = "  ".join(f"{seconds / each * 1e6:6.3f}" for seconds in cpu)
                    print(f"{each / clock / 1e6:6.2f} M  {each * receivers / clock / 1e6:6.2f} M  {spent}  {way}")
        finally:
            for process in processes:
                process.terminate()
            hub.terminate()
            hub.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500_000, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
