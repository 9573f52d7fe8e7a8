"""Frames beside packets, pyzmq over ipc and one memcpy; and a file beside cp.

Run ``python benchmarks/frames.py``, with pyzmq installed. Each figure is the time of one frame, from the publisher
until all receivers have looked at it (one byte of each end) or read it whole, with one or eight frames under way. The
ways take turns in each row, and are told as medians of the rounds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import zmq

from sbuslib.blocking import Client

KIB, MIB = 1_024, 1_048_576
SIZES = {"64 KiB": 64 * KIB, "1 MiB": MIB, "16 MiB": 16 * MIB}
RECEIVERS = (1, 10)
UNDER_WAY = (1, 8)
ROUNDS = 3
SECONDS = 0.3
"""How long each way publishes in each round, at least eight frames."""
PIECE = 384 * KIB
"""Bytes of one packet, where a frame is sent in packets."""
FILE_BYTES = 256 * MIB

Publish = Callable[[np.ndarray[Any, Any]], object]


def look(buffer: Any, whole: bool) -> None:
    view = np.frombuffer(buffer, dtype=np.uint8)
    if whole:
        view.view(np.uint64 if len(view) % 8 == 0 else np.uint8).max()
    elif len(view):
        assert view[0] == view[-1]


def receive_frames(address: str, size: int, whole: bool, ready: Callable[[], None]) -> Iterator[None]:
    with Client(address) as client, client.subscribe_frames("frames") as frames:
        ready()
        for frame in frames:
            look(frame, whole)
            frame.close()
            yield


def receive_packets(address: str, size: int, whole: bool, ready: Callable[[], None]) -> Iterator[None]:
    with Client(address) as client, client.subscribe("frames") as messages:
        ready()
        came = 0
        for message in messages:
            look(message.payload, whole)
            came += len(message.payload)
            if came >= size:
                came = 0
                yield


def receive_zmq(address: str, size: int, whole: bool, ready: Callable[[], None]) -> Iterator[None]:
    socket = zmq.Context().socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(f"ipc://{address}-zmq")
    socket.recv()  # the first says that it is connected
    ready()
    while True:
        message = socket.recv(copy=False)
        if len(message.buffer) >= size:
            look(message.buffer, whole)
            yield


@contextmanager
def publish_frames(address: str) -> Iterator[Publish]:
    with Client(address) as client:
        yield lambda data: client.publish_frame("frames", data)


@contextmanager
def publish_packets(address: str) -> Iterator[Publish]:
    with Client(address) as client:

        def publish(data: np.ndarray[Any, Any]) -> None:
            view = memoryview(data)
            for at in range(0, len(view), PIECE):
                client.publish("frames", bytes(view[at : at + PIECE]))

        yield publish


@contextmanager
def publish_zmq(address: str) -> Iterator[Publish]:
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.bind(f"ipc://{address}-zmq")
    yield lambda data: socket.send(data)
    context.destroy(linger=0)


WAYS: dict[str, tuple[Any, Any]] = {
    "frames": (receive_frames, publish_frames),
    "packets": (receive_packets, publish_packets),
    "pyzmq": (receive_zmq, publish_zmq),
}


def measure(way: str, address: str, size: int, receivers: int, whole: bool, under_way: int) -> float:
    """Seconds for one frame."""
    receive, publishing = WAYS[way]
    ready, done = os.eventfd(0), os.eventfd(0)
    children = []
    for _ in range(receivers):
        children.append(os.fork())
        if not children[-1]:
            for _ in receive(address, size, whole, lambda: os.eventfd_write(ready, 1)):
                os.eventfd_write(done, 1)
            os._exit(0)

    data = np.ones(size, dtype=np.uint8)
    with publishing(address) as publish:
        there = 0
        os.set_blocking(ready, False)
        while there < receivers:
            if way == "pyzmq":
                publish(b"")
            try:
                there += os.eventfd_read(ready)
            except BlockingIOError:
                time.sleep(0.001)
        looked = sent = 0
        began = time.perf_counter()
        while time.perf_counter() - began < SECONDS or sent < 8:
            publish(data)
            sent += 1
            while looked <= (sent - under_way) * receivers - 1:
                looked += os.eventfd_read(done)
        while looked < sent * receivers:
            looked += os.eventfd_read(done)
        seconds = (time.perf_counter() - began) / sent
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
    os.close(ready)
    os.close(done)
    return seconds


def copy_once(size: int) -> float:
    """Seconds for one copy of memory into memory that is there."""
    data, to = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    began = time.perf_counter()
    for _ in range(8):
        np.copyto(to, data)
    return (time.perf_counter() - began) / 8


def send_file(address: str, path: str, folder: str) -> float:
    ready = os.eventfd(0)
    child = os.fork()
    if not child:
        with Client(address) as client, client.receive_large("files/*", folder=folder) as files:
            os.eventfd_write(ready, 1)
            os.unlink(files.receive().file)
        os._exit(0)
    os.eventfd_read(ready)
    os.close(ready)
    with Client(address) as client:
        began = time.perf_counter()
        client.send_large("files/a", path)
        seconds = time.perf_counter() - began
    os.waitpid(child, 0)
    return seconds


def copy_file(path: str, folder: str) -> float:
    began = time.perf_counter()
    subprocess.run(["cp", path, os.path.join(folder, "copy")], check=True)
    seconds = time.perf_counter() - began
    os.unlink(os.path.join(folder, "copy"))
    return seconds


def main() -> None:
    chosen = sys.argv[1:]  # such as "16 MiB" 10 read; nothing: everything
    with tempfile.TemporaryDirectory(prefix="sbus-") as folder:
        address = os.path.join(folder, "bus")
        hub = subprocess.Popen([sys.executable, "-m", "sbuslib", "hub", "-a", address, "-q"], stdout=subprocess.PIPE)
        assert hub.stdout is not None
        hub.stdout.read()  # closed once it listens
        print(f"{'ms a frame':<34} {'memcpy':>8} " + " ".join(f"{way:>8}" for way in WAYS) + "   pyzmq/frames")
        for size, receivers, whole, under_way in product(SIZES, RECEIVERS, (False, True), UNDER_WAY):
            row = size, f"to {receivers}", "read" if whole else "looked at", f"{under_way} under way"
            if any(word not in " ".join(row) for word in chosen):
                continue
            found: dict[str, list[float]] = {way: [] for way in WAYS}
            for _, way in product(range(ROUNDS), WAYS):
                found[way].append(measure(way, address, SIZES[size], receivers, whole, under_way))
            middle = {way: statistics.median(times) for way, times in found.items()}
            times = " ".join(f"{1e3 * middle[way]:>8.3f}" for way in WAYS)
            print(
                f"{', '.join(row):<34} {1e3 * copy_once(SIZES[size]):>8.3f} {times}   "
                f"{middle['pyzmq'] / middle['frames']:.1f}",
                flush=True,
            )
        path = os.path.join(folder, "file")
        with open(path, "wb") as file:
            file.write(os.urandom(FILE_BYTES))
        pairs = [(copy_file(path, folder), send_file(address, path, folder)) for _ in range(ROUNDS)]
        print(f"a file of {FILE_BYTES // MIB} MiB: cp / send_large = {statistics.median(a / b for a, b in pairs):.2f}")
        hub.terminate()
        hub.wait()


if __name__ == "__main__":
    main()
