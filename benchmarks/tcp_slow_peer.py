"""What a peer that reads nothing costs the others: their rate with it, over their rate without.

    python benchmarks/tcp_slow_peer.py [--count N] [--rounds N]

Two peers in processes of their own receive as fast as they can. To what is published in every other round, a third has
subscribed as well, which never reads and whose queue is full. Target: 0.95 or more. The figure is the median of the
ratios of neighbouring rounds, since other programs disturb single ones.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import gevent

from sbuslib.tcp import Peer

READERS = 2
DATA = b"x" * 100
BATCH = 1_000


def hear(pipe: Connection) -> Any:
    """What comes through the pipe, while the event loop runs."""
    return gevent.get_hub().threadpool.apply(pipe.recv)


def receive(pipe: Connection) -> None:
    with Peer("127.0.0.1:0") as peer:
        inbox = peer.subscribe("//bench")
        pipe.send(peer.address)
        while (count := hear(pipe)) is not None:
            started, left = time.perf_counter(), count
            while left > 0:
                left -= len(inbox.receive_many(timeout=60))
            pipe.send((count / (time.perf_counter() - started), inbox.lost))


def one_round(peer: Peer, pipes: list[Connection], name: str, count: int) -> tuple[float, float]:
    """The rate of the slowest of those that read, in messages a second, and microseconds of CPU a message here."""
    before = time.process_time()
    for pipe in pipes:
        pipe.send(count)
    batch = [(name, DATA)] * BATCH
    for _ in range(count // BATCH):
        peer.publish_many(batch, patience=2.0)
    while any(link.queued_bytes for link in peer.links if link.dialled is not None):
        gevent.sleep(0.001)
    own = (time.process_time() - before) / count * 1e6
    assert not any(link.lost for link in peer.links if link.dialled is not None), "a reader was not waited for"
    results = [hear(pipe) for pipe in pipes]
    assert not any(lost for _, lost in results), "a reader lost messages"
    return min(rate for rate, _ in results), own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes = []
    processes = []
    for _ in range(READERS):
        here, there = context.Pipe()
        processes.append(context.Process(target=receive, args=(there,)))
        processes[-1].start()
        pipes.append(here)
    ratios = []
    with Peer("127.0.0.1:0") as peer:
        for pipe in pipes:
            peer.connect(hear(pipe))
        peer.wait_for_subscriber("//bench", READERS, timeout=20)
        host, port = peer.address.split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"sub //bench/b\n")
            peer.wait_for_subscriber("//bench/b", READERS + 1, timeout=20)
            while not any(link.lost for link in peer.links):
                one_round(peer, pipes, "//bench/b", 50_000)
            for _ in range(options.rounds):
                alone, cost = one_round(peer, pipes, "//bench/a", options.count)
                beside, cost_beside = one_round(peer, pipes, "//bench/b", options.count)
                ratios.append(beside / alone)
                print(
                    f"{alone:,.0f} messages/s to each of {READERS} ({cost:.2f} us of CPU each); "
                    f"beside a slow peer {beside:,.0f} ({cost_beside:.2f} us): {ratios[-1]:.3f}"
                )
        for pipe in pipes:
            pipe.send(None)
    for process in processes:
        process.join()
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
