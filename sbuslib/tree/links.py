"""What a hub tells of its links: of the one to the hub above, and of those from hubs below."""

from __future__ import annotations

from ..core.connection import Connection
from ..core.protocols import Routes
from ..statistics import LinkPage, LinkStatistics
from ..wire.control import UNCERTAIN
from ..wire.packets import MSG
from .tree import Tree

__all__ = ["LinkReport"]


class LinkReport:
    """The links of one hub. Implements :class:`~sbuslib.core.reporting.Links`."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def page(self, start: int, most: int | None, key: bytes | None = None) -> LinkPage:
        """Up to ``most`` links from a number on, and which of them carry ``key``; the link above has the number 0.

        Raises :exc:`~sbuslib.errors.ReservedKeyError` for a key under which nobody may publish.
        """
        tree = self._tree
        receivers = tree.context.router.route(b"%b%b\0" % (MSG, key)) if key is not None else None
        above = [tree.above.statistics(receivers)] if tree.above is not None and not start else []
        connections = [connection for connection in tree.relays() if connection.number >= start]
        connections.sort(key=lambda connection: connection.number)
        count = len(connections) if most is None else most
        below = [self._statistics(connection, receivers) for connection in connections[:count]]
        following = connections[count].number if len(connections) > count else None
        return LinkPage(links=(*above, *below), next=following)

    def _statistics(self, connection: Connection, receivers: Routes | None) -> LinkStatistics:
        tree, outgoing = self._tree, connection.outgoing
        link = tree.links.get(outgoing)
        lost = dict[str, int](outgoing.lost)
        instance, epoch = tree.instances.said_by(outgoing)

        # A relay in mode "plain" has no link.
        uncertain, lag, lagging = 0, 0.0, False
        if link is not None:
            lag = link.questions.lag
            lagging = link.lagging or lag > tree.context.limits.sync_wait
            uncertain = link.lost[UNCERTAIN]
            lost |= {cause: count for cause, count in link.lost.items() if cause != UNCERTAIN}
        return LinkStatistics(
            direction="below",
            number=connection.number,
            uid=connection.credentials.uid,
            pid=connection.credentials.pid,
            credentials=outgoing.key.decode(),
            hub=instance.decode(),
            address=tree.addresses.get(outgoing, ""),
            state="lagging" if lagging else "joined",
            epoch=epoch,
            mode=link.mode if link is not None else "plain",
            patterns=tree.context.router.count(outgoing),
            pruned=link.pruned if link is not None else 0,
            up=connection.received,
            down=outgoing.delivered,
            waiting=outgoing.queued,
            lost=lost,
            uncertain=uncertain,
            lag=lag,
            carries=None if receivers is None else outgoing in receivers,
        )
