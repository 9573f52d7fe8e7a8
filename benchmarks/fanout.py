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
import time

import plain
from hostile import FLOOR, HOSTILE, SECONDS, URGENT, apart, child, good_user

from sbuslib.areas import make_area

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
    with good_user() as scene:
        alone = scene.alone
        scene.children.append(child(lambda: fans(scene.address, connections, way), HOSTILE, 19))
        time.sleep(SETTLED)
        beside = scene.meter.rate(2 * SECONDS, scene.hub)
        told, lost = scene.told()
    theirs = [client for client in told.per_client if f"/{HOSTILE}/" in client.credentials]
    delivered, routed = sum(client.delivered for client in theirs), sum(client.routed for client in theirs)
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
