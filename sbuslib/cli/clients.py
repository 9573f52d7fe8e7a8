"""``sbus clients``: every client of a hub."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, add_address
from .values import count

if TYPE_CHECKING:
    from ..statistics import ClientStatistics

__all__ = ["add_arguments", "table"]

ORDERS = ("number", "published", "delivered", "waiting", "lost", "patterns")


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show every client of a hub: its number, its credential key !/cred/GID/UID/PID, and what it published, was "
        "sent and lost since it connected. Number 0 is the program that serves the hub. A hub tells this to its own "
        "user, root, and the users of --trusted."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus clients\n"
        "  sbus clients --sort lost -n 10              who loses most\n"
        "  sbus clients --json | jq '.[].credentials'\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument(
        "--sort", choices=ORDERS, default="number", help="the largest first, or by number (the default): oldest first"
    )
    parser.add_argument("-n", "--count", type=count, metavar="N", help="only the first N")
    parser.add_argument("--json", action="store_true", help="all that is known of each, as JSON in one line")
    parser.set_defaults(run=_clients)


def _clients(arguments: Namespace) -> int:
    from ..blocking import Client
    from . import tables

    def show() -> None:
        with Client(arguments.address) as client:
            clients = client.client_statistics()
        if arguments.sort != "number":
            clients.sort(key=lambda one: _values(one)[arguments.sort], reverse=True)
        clients = clients[: arguments.count]
        if arguments.json:
            tables.show_json(clients)
        else:
            print("\n".join(table(clients)))

    return tables.run(show, arguments.address)


def _values(client: ClientStatistics) -> dict[str, int]:
    return {
        "published": client.received,
        "delivered": client.delivered,
        "waiting": client.queued,
        "lost": sum(client.lost.values()),
        "patterns": client.patterns,
    }


def table(clients: list[ClientStatistics]) -> list[str]:
    """The lines that show clients, the head first."""
    from . import tables

    head = ["CLIENT", "MODES", "NUMBER", "PATTERNS", "PUBLISHED", "DELIVERED", "WAITING", "LOST"]
    rows = [
        [
            client.credentials,
            f"{client.soft} {client.hard} {client.order}",
            client.number,
            client.patterns,
            client.received,
            client.delivered,
            client.queued,
            tables.losses(client.lost),
        ]
        for client in clients
    ]
    return tables.columns([head, *rows], 2)
