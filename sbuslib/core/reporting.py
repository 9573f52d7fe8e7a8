"""The statistics of one hub, gathered from its parts, for its own program and for clients that ask."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Final, Protocol

import msgspec

from ..limits import PACKET_BYTES
from ..statistics import (
    ClientPage,
    ClientStatistics,
    HeldPatterns,
    HubStatistics,
    LinkPage,
    PatternPage,
    UserStatistics,
)
from .clients import Clients
from .connection import Connection
from .context import Context
from .explainer import ExplainedTree, Explainer
from .outbound import Outbound
from .protocols import LocalReceiver
from .quotas import Account
from .records import Totals
from .violations import Violations

PAGE: Final = 500
"""Most clients in one answer: so an answer takes a few milliseconds of the hub, and fits a packet."""


LINKS_PAGE: Final = 100
"""Most links in one answer: each takes up to 4 KB, with an address that its hub claims."""


PATTERN_BYTES: Final = 131_072
"""Most bytes of patterns in one answer, with 16 for each pattern and 100 for each client: so it fits a packet in JSON.
It takes the hub a few milliseconds; some 30 for a client that holds all that a user may, whose patterns are listed
first."""


class About(ExplainedTree, Protocol):
    """The hub's tree: its statistics and links."""

    dropped: Violations

    def features(self) -> bytes:
        """The hub's features, and its path."""

    def link_page(self, start: int, most: int | None) -> LinkPage:
        """Up to ``most`` links from a number on."""
        ...


