"""``sbus stat``: what a hub does, and what was lost and why."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, add_address

if TYPE_CHECKING:
    from ..statistics import ClientStatistics, HubStatistics, LinkStatistics, UserStatistics

__all__ = ["add_arguments", "describe"]

CLIENTS = 10
"""Clients that are shown: those with the most losses, then those with the most messages that wait."""


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show what a hub counts: of itself, its users, the clients that lag or lose, and its links to other hubs. "
        "Counts begin when the hub is made, those of a client when it connects. A hub tells this to its own user, "
        "root, and the users of --trusted. All clients: sbus clients. All hubs: sbus tree."
    )
    parser.epilog = "examples:\n  sbus stat\n  sbus stat --json | jq .lost\n  watch -n 1 sbus stat\n\n" + ADDRESSES
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="all that is known, as JSON in one line")
    parser.set_defaults(run=_stat)


def _stat(arguments: Namespace) -> int:
    import msgspec

    from ..blocking import Client
    from . import tables

    def show() -> None:
        with Client(arguments.address) as client:
            told = client.statistics()
            links = client.link_statistics()
            clients = list(told.per_client)
            if len(clients) < told.clients:
                clients = client.client_statistics()  # they are too many for one answer
        told = msgspec.structs.replace(told, per_client=tuple(clients), per_link=tuple(links))
        if arguments.json:
            tables.show_json(told)
        else:
            print("\n".join(describe(told)))

    return tables.run(show, arguments.address)


def describe(told: HubStatistics) -> Iterator[str]:
    """The lines that show what a hub tells."""
    from . import tables

    yield f"{tables.plain(told.address)}  id {tables.plain(told.hub_id)}"
    yield (
        f"clients    {told.clients:,} now, {told.clients_peak:,} at most, {told.clients_total:,} in all; "
        f"{told.patterns:,} patterns"
    )
    yield f"published  {told.received:,}"
    yield f"delivered  {told.delivered:,} of {told.routed:,}; {told.queued:,} waiting"
    yield f"lost       {tables.losses(told.lost)}"
    if told.breaches:
        yield f"kicked     {tables.losses(told.breaches)}"
    if told.dropped:
        yield f"dropped    {tables.losses(told.dropped)}"
    if told.per_user:
        yield ""
        users = sorted(told.per_user, key=lambda user: (-user.received - user.routed, user.uid))
        yield from tables.columns([_USER_HEAD, *map(_user, users)])
    worst = sorted(told.per_client, key=lambda client: (-sum(client.lost.values()), -client.queued))
    worst = [client for client in worst if client.queued or any(client.lost.values())]
    if worst:
        yield ""
        yield from tables.columns([_CLIENT_HEAD, *map(_client, worst[:CLIENTS])], 2)
        if len(worst) > CLIENTS:
            yield f"and {len(worst) - CLIENTS:,} more: sbus clients"
    if told.per_link:
        yield ""
        yield from tables.columns([_LINK_HEAD, *map(_link, told.per_link)], 5)


_USER_HEAD = ["USER", "CLIENTS", "PATTERNS", "PUBLISHED", "DELIVERED", "WAITING", "LOST"]


def _user(user: UserStatistics) -> list[object]:
    from . import tables

    return [
        tables.name_of_user(user.uid),
        user.connections,
        user.patterns,
        user.received,
        user.delivered,
        user.queued_packets,
        tables.losses(user.lost),
    ]


_CLIENT_HEAD = ["CLIENT", "MODES", "DELIVERED", "WAITING", "AT MOST", "LOST"]


def _client(client: ClientStatistics) -> list[object]:
    from . import tables

    return [
        client.credentials,
        f"{client.soft} {client.hard} {client.order}",
        client.delivered,
        client.queued,
        client.queued_peak,
        tables.losses(client.lost),
    ]


_LINK_HEAD = [
    "LINK",
    "ADDRESS",
    "USER",
    "STATE",
    "MODE",
    "PATTERNS",
    "IN",
    "OUT",
    "WAITING",
    "UNCERTAIN",
    "LAG",
    "LOST",
]


def _link(link: LinkStatistics) -> list[object]:
    from . import tables

    return [
        link.direction,
        link.address or "-",
        tables.name_of_user(link.uid) if link.uid >= 0 else "-",
        link.state,
        link.mode,
        link.patterns,
        link.received,
        link.delivered,
        link.queued,
        link.uncertain,
        f"{link.lag:.1f}",
        tables.losses(link.lost),
    ]
