"""The statistics of one hub, gathered from its parts, and how they are answered to ``hub/statistics``."""

from __future__ import annotations

import copy
from collections import defaultdict

import msgspec

from ..limits import PACKET_BYTES
from ..statistics import HubStatistics, UserStatistics
from .connection import Connection
from .context import Context
from .inbox import Inbox
from .members import Clients, Totals
from .quotas import Account

__all__ = ["encode", "statistics_of"]


def statistics_of(context: Context, clients: Clients, hub_id: bytes, dropped: dict[str, int]) -> HubStatistics:
    """Counts since the hub was made, true for this instant only."""
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
        hub_id=hub_id.decode(),
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
        dropped=dropped,
        per_client=per_client,
        per_user=tuple(
            _statistics_of_user(context, uid, accounts.get(uid, nothing), by_user[uid])
            for uid in {**accounts, **by_user}
        ),
    )


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


def encode(statistics: HubStatistics) -> bytes:
    """Statistics as JSON, less those of each client, and of each user, where they do not fit one packet."""
    encoded = msgspec.json.encode(statistics)
    if len(encoded) > PACKET_BYTES:
        encoded = msgspec.json.encode(msgspec.structs.replace(statistics, per_client=()))
    if len(encoded) > PACKET_BYTES:
        encoded = msgspec.json.encode(msgspec.structs.replace(statistics, per_client=(), per_user=()))
    return encoded
