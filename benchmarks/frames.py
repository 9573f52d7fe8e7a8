"""Frames beside packets, pyzmq over ipc and one memcpy; and a file beside cp.

Run ``python benchmarks/frames.py``, with pyzmq installed. Words choose rows, ``"16 MiB" "to 10" read`` or
``file``, and ways, such as ``packets``.
Each figure is the milliseconds of one frame, from the publisher until all receivers have looked at it (one byte of each
end) or read it whole, with one or eight frames under way; and behind the stroke, of the processor, for all processes
together, which other work on the machine disturbs less. The ways take turns; shown are medians of the rounds, or
``lost`` where receivers did not get all: the hub keeps packets for a slow receiver up to a bound.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import zmq

from sbuslib.blocking import Client

SIZES = {"64 KiB": 65_536, "1 MiB": 1_048_576, "16 MiB": 16_777_216}
WAYS = ("frames", "packets", "pyzmq")
ROUNDS = 3
SECONDS = 0.3
"""How long each way publishes in each round, twice; the second time at least eight frames, which count."""
PIECE = 393_216
"""Bytes of one packet, where a frame is sent in packets."""
PATIENCE = 10.0
"""Seconds without a frame after which one is lost."""
FILE_BYTES = 268_435_456


def buffers(way: str, address: str, ready: Callable[[], object]) -> Iterator[Any]:
    """What a receiver receives."""
    if way != "pyzmq":
        client = Client(address)
        subscription: Any = client.frames.subscribe("f") if way == "frames" else client.subscribe("f")
        ready()
        for one in subscription:
            yield one if way == "frames" else one.payload
    socket = zmq.Context().socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(f"ipc://{address}-zmq")
    socket.recv()  # the first says that it is connected
    ready()
    while True:
        yield socket.recv(copy=False).buffer


def receive(way: str, address: str, size: int, whole: bool, ready: int, done: int) -> None:
    """In a process of its own: look at frames."""
    missing = size
    for buffer in buffers(way, address, lambda: os.eventfd_write(ready, 1)):
        data = np.frombuffer(buffer, dtype=np.uint8)
        if len(data):
            assert data.view(np.uint64).max() if whole else data[0] == data[-1]
        missing -= len(data)
        del buffer, data
        if not missing:
            missing = size
            os.eventfd_write(done, 1)


def publisher(way: str, address: str) -> tuple[Callable[[Any], object], Callable[[], object]]:
    """What publishes a frame, and what ends it."""
    if way == "pyzmq":
        context = zmq.Context()
        socket = context.socket(zmq.PUB)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.bind(f"ipc://{address}-zmq")
        return socket.send, lambda: context.destroy(linger=0)
    client = Client(address)
    if way == "frames":
        return lambda data: client.frames.publish("f", data), client.close

    def publish(data: np.ndarray[Any, Any]) -> None:
        for at in range(0, len(data), PIECE):
            client.publish("f", bytes(data[at : at + PIECE]))

    return publish, client.close


def processor_seconds(processes: list[int]) -> float:
    """Of all these processes: see clock_getcpuclockid(3)."""
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in processes)


def count(done: int) -> int:
    """How many frames more a receiver has seen; waits for one. Raises :exc:`TimeoutError`."""
    if not select.select([done], [], [], PATIENCE)[0]:
        raise TimeoutError
    return os.eventfd_read(done)


def measure(
    way: str, address: str, hub: int, size: int, receivers: int, whole: bool, under_way: int
) -> tuple[float, float]:
    """Milliseconds of one frame, and of the processor. Raises :exc:`TimeoutError` if one is lost."""
    ready, done, children = os.eventfd(0), [os.eventfd(0) for _ in range(receivers)], list[int]()
    for one in done:
        children.append(os.fork())
        if not children[-1]:
            receive(way, address, size, whole, ready, one)
    publish, end = publisher(way, address)
    try:
        os.set_blocking(ready, False)
        there = 0
        while there < receivers:
            if way == "pyzmq":
                publish(b"")
            try:
                there += os.eventfd_read(ready)
            except BlockingIOError:
                time.sleep(0.001)

        data, looked, sent = np.ones(size, dtype=np.uint8), [0] * receivers, 0
        processes, began, used = [os.getpid(), hub, *children], 0.0, 0.0
        for least in (0, 8):  # the first time does not count: memory is used again after a while
            first, began, used = sent, time.perf_counter(), processor_seconds(processes)
            while (goes_on := time.perf_counter() - began < SECONDS or sent - first < least) or min(looked) < sent:
                if goes_on:
                    publish(data)
                    sent += 1
                for number, one in enumerate(done):
                    while sent - looked[number] >= (under_way if goes_on else 1):
                        looked[number] += count(one)
        took, used = time.perf_counter() - began, processor_seconds(processes) - used
        return 1e3 * took / (sent - first), 1e3 * used / (sent - first)
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
        end()
        for fd in (ready, *done):
            os.close(fd)


def copy_once(size: int) -> float:
    """Milliseconds of one copy into memory that is there."""
    data, to = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    began = time.perf_counter()
    for _ in range(8):
        np.copyto(to, data)
    return 1e3 * (time.perf_counter() - began) / 8


def send_file(address: str, path: str) -> float:
    """Seconds of cp over those of a file that is sent."""
    folder, ready = os.path.dirname(path), os.eventfd(0)
    began = time.perf_counter()
    subprocess.run(["cp", path, f"{path}-copy"], check=True)
    copied = time.perf_counter() - began
    os.unlink(f"{path}-copy")
    if not (child := os.fork()):
        with Client(address) as client, client.files.receive("files/*", folder=folder) as files:
            os.eventfd_write(ready, 1)
            os.unlink(files.receive().file)
        os._exit(0)
    os.eventfd_read(ready)
    os.close(ready)
    with Client(address) as client:
        began = time.perf_counter()
        client.files.send("files/a", path)
        sent = time.perf_counter() - began
    os.waitpid(child, 0)
    return copied / sent


def main() -> None:
    chosen = [word for word in sys.argv[1:] if word not in WAYS]
    ways = [way for way in WAYS if way in sys.argv] or list(WAYS)
    with tempfile.TemporaryDirectory(prefix="sbus-") as folder:
        address = os.path.join(folder, "bus")
        hub = subprocess.Popen([sys.executable, "-m", "sbuslib", "hub", "-a", address, "-q"], stdout=subprocess.PIPE)
        assert hub.stdout is not None
        hub.stdout.read()  # closed once it listens
        titles = "".join(f"{way:>17}" for way in ways)
        print(f"{'ms a frame / of the processor':<38} memcpy {titles}", flush=True)
        for size, receivers, whole, under_way in product(SIZES, (1, 10), (False, True), (1, 8)):
            row = f"{size}, to {receivers}, {'read' if whole else 'looked at'}, {under_way} under way"
            if not all(word in row for word in chosen):
                continue
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            lost = set[str]()
            for _, way in product(range(ROUNDS), ways):
                if way not in lost:
                    try:
                        found[way].append(measure(way, address, hub.pid, SIZES[size], receivers, whole, under_way))
                    except TimeoutError:
                        lost.add(way)
            middle = {way: tuple(map(median, zip(*found[way], strict=True))) for way in ways if way not in lost}
            figures = "".join(
                f"{'lost':>17}" if way in lost else f"{middle[way][0]:>10.3f}/{middle[way][1]:<6.3f}" for way in ways
            )
            print(f"{row:<38} {copy_once(SIZES[size]):>6.3f} {figures}", flush=True)
        if all(word in "file" for word in chosen):
            path = os.path.join(folder, "file")
            with open(path, "wb") as file:
                file.write(os.urandom(FILE_BYTES))
            print(f"a file of 256 MiB: cp / send_large = {median(send_file(address, path) for _ in range(ROUNDS)):.2f}")
        hub.terminate()
        hub.wait()


if __name__ == "__main__":
    main()
