"""100 MB over two relays: as a file, checked, and as plain packets of the same size that are thrown away.

Run ``python benchmarks/large.py``. Both are measured in turns, and told as medians of the rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sbuslib.blocking import Client
from sbuslib.recipes.large import PART_BYTES, WINDOW_BYTES

ROUNDS = 5
FILE_BYTES = 100_000_000
AHEAD = WINDOW_BYTES // PART_BYTES
"""Packets that may be under way: a link is never held back, so that without a bound some would be lost."""


@contextmanager
def two_relays(folder: str) -> Iterator[tuple[str, str]]:
    """A hub with two below it: the addresses of those."""
    top, left, right = (os.path.join(folder, name) for name in ("top", "left", "right"))
    commands = [["sbuslib", "hub", "-a", top, "-q"]]
    commands += [["sbuslib.cli.relay", "--upstream", top, "--listen", below] for below in (left, right)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            child = subprocess.Popen(
                [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            started.append(child)
            assert child.stdout is not None
            child.stdout.read()  # closed once it listens
        for below in (left, right):
            with Client(below) as client:
                while client.whoami().count(b"!/cred/") < 2:
                    time.sleep(0.01)
        yield left, right
    finally:
        for child in reversed(started):
            with child:
                child.terminate()


def receive_packets(ready: Any, address: str, _: str) -> None:
    """Take packets, and say now and then how many came."""
    with Client(address) as client:
        client.subscribe(b"plain")
        client.sync("tree")
        ready.send(None)
        received = count = 0
        while received < FILE_BYTES:
            for message in client.receive_many():
                received += len(message.payload)
                count += 1
                if count % (AHEAD // 8) == 0:
                    client.publish(b"have", b"%d" % count)
        client.publish(b"have", b"%d" % count)
        ready.recv()


def receive_file(ready: Any, address: str, folder: str) -> None:
    with Client(address) as client, client.receive_large(b"files/*", folder=folder) as files:
        ready.send(None)
        os.unlink(files.receive().file)
        ready.recv()


def send_packets(client: Client, path: str) -> None:
    client.subscribe(b"have")
    client.sync("tree")
    with open(path, "rb") as file:
        data = file.read()
    have = 0
    for count in range(-(-FILE_BYTES // PART_BYTES)):
        while count - have >= AHEAD:
            have = heard(client)
        client.publish(b"plain", data[count * PART_BYTES : (count + 1) * PART_BYTES])
    while have <= count:
        have = heard(client)


def heard(client: Client) -> int:
    """How many packets the receiver has."""
    return max(int(message.payload) for message in client.receive_many(timeout=20))


def send_file(client: Client, path: str) -> None:
    client.send_large(b"files/a", path)


def rate(
    receive: Callable[..., None], send: Callable[[Client, str], None], left: str, right: str, folder: str
) -> float:
    """Megabytes a second."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=receive, args=(there, right, folder), daemon=True)
    child.start()
    here.recv()
    with Client(left) as client:
        began = time.perf_counter()
        send(client, os.path.join(folder, "file"))
        seconds = time.perf_counter() - began
    here.send(None)
    child.join()
    return FILE_BYTES / 1e6 / seconds


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sbus-") as folder, two_relays(folder) as (left, right):
        with open(os.path.join(folder, "file"), "wb") as file:
            file.write(os.urandom(FILE_BYTES))
        rounds = [
            (
                rate(receive_packets, send_packets, left, right, folder),
                rate(receive_file, send_file, left, right, folder),
            )
            for _ in range(ROUNDS)
        ]
    packets, files = zip(*rounds, strict=True)
    for name, values in (("plain packets", packets), ("send_large", files)):
        print(f"{name:<15} {statistics.median(values):>5,.0f} MB/s   ({min(values):,.0f} to {max(values):,.0f})")
    print(f"ratio           {statistics.median(file / packet for packet, file in rounds):.2f}")


if __name__ == "__main__":
    main()
