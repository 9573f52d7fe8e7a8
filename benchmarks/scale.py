"""What grows with clients, patterns, keys, links and users: memory each; hub CPU of a message, a SUB, a connection.

Run ``python benchmarks/scale.py [clients|patterns|keys|links|users ...]``; without a name, all. Each row is a hub with
so many; the hubs of a table take turns, and a ratio is of the same turn to the smallest. The message has a key never
seen before; a SUB has a wildcard, ends when all links know it, and is taken back. Users need root.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from socket import MSG_DONTWAIT, SocketType
from typing import Any

from sbuslib import blocking
from sbuslib.bench import daemons
from sbuslib.bench.process import cpu_seconds, raise_descriptor_limit, resident_bytes
from sbuslib.kernel.sockets import connect

TURNS = 7
SIZES = {
    "clients": (10, 100, 1_000, 10_000),
    "patterns": (100, 1_000, 10_000, 190_000),
    "keys": (100, 1_000, 10_000, 100_000),
    "links": (1, 10, 100, 1_000),
    "users": (1, 10, 100, 1_000),
}


@contextmanager
def idle(address: str, users: list[int], *first: bytes) -> Iterator[list[SocketType]]:
    """A connection of each of these users, which has sent some packets that the hub has taken."""
    with ExitStack() as stack:
        socks = []
        for user in users:
            os.seteuid(user)
            try:
                socks.append(sock := connect(daemons.path_of(address), 65_536))
            finally:
                os.seteuid(os.getuid())
            stack.callback(sock.close)
            for packet in first:
                sock.send(packet)
            time.sleep(0.0005)  # it listens with a short backlog
        yield socks


class Crowded:
    """A hub with so many of a kind, and how it is measured."""

    def __init__(self, stack: ExitStack, kind: str, count: int) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.chmod(folder, 0o711)  # for users
        self._hub = stack.enter_context(daemons.hub(f"{folder}/bus"))
        self._client = stack.enter_context(blocking.Client(self._hub.address, timeout=60))
        address, me, self._links = self._hub.address, os.geteuid(), list[SocketType]()
        os.chmod(address, 0o777)
        self._client.subscribe(b"none")
        before = resident_bytes(self._hub.pids[0])
        if kind == "clients":
            stack.enter_context(daemons.idle_clients(address, count))
        elif kind == "patterns":
            stack.enter_context(daemons.idle_patterns(address, count))
        elif kind == "keys":
            self._client.publish_many((b"house/%d/temp" % n, b"x") for n in range(count))
        elif kind == "links":
            self._links = stack.enter_context(idle(address, [me] * count, b"CMSG interest/on"))
        else:
            stack.enter_context(idle(address, [*range(20_000, 20_000 + count)], b"SUB idle"))
        self._settle()
        self.each = (resident_bytes(self._hub.pids[0]) - before) / count

    def _settle(self) -> None:
        """Wait until nothing is left to do."""
        self._client.sync()
        used = -1.0
        while used != (used := cpu_seconds(self._hub.pids)):
            time.sleep(0.05 if self._links else 0.005)
            for link in self._links:
                with suppress(BlockingIOError):
                    while link.recv(65_536, MSG_DONTWAIT):
                        pass

    def _cost(self, work: Callable[[], object], count: int) -> float:
        self._settle()
        before = cpu_seconds(self._hub.pids)
        work()
        self._settle()
        return (cpu_seconds(self._hub.pids) - before) / count * 1e6

    def costs(self, turn: int) -> tuple[float, float, float]:
        """CPU microseconds of a message, a SUB and a connection."""
        client = self._client
        keys = [(b"room/%d-%d/temperature" % (turn, n), b"x" * 100) for n in range(100)]
        patterns = [b"new/%d/%d/*" % (turn, n) for n in range(200)]

        def connections() -> None:
            for _ in range(50):
                blocking.Client(self._hub.address).close()

        message = self._cost(lambda: client.publish_many(keys), len(keys))
        taken: list[Any] = []
        sub = self._cost(lambda: taken.append(client.subscribe(*patterns)), len(patterns))
        taken[0].unsubscribe()
        return message, sub, self._cost(connections, 50)


def table(kind: str) -> None:
    with ExitStack() as stack:
        hubs = {count: Crowded(stack, kind, count) for count in SIZES[kind]}
        turns = [[hub.costs(turn) for hub in hubs.values()] for turn in range(TURNS)]
    print(f"{kind:>17}   KiB each     message, us          SUB, us   connection, us   (load {os.getloadavg()[0]:.1f})")
    for row, (count, hub) in enumerate(hubs.items()):
        cells = []
        for column in range(3):
            cost = statistics.median(turn[row][column] for turn in turns)
            ratio = statistics.median(turn[row][column] / turn[0][column] for turn in turns)
            cells.append(f"{cost:10.2f} {ratio:5.2f}")
        print(f"{count:17,} {hub.each / 1024:10.2f} {' '.join(cells)}", flush=True)


if __name__ == "__main__":
    raise_descriptor_limit()
    for name in sys.argv[1:] or SIZES:
        table(name)
