"""Messages a second from one peer to another, each in a process of its own, by batched writes.

    python benchmarks/tcp_throughput.py [--count N] [--size BYTES] [--names N] [--rounds N]

Target: 500,000 messages of 100 bytes a second or more. With ``--names`` above 1, the names take turns, which is the
worst case for the parser and for joining messages into runs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection

from sbuslib.tcp import Peer

BATCH = 1_000


def receive(pipe: Connection, count: int) -> None:
    with Peer("127.0.0.1:0") as peer:
        inbox = peer.subscribe("//bench/")
        pipe.send(peer.address)
        inbox.receive(timeout=60)
        started, left = time.perf_counter(), count
        while left > 0:
            left -= len(inbox.receive_many(timeout=60))
        spent = time.perf_counter() - started
        pipe.send((spent, time.process_time(), inbox.lost))
        pipe.recv()


def once(count: int, size: int, names: int) -> tuple[float, float, float, int, int]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=receive, args=(there, count))
    process.start()
    with Peer() as peer:
        peer.connect(here.recv())
        peer.wait_for_subscriber("//bench/0", timeout=10)
        data = b"x" * size
        batch = [(f"//bench/{number % names}", data) for number in range(BATCH)]
        peer.publish("//bench/0", b"go")
        before = time.process_time()
        for _ in range(count // BATCH):
            peer.publish_many(batch, patience=10.0)
        peer.flush()
        own = time.process_time() - before
        spent, other, lost = here.recv()
        lost_here = peer.statistics().lost
        here.send(None)
    process.join()
    return count / spent, own / count * 1e6, other / count * 1e6, lost, lost_here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--names", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rates = []
    for _ in range(options.rounds):
        rate, own, other, lost, lost_here = once(options.count, options.size, options.names)
        rates.append(rate)
        print(
            f"{rate:,.0f} messages/s; CPU {own:.2f} us a message to publish, {other:.2f} to receive; "
            f"lost {lost_here} + {lost}"
        )
    print(f"median {sorted(rates)[len(rates) // 2]:,.0f}, best {max(rates):,.0f} messages/s")


if __name__ == "__main__":
    main()
