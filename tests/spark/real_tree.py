"""Real hubs and relays that carry messages one by one, in a process of their own: Spark may not run where a hub does.

``python real_tree.py FOLDER`` reads from standard input, as JSON, ``hubs`` (name to the hub above it, the root first
and every hub after the one above), ``clients`` (name to hub and patterns) and ``messages`` (client or hub, and key). It
prints for each message which links it crossed and which way, and the same for a mark that everybody wants.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any

from sbuslib import Client, Hub, Relay

MARK = b"mark"


def counts(relays: dict[str, Relay]) -> dict[str, tuple[int, int]]:
    """Of each link, the messages that went up and down."""
    found = {}
    for name, relay in relays.items():
        statistics = relay.statistics()
        assert (statistics.lost, statistics.uncertain, statistics.buffered) == (0, 0, 0)
        found[name] = (statistics.forwarded, statistics.received)
    return found


def main(folder: str, told: dict[str, Any]) -> list[dict[str, Any]]:
    """Carry the messages; what each did."""
    with ExitStack() as stack:
        hubs = {name: stack.enter_context(Hub(f"{folder}/{name}")) for name in told["hubs"]}
        relays = {
            name: stack.enter_context(Relay(hubs[name], f"{folder}/{above}"))
            for name, above in told["hubs"].items()
            if above
        }
        for relay in relays.values():
            relay.wait(20)
        # At each hub somebody who takes marks, and publishes what no client does.
        at_hubs = {name: stack.enter_context(Client(f"{folder}/{name}", timeout=20)) for name in hubs}
        clients = {
            name: stack.enter_context(Client(f"{folder}/{hub}", timeout=20))
            for name, (hub, _) in told["clients"].items()
        }
        for client in at_hubs.values():
            client.subscribe(MARK)
        for name, (_, patterns) in told["clients"].items():
            if patterns:
                clients[name].subscribe(*(pattern.encode() for pattern in patterns))
        for client in (*at_hubs.values(), *clients.values()):
            assert client.sync("tree") == "tree"

        found = []

        def carry(publisher: Client, key: bytes) -> dict[str, list[int]]:
            """Links keep the order of what they carry: a message is where it gets once the mark after it is there."""
            before = counts(relays)
            if key != MARK:
                publisher.publish(key)
            publisher.publish(MARK)
            for client in at_hubs.values():
                assert client.receive(timeout=20).key == MARK
            after = counts(relays)
            return {link: [new - old for new, old in zip(after[link], before[link], strict=True)] for link in after}

        for who, key in told["messages"]:
            publisher = clients[who] if who in clients else at_hubs[who]
            mark = carry(publisher, MARK)
            both = carry(publisher, key.encode())
            message = {link: [a - b for a, b in zip(both[link], mark[link], strict=True)] for link in both}
            found.append({"message": message, "mark": mark})
        return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.load(sys.stdin))))
