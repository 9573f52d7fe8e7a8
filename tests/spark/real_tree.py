"""Real hubs and relays that carry messages one by one. They have their own process, as Spark must not run beside a hub.

``python real_tree.py FOLDER`` reads JSON from standard input: ``hubs`` (name to the hub above, from the root down),
``clients`` (name to hub and patterns) and ``messages`` (client or hub, and key). For each message it prints the links
that the message crossed, with the direction, and the same for a mark that a client at every hub receives.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any

from sbuslib import Client, Hub, Relay

MARK = b"mark"


def counts(relays: dict[str, Relay]) -> dict[str, tuple[int, int]]:
    """For each link, the numbers of messages that went up and down."""
    found = {}
    for name, relay in relays.items():
        statistics = relay.statistics()
        assert (statistics.lost, statistics.uncertain, statistics.buffered) == (0, 0, 0)
        found[name] = (statistics.forwarded, statistics.received)
    return found


def main(folder: str, told: dict[str, Any]) -> list[dict[str, Any]]:
    """Carry the messages, and return the links that each crossed."""
    with ExitStack() as stack:
        hubs = {name: stack.enter_context(Hub(f"{folder}/{name}")) for name in told["hubs"]}
        relays = {
            name: stack.enter_context(Relay(hubs[name], f"{folder}/{above}"))
            for name, above in told["hubs"].items()
            if above
        }
        for relay in relays.values():
            relay.wait(20)
        # A client at each hub receives marks, and publishes the messages that no other client publishes.
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
            """Publish a message and a mark. Links keep the order, so when the mark is there, the message is, too."""
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
