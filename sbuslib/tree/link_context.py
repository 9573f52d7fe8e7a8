"""State that the links of one hub share: :class:`LinkContext`."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from ..core.clients import Clients
from ..core.context import Context
from ..core.interest_watches import InterestWatches
from ..core.outbound import Outbound
from ..core.protocols import Receiver
from ..core.violations import Violations
from ..wire import control
from .link_interfaces import ChildPort, ParentPort
from .loss_reports import LossReports, News
from .presences import Presences
from .propagation import InterestPropagation
from .startup_barrier import StartupBarrier
from .tree_sync import Questions


class LinkContext:
    """A hub's place in its tree, as its links know it. :class:`~sbuslib.tree.tree.Tree` is the rest.

    :param links: those to the children.
    """

    def __init__(self, context: Context, clients: Clients, links: Mapping[Outbound, ChildPort]) -> None:
        self.context = context
        self.clients = clients
        self.hub_id = secrets.token_hex(8).encode()
        """16 hexadecimal digits that no other hub has."""
        self._links = links
        self.parent: ParentPort | None = None
        """The parent, while a relay is started."""
        self.propagation = InterestPropagation(context)  # of local interest, to all links
        self.dropped = Violations(context.limits.logged_violations, is_named=context.events.is_named)
        """Packets that links should not have sent."""
        self.questions = Questions(context, links, lambda: self.parent)  # that clients and hubs asked
        self.startup_barrier = StartupBarrier(
            context, links.values, lambda: self.questions.knows_prefix, self._on_settled
        )
        """Whether this hub has the interest of its neighbours."""
        self.presences = Presences(context, lambda: self.hub_id, self._wake, self._is_whole)
        """Presences in the tree."""
        self.watches = InterestWatches(context, lambda: self.startup_barrier.done)
        """Watches of interest."""

        self.loss_reports = LossReports(
            context, lambda: self.hub_id, self._report_losses, lambda: self.startup_barrier.done
        )
        """Messages that the tree has lost on their way up, as far as hubs reported them."""

    def _wake(self, links: Iterable[Hashable], user: int) -> None:
        """Tell links what a user has changed."""
        self.propagation.mark(links)
        self.propagation.wake(user)

    def _is_whole(self, with_parent: bool) -> bool:
        """Whether all other hubs of the tree are joined, as far as this one can know."""
        parent = self.parent if with_parent else None
        return self.startup_barrier.done and (parent is None or parent.stands_apart or parent.announces_presences)

    def _on_settled(self) -> None:
        self.presences.note_scope()
        self.propagation.mark_all()
        self.watches.note(None, None)
        self.loss_reports.pass_on()

    @property
    def has_settled(self) -> bool:
        """Whether this hub, which was started a while ago, has the interest of its neighbours."""
        return self.startup_barrier.done

    def everybody(self) -> list[Outbound]:
        """All clients, and links."""
        return [connection.outbound for connection in self.clients.connections.values()]

    def pass_notice(self, notice: control.Lost | control.Away, origin: Receiver | None) -> None:
        """Pass on that messages were lost on their way down: to clients that asked for notices, and to all children."""
        for connection in self.everybody():
            if connection is not origin:
                connection.notify(notice.encode())
        self._report_to_inboxes(notice)

    def _report_to_inboxes(self, notice: control.Lost | control.Away) -> None:
        for inbox in list(self.clients.inboxes):
            inbox.notify(notice)

    def _report_losses(self, news: list[News]) -> None:
        """Tell clients and the children of losses on the way up: each link of those that it did not report."""
        # 1. Children recognize reports that they have.
        encoded = [(one.report.encode(), one.origin) for one in news]
        origins = {origin for _, origin in encoded}
        packets = control.encode_loss_reports([report for report, _ in encoded])
        for link in self._links.values():
            if link.receiver in origins:
                others = [report for report, origin in encoded if origin is not link.receiver]
                link.say(*control.encode_loss_reports(others))
            else:
                link.say(*packets)

        # 2. Clients get one notice for all hubs together.
        lost: Counter[str] = Counter()
        since: dict[str, float] = {}
        for one in news:
            report = one.report
            for cause, count in ((report.cause, report.certain), (control.UNCERTAIN, report.uncertain)):
                if count:
                    lost[cause] += count
                    since[cause] = min(since.get(cause, report.since), report.since)
        for cause, count in lost.items():
            notice = control.Lost(cause, count, since[cause])
            packet = notice.encode()
            for connection in self.everybody():
                if connection not in self._links:
                    connection.notify(packet)
            self._report_to_inboxes(notice)
