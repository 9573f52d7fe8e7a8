"""How long a message waits in a peer over TCP beside strangers whose sockets always have data.

    python benchmarks/tcp_hostile.py [--strangers N] [--rounds N] [--seconds S]

A peer answers each message that it gets under one name. Another program asks it, one question after another, without
and with strangers that send messages of one byte as fast as the peer takes them, each under a name of its own, which
the peer has to look up. What is shown is the peer's own CPU time for an answer, besides the time by the clock, on which
other work of the machine tells.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from sbuslib.bench.process import cpu_seconds

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

NAMES = 200_000
"""Names of a stranger: more than a peer remembers."""
MOST = 60.0
"""Seconds that one answer may take."""


def answer(pipe: Connection) -> None:
    """Be the peer that is asked."""
    from sbuslib.tcp import Peer

    with Peer("127.0.0.1:0") as peer:
        inbox = peer.subscribe("//ask")
        pipe.send(peer.address)
        for message in inbox:
            peer.publish("//answer", message.data)


def flood(address: str) -> None:
    """Be a stranger."""
    os.nice(19)
    host, _, port = address.rpartition(":")
    messages = b"".join(b"pub //%x 1 x\n" % number for number in range(NAMES))
    with suppress(OSError), socket.create_connection((host, int(port))) as sock:
        while True:
            sock.sendall(messages)


def ask(address: str, pid: int, seconds: float) -> list[tuple[float, float]]:
    """Ask for so many seconds, three times at least; for each answer the peer's CPU time and that by the clock."""
    host, _, port = address.rpartition(":")
    waited = []
    with socket.create_connection((host, int(port)), timeout=MOST) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"sub //answer\n")
        file, until = sock.makefile("rb"), time.monotonic() + seconds
        while len(waited) < 3 or time.monotonic() < until:
            spent, began = cpu_seconds([pid]), time.monotonic()
            sock.sendall(b"pub //ask 1 x\n")
            while file.readline() != b"pub //answer 1 x\n":
                pass
            waited.append((cpu_seconds([pid]) - spent, time.monotonic() - began))
    return waited


def show(waited: list[tuple[float, float]]) -> str:
    """Median and most of both times."""
    parts = []
    for name, times in zip(("CPU", "clock"), zip(*waited, strict=True), strict=True):
        parts.append(f"{name} {1e3 * statistics.median(times):,.1f} ms (most {1e3 * max(times):,.1f})")
    return f"{', '.join(parts)} of {len(waited)} answers"


def once(strangers: int, seconds: float) -> None:
    """Measure with a peer of its own, first without strangers."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = [context.Process(target=answer, args=(there,))]
    try:
        processes[0].start()
        address, pid = here.recv(), processes[0].pid
        assert pid is not None
        print(f"alone: {show(ask(address, pid, seconds / 4))}", flush=True)
        for _ in range(strangers):
            processes.append(context.Process(target=flood, args=(address,)))
            processes[-1].start()
        time.sleep(1.0)
        print(f"beside {strangers} strangers: {show(ask(address, pid, seconds))}", flush=True)
    finally:
        for process in reversed(processes):
            process.kill()
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strangers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    for _ in range(options.rounds):
        once(options.strangers, options.seconds)


if __name__ == "__main__":
    main()
