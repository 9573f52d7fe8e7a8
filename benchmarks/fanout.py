"""What a user with a thousand connections that all want another's messages costs that other.

Run as root ``python benchmarks/fanout.py [connections]``: the hub and its clients are processes of three users. One
user has a publisher and a subscriber, which is measured alone, then beside the other user's clients: those never read,
or read a packet each now and then, or all that comes. They run at the lowest priority, so that what is measured is the
hub and not the scheduler. How much of what they wanted they had is told too. Some two minutes.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
import time

import plain
from hostile import FLOOR, GOOD, HOSTILE, SECONDS, URGENT, Meter, apart, child, hub_process, publisher, subscriber

from sbuslib import blocking
from sbuslib.seqpacket import make_area

CONNECTIONS = 1_000
ROUNDS = 3
WAYS = ("silent", "dripping", "reading")
PAUSE = 0.01
"""Seconds between two packets that a dripping client reads."""
SETTLED = 4.0
"""Seconds until the queues of those who do not read are full."""


def fans(address: str, connections: int, way: str) -> None:
    """Want everything of the good user's, on many connections."""
    socks = {sock.fileno(): sock for sock in (plain.reader(address, b"bench/") for _ in range(connections))}
    if way == "silent":
        signal.pause()
    area = make_area()
    while way == "dripping":
        time.sleep(PAUSE)
        for sock in socks.values():
            area.receive(sock, 1)
    poll = select.epoll()
    for descriptor in socks:
        poll.register(descriptor, select.EPOLLIN)
    while True:
        for descriptor, _ in poll.poll():
            area.receive(socks[descriptor])


def measure(connections: int, way: str) -> tuple[float, float]:
    """The good user's rate beside the fans, as part of that without: each second, and each second of the hub's CPU."""
    children: list[int] = []
    with tempfile.TemporaryDirectory() as folder, hub_process(folder) as (address, hub, _):
        os.chmod(folder, 0o755)
        try:
            reading, writing = os.pipe()
            children.append(child(lambda: subscriber(address, writing), GOOD, URGENT))
            os.close(writing)
            meter = Meter(reading)
            children.append(child(lambda: publisher(address), GOOD, URGENT))
            meter.rate(0.5, hub)
            alone = meter.rate(SECONDS, hub)
            children.append(child(lambda: fans(address, connections, way), HOSTILE, 19))
            time.sleep(SETTLED)
            beside = meter.rate(2 * SECONDS, hub)
            with blocking.Client(address, timeout=60) as root:
                told = root.statistics()
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)
    theirs = [client for client in told.per_client if f"/{HOSTILE}/" in client.credentials]
    delivered, routed = sum(client.delivered for client in theirs), sum(client.routed for client in theirs)
    lost = sum(sum(client.lost.values()) for client in told.per_client if f"/{GOOD}/" in client.credentials)
    print(
        f"{way:8} {alone[0]:9,.0f} messages/s without, {beside[0]:9,.0f} with: "
        f"{beside[0] / alone[0]:.2f} ({beside[1] / alone[1]:.2f} for each second of the hub's CPU); {lost} lost; "
        f"{len(theirs):,} others had {delivered:,} of {routed:,}",
        flush=True,
    )
    return beside[0] / alone[0], beside[1] / alone[1]


def main() -> int:
    print(f"python {' '.join(sys.argv)}")
    if os.getuid() != 0:
        print("fanout: needs root, to be three users")
        return 0
    pid = os.fork()  # a child of a shell may not begin a session
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    apart(URGENT)
    connections = int(sys.argv[1]) if len(sys.argv) > 1 else CONNECTIONS
    shares = {way: sorted(measure(connections, way)[0] for _ in range(ROUNDS)) for way in WAYS}
    for way, found in shares.items():
        print(f"fanout: {found[1]:.2f} of the rate beside {connections:,} that are {way}, "
              f"median of {ROUNDS} hubs ({found[0]:.2f} to {found[-1]:.2f}; at least {FLOOR} is wanted)")  # fmt: skip
    return 0 if all(found[1] >= FLOOR for found in shares.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
