"""The statistics of one hub, gathered from its parts, and how they are answered to ``hub/statistics``."""

from __future__ import annotations

import msgspec

from ..limits import PACKET_BYTES
from ..statistics import HubStatistics, UserStatistics
from .connection import Connection
from .context import Context
from .inbox import Inbox
from .members import Clients
from .quotas import Account

__all__ = ["encode", "statistics_of"]


def statistics_of(context: Context, clients: Clients, hub_id: bytes, dropped: dict[str, int]) -> HubStatistics:
    """Counts since the hub was made, true for this instant only."""
    members: list[Connection | Inbox] = [*clients.connections.values(), *clients.inboxes]
    per_client = tuple(member.statistics() for member in members)
    lost = clients.lost.copy()
    for client in per_client:
        lost.update(client.lost)
    return HubStatistics(
        hub_id=hub_id.decode(),
        address=context.address(),
        clients=len(clients.connections),
        clients_peak=clients.peak,
        clients_total=clients.total,
        patterns=context.router.pattern_count(),
        received=context.published + clients.received + sum(client.received for client in per_client),
        routed=clients.routed + sum(client.routed for client in per_client),
        delivered=clients.delivered + sum(client.delivered for client in per_client),
        queued=sum(client.queued for client in per_client),
        lost=dict(lost),
        ignored=context.ignored,
        breaches=dict(clients.violations.counts),
        dropped=dropped,
        per_client=per_client,
        per_user=tuple(_statistics_of_user(context, account) for account in context.quotas.accounts()),
    )


def _statistics_of_user(context: Context, account: Account) -> UserStatistics:
    return UserStatistics(
        uid=account.uid,
        connections=account.connections,
        patterns=account.patterns,
        pattern_bytes=account.pattern_bytes,
        queued_packets=account.packets.used + account.fan_out.packets.used,
        queued_bytes=account.queued_bytes.used + account.fan_out.queued_bytes.used,
        buffer_bytes=context.quotas.send_buffers.held(account.uid),
    )


def encode(statistics: HubStatistics) -> bytes:
    """Statistics as JSON, less those of each client, and of each user, where they do not fit one packet."""
    encoded = msgspec.json.encode(statistics)
    if len(encoded) > PACKET_BYTES:
        encoded = msgspec.json.encode(msgspec.structs.replace(statistics, per_client=()))
    if len(encoded) > PACKET_BYTES:
        encoded = msgspec.json.encode(msgspec.structs.replace(statistics, per_client=(), per_user=()))
    return encoded
