"""What all links of one hub share: which of them have to be told something, in whose turns, and who is told of losses.

A change of the wanted patterns is noted at once. In turns of the user who made the change
(:class:`~sbuslib.core.work.Work`), :class:`Place` finds out what it means for the links, and tells them. A
change that the hub above makes counts as one of the hub's own user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from ..core.context import Context
from ..core.members import Clients
from ..core.outgoing import Outgoing
from ..core.protocols import Receiver
from ..core.quotas import Account
from ..core.send_watcher import SEND_RETRY
from ..core.violations import Violations
from ..wire import control
from .neighbours import Above, Below
from .questions import Questions
from .settling import Settling
from .telling import Telling

__all__ = ["STEPS_A_TURN", "Place"]

STEPS_A_TURN: Final = 256
"""Steps, of some microseconds each, of one turn that works out a user's changes for the links: about a millisecond."""

TOLD_A_TURN: Final = 256
"""Changes that links are told in one such turn: about a millisecond, too."""


class Place:
    """A hub's place in its tree, as its links know it. :class:`~sbuslib.tree.tree.Tree` is the rest.

    :param links: those to the hubs below.
    """

    def __init__(self, context: Context, clients: Clients, links: Mapping[Outgoing, Below]) -> None:
        self.context = context
        self.clients = clients
        self.above: Above | None = None
        """The hub above, while a relay is started."""
        self.telling = Telling(context, self._on_want)  # which links have to be told something
        self.dropped = Violations(context.limits.logged_breaches)
        """Packets that links should not have sent."""
        self.questions = Questions(context, links, lambda: self.above, self.wake)  # that clients and hubs asked
        self.settling = Settling(context, links.values, lambda: self.questions.knows_prefix, self._tell_all)
        """Whether this hub knows what is wanted."""
        self.own: Account = context.quotas.account(os.getuid())
        """What the hub above and the hub itself change is charged to this user: the hub's own."""
        self.started = False
        """Whether the hub listens."""
        self._full: dict[int, Account] = {}  # users whose changes wait for room on a link
        self._awake: set[int] = set()  # users who have changed something, and for whom a step is due

    def _forget_all(self) -> None:
        self._full.clear()
        self._awake.clear()
        self.telling.clear()
        self.questions.clear()

    @property
    def has_settled(self) -> bool:
        """Whether this hub, which was started a while ago, knows what is wanted."""
        return self.settling.done

    # -- changes ------------------------------------------------------------------------------------

    def _on_want(self, subscriber: Receiver, account: Account, pattern: bytes, wanted: bool) -> None:
        """A client here began or ceased to hold a pattern: tell the hub above and all other links."""
        self.telling.watch(subscriber, pattern, wanted, account.uid)
        if self.telling.has_work(account.uid):
            self.wake(account)

    def want_again(self, key: bytes) -> None:
        """The hub above may want a key again that it had pruned: those below may have been told not to send it."""
        self.telling.pruning.want(key, self.own.uid)
        self.wake()

    def on_senders(self) -> None:
        """Somebody wants messages with their sender, or nobody does any more: for some link, or for all."""
        self._tell_all()  # only as often as there is room: a client that turns senders on and off floods no link

    def _tell_all(self) -> None:
        self.telling.mark_all()
        self.wake()

    # -- what is told -------------------------------------------------------------------------------

    def wake(self, account: Account | None = None) -> None:
        """Tell others what a user has changed, in later turns; ``None``: the hub itself has."""
        account = account if account is not None else self.own
        if self.started and account.uid not in self._awake:
            self._awake.add(account.uid)
            self.context.work.add(account.uid, self._tell(account))

    def _tell(self, account: Account) -> Iterator[None]:
        """Work on a user's changes, and tell the links."""
        while True:
            self._awake.discard(account.uid)
            more = self.telling.work(STEPS_A_TURN, account.uid)
            more = self.telling.tell(TOLD_A_TURN) or more
            if self.telling.is_full:
                self._wait_for_room(account)
            if not more or account.uid in self._awake:
                return  # woken meanwhile, it goes on as a job of its own
            self._awake.add(account.uid)
            yield

    def do_later(self, job: Iterator[None]) -> None:
        """Do something in small steps, in turns of the hub's own user."""
        self.context.work.add(self.own.uid, job)
        self.wake()

    def _wait_for_room(self, account: Account) -> None:
        if not self._full:
            self.context.after(SEND_RETRY, self._try_again)
        self._full[account.uid] = account

    def _try_again(self) -> None:
        self.telling.try_again()
        full, self._full = self._full, {}
        for account in full.values():
            self.wake(account)

    # -- notices ------------------------------------------------------------------------------------

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
