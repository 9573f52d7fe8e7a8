"""The statistics of one hub, gathered from its parts, as its own program and clients that ask are told them."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from typing import Final, Protocol

import msgspec

from ..limits import PACKET_BYTES
from ..statistics import ClientPage, ClientStatistics, HubStatistics, UserStatistics
from .connection import Connection
from .context import Context
from .inbox import Inbox
from .members import Clients, Totals
from .quotas import Account

__all__ = ["Reporter"]

PAGE: Final = 500
"""Most clients in one answer: so an answer is one turn of a few milliseconds, and fits a packet."""


class About(Protocol):
    """What the hub's tree knows of the hub."""

    hub_id: bytes
    dropped: Counter[str]

    def features(self) -> bytes:
        """What the hub can do, and its path."""
        ...


class Reporter:
    """Gathers what a hub tells of itself. Implements :class:`~.client_role.Answers`."""

    def __init__(self, context: Context, clients: Clients, about: About) -> None:
        self._context = context
        self._clients = clients
        self._about = about

    def features(self) -> bytes:
        return self._about.features()

    def hub(self) -> HubStatistics:
        """Counts since the hub was made, true for this instant only."""
        context, clients = self._context, self._clients
        members: list[tuple[int, Connection | Inbox]] = [
            *((connection.outgoing.account.uid, connection) for connection in clients.connections.values()),
            *((inbox.account.uid, inbox) for inbox in clients.inboxes),
        ]
        per_client = tuple(member.statistics() for _, member in members)
        total = copy.deepcopy(clients.left)
        by_user = defaultdict(Totals, copy.deepcopy(clients.left_by_user))
        for (uid, _), client in zip(members, per_client, strict=True):
            for totals in (total, by_user[uid]):
                totals.add(client.received, client.routed, client.delivered, client.lost)
        accounts = {account.uid: account for account in context.quotas.accounts()}
        nothing = Account(-1, context.limits)
        return HubStatistics(
            hub_id=self._about.hub_id.decode(),
            address=context.address(),
            clients=len(clients.connections),
            clients_peak=clients.peak,
            clients_total=clients.total,
            patterns=context.router.pattern_count(),
            received=context.published + total.received,
            routed=total.routed,
            delivered=total.delivered,
            queued=sum(client.queued for client in per_client),
            lost=dict(total.lost),
            ignored=context.ignored,
            breaches=dict(clients.violations.counts),
            dropped=dict(self._about.dropped),
            per_client=per_client,
            per_user=tuple(
                _statistics_of_user(context, uid, accounts.get(uid, nothing), by_user[uid])
                for uid in {**accounts, **by_user}
            ),
        )

    def statistics(self) -> bytes:
        """The same as JSON, less those of each client, and of each user, where they do not fit one packet."""
        statistics = self.hub()
        encoded = msgspec.json.encode(statistics)
        if len(encoded) > PACKET_BYTES:
            encoded = msgspec.json.encode(msgspec.structs.replace(statistics, per_client=()))
        if len(encoded) > PACKET_BYTES:
            encoded = msgspec.json.encode(msgspec.structs.replace(statistics, per_client=(), per_user=()))
        return encoded

    def clients(self, start: int) -> bytes:
        """Clients from a number on, and where to go on, as JSON of a :class:`~sbuslib.statistics.ClientPage`.

        Numbers go up in the order of the connections, so a client that stays is told exactly once.
        """
        page: list[ClientStatistics] = [inbox.statistics() for inbox in self._clients.inboxes] if start == 0 else []
        following = None
        for connection in self._clients.connections.values():
            if connection.number >= start:
                if len(page) >= PAGE:
                    following = connection.number
                    break
                page.append(connection.statistics())
        return msgspec.json.encode(ClientPage(clients=tuple(page), next=following))


def _statistics_of_user(context: Context, uid: int, account: Account, totals: Totals) -> UserStatistics:
    return UserStatistics(
        uid=uid,
        connections=account.connections,
        patterns=account.patterns,
        pattern_bytes=account.pattern_bytes,
        queued_packets=account.packets.used + account.fan_out.packets.used,
        queued_bytes=account.queued_bytes.used + account.fan_out.queued_bytes.used,
        buffer_bytes=context.quotas.send_buffers.held(uid),
        received=totals.received,
        routed=totals.routed,
        delivered=totals.delivered,
        lost=dict(totals.lost),
    )
