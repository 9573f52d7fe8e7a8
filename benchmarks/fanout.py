"""What a user with a thousand connections that all want another's messages costs that other.

Run as root ``python benchmarks/fanout.py [connections]``: the hub and its clients are processes of three users. One
user has a publisher and a subscriber, alone at a hub of their own, and in turn with that beside the other user's
clients: those never read, or read a packet each now and then, or all that comes. Priorities are as in ``hostile.py``.
How much of what they wanted they had is told too. Some three minutes.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

import plain
from hostile import FLOOR, HOSTILE, child, in_a_session, in_turns, two_hubs

from sbuslib.kernel.areas import make_area

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


def measure(connections: int, way: str) -> float:
    """The good user's rate beside the fans, as part of that without."""
    with two_hubs() as (quiet, scene):
        scene.children.append(child(lambda: fans(scene.address, connections, way), HOSTILE, 19))
        time.sleep(SETTLED)
        compared = in_turns(quiet, scene)
        told, lost = scene.told()
    theirs = [client for client in told.per_client if f"/{HOSTILE}/" in client.credentials]
    delivered, routed = sum(client.delivered for client in theirs), sum(client.routed for client in theirs)
    print(
        f"{way:8} {compared.text}; {lost} lost; {len(theirs):,} others had {delivered:,} of {routed:,}",
        flush=True,
    )
    return compared.share


def main() -> int:
    print(f"python {' '.join(sys.argv)}")
    if os.getuid() != 0:
        print("fanout: needs root, to be three users")
        return 0
    return in_a_session(run)


def run() -> int:
    connections = int(sys.argv[1]) if len(sys.argv) > 1 else CONNECTIONS
    shares = {way: sorted(measure(connections, way) for _ in range(ROUNDS)) for way in WAYS}
    for way, found in shares.items():
        print(f"fanout: {found[1]:.2f} of the rate beside {connections:,} that are {way}, "
              f"median of {ROUNDS} hubs ({found[0]:.2f} to {found[-1]:.2f}; at least {FLOOR} is wanted)")  # fmt: skip
    return 0 if all(found[1] >= FLOOR for found in shares.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