class Reporter:
    """Gathers a hub's statistics, for its own program and for clients that ask."""

    def __init__(self, context: Context, clients: Clients, about: About) -> None:
        self._context = context
        self._clients = clients
        self._about = about
        self.explainer = Explainer(context, clients, about)
        """Answers what would become of a message."""

    def features(self) -> bytes:
        return self._about.features()

    def hub(self, clients: bool = True, links: bool = True) -> HubStatistics:
        """Counts since the hub was made, true for this instant only; of each client and link if wanted."""
        context, connected, counts = self._context, self._clients.connections, self._context.counts

        # 1. What clients did: those that have left, and those that are here.
        by_user, total = defaultdict(Totals, copy.deepcopy(counts.departed_by_user)), copy.deepcopy(counts.departed)
        queued = 0
        for account, totals, waiting in self._clients.counts():
            by_user[account.uid].add(totals)
            total.add(totals)
            queued += waiting

        # 2. What they hold.
        accounts = {account.uid: account for account in context.quotas.accounts()}
        nothing = Account(-1, context.limits)
        return HubStatistics(
            hub_id=self._about.hub_id.decode(),
            address=context.address(),
            clients=len(connected),
            clients_peak=counts.peak,
            clients_total=counts.total,
            patterns=context.router.pattern_count(),
            published=counts.published + total.received,
            routed=total.routed,
            delivered=total.delivered,
            waiting=queued,
            lost=dict(total.lost),
            ignored=counts.ignored,
            violations=dict(counts.violations),
            dropped=dict(self._about.dropped.counts),
            per_client=self._statistics_of(connected.values(), inboxes=True) if clients else (),
            per_user=tuple(
                _statistics_of_user(context, uid, accounts.get(uid, nothing), by_user[uid])
                for uid in {**accounts, **by_user}
            ),
            per_link=self._about.link_page(0, None).links if links else (),
        )

    def statistics(self) -> bytes:
        """The same as JSON, less those of each client, link and user, where they are too many for one packet."""
        links = self._about.link_page(0, LINKS_PAGE)
        statistics = self.hub(clients=len(self._clients.connections) <= PAGE, links=False)
        if links.next is None:
            statistics = msgspec.structs.replace(statistics, per_link=links.links)
        encoded = msgspec.json.encode(statistics)
        if len(encoded) > PACKET_BYTES:
            encoded = msgspec.json.encode(msgspec.structs.replace(statistics, per_client=()))
        if len(encoded) > PACKET_BYTES:
            encoded = msgspec.json.encode(msgspec.structs.replace(statistics, per_client=(), per_user=(), per_link=()))
        return encoded

    def clients(self, start: int) -> bytes:
        """Clients from a number on, and where to go on, as JSON of a :class:`~sbuslib.statistics.ClientPage`.

        Numbers go up in the order of the connections, so a client that stays is listed exactly once.
        """
        later = (one for one in self._clients.connections.values() if one.number >= start)
        page = self._statistics_of(islice(later, PAGE), inboxes=start == 0)
        following = next(later, None)
        return msgspec.json.encode(ClientPage(clients=page, next=following.number if following is not None else None))

    def links(self, start: int) -> bytes:
        """Links from a number on, and where to go on, as JSON of a :class:`~sbuslib.statistics.LinkPage`."""
        return msgspec.json.encode(self._about.link_page(start, LINKS_PAGE))

    def patterns(self, start: int) -> bytes:
        """The patterns of clients from a number on, as JSON of a :class:`~sbuslib.statistics.PatternPage`.

        Of a client that holds more than fit one answer, as many as do.
        """
        router, page, room, following = self._context.router, list[HeldPatterns](), PATTERN_BYTES, None
        for one in (one for one in self._clients.connections.values() if one.number >= start):
            names, key = router.plain_patterns_of(one.outbound), one.outbound.key.decode()
            patterns = [router.namespace.unmark(name)[1] for name in names[: PATTERN_BYTES // 16]]

            # One that does not fit any more comes first in the next answer.
            ends = list(accumulate((len(pattern) + 16 for pattern in patterns), initial=len(key) + 100))
            if page and (ends[-1] > room or len(page) == PAGE):
                following = one.number
                break
            some = tuple(patterns[: bisect_right(ends, PATTERN_BYTES) - 1])
            is_link = one.outbound.is_link
            page.append(
                HeldPatterns(number=one.number, credentials=key, is_link=is_link, count=len(names), patterns=some)
            )
            room -= ends[-1]
        return msgspec.json.encode(PatternPage(clients=tuple(page), next=following))

    def losers(self) -> dict[tuple[int, str], tuple[str, Outbound | LocalReceiver]]:
        """The receiver that lost most so far, by user and cause: its credential key, and it. Takes as long as
        :meth:`hub`."""
        found: dict[tuple[int, str], tuple[int, str, Outbound | LocalReceiver]] = {}
        parts: list[tuple[Outbound | LocalReceiver, Connection | LocalReceiver]] = [
            *((one.outbound, one) for one in self._clients.connections.values()),
            *((one, one) for one in self._clients.inboxes),
        ]
        for receiver, part in parts:
            told = part.statistics()
            for cause, count in told.lost.items():
                who = receiver.account.uid, cause
                if count > (found[who][0] if who in found else 0):
                    found[who] = count, told.credentials, receiver
        return {who: (key, receiver) for who, (_, key, receiver) in found.items()}

    def _statistics_of(self, connections: Iterable[Connection], inboxes: bool) -> tuple[ClientStatistics, ...]:
        parts: list[Connection | LocalReceiver] = [*(self._clients.inboxes if inboxes else ()), *connections]
        return tuple(part.statistics() for part in parts)


def _statistics_of_user(context: Context, uid: int, account: Account, totals: Totals) -> UserStatistics:
    return UserStatistics(
        uid=uid,
        connections=account.connections,
        patterns=account.patterns,
        pattern_bytes=account.pattern_bytes,
        waiting_packets=account.packets.used + account.fan_out.packets.used,
        waiting_bytes=account.queued_bytes.used + account.fan_out.queued_bytes.used,
        buffer_bytes=context.quotas.send_buffers.held(uid),
        published=totals.received,
        routed=totals.routed,
        delivered=totals.delivered,
        lost=dict(totals.lost),
    )
