"""What the links of one hub share, and ask of it: :class:`Place`."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.context import Context
from ..core.members import Clients
from ..core.outgoing import Outgoing
from ..core.protocols import Receiver
from ..core.violations import Violations
from ..wire import control
from .roles import Above, Below
from .rounds import Questions
from .settling import Settling
from .telling import Telling

__all__ = ["Place"]


class Place:
    """A hub's place in its tree, as its links know it. :class:`~sbuslib.tree.tree.Tree` is the rest.

    :param links: those to the hubs below.
    """

    def __init__(self, context: Context, clients: Clients, links: Mapping[Outgoing, Below]) -> None:
        self.context = context
        self.clients = clients
        self.above: Above | None = None
        """The hub above, while a relay is started."""
        self.telling = Telling(context)  # which links have to be told something
        self.dropped = Violations(context.limits.logged_violations)
        """Packets that links should not have sent."""
        self.questions = Questions(context, links, lambda: self.above)  # that clients and hubs asked
        self.settling = Settling(context, links.values, lambda: self.questions.knows_prefix, self.telling.mark_all)
        """Whether this hub knows what is wanted."""

    @property
    def has_settled(self) -> bool:
        """Whether this hub, which was started a while ago, knows what is wanted."""
        return self.settling.done

    def everybody(self) -> list[Outgoing]:
        """All clients, and links."""
        return [connection.outgoing for connection in self.clients.connections.values()]

    def pass_notice(self, notice: control.Lost | control.Away, origin: Receiver | None) -> None:
        """Messages were lost between two hubs: tell the clients that asked for notices, and all hubs but ``origin``."""
        for connection in self.everybody():
            if connection is not origin:
                connection.notify(notice.encode())
        for inbox in list(self.clients.inboxes):
            inbox.notify(notice)
        if self.above is not None and self.above.up is not origin:
            self.above.pass_notice(notice)
