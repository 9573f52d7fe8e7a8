"""The clients and inboxes of one hub: admits them, closes them, and adds up what all of them have done."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

from ..kernel.descriptors import disown
from ..kernel.peers import peer_groups
from ..kernel.users import name_of_user
from ..reasons import Reason
from ..secrets import Credentials
from ..wire import control
from .callbacks import log
from .connection import Connection
from .context import Context
from .embedder import Inbox
from .losses import Cause
from .outgoing import Outgoing
from .protocols import Receiver
from .publisher import Publisher, Role
from .quotas import Account
from .records import ClientRecord, Totals
from .violations import Violations

__all__ = ["LAST_TURNS", "Clients"]

FORGOTTEN_A_STEP: Final = 128
"""Patterns that one step takes out of the index, of clients that left: some 0.2 ms."""

ERROR_PAUSE: Final = 1.0
"""Seconds after which this goes on where it failed, for a bug of ours: it may fail again, and each time is logged."""

LAST_TURNS: Final = 1.0
"""Most seconds that a stopping hub takes to hand on what some receivers have got and others have not."""

USERS_REMEMBERED: Final = 1_024
"""Most users whose totals are kept after their clients have left. Then the oldest is forgotten."""


class Clients:
    """The clients and inboxes of one hub. Implements :class:`~.context.Members`.

    :param on_forget: called with each client that has left.
    :param on_last: called when the last client has left.
    :param on_outbox_empty: called when the outbox of a receiver has become empty.
    """

    def __init__(
        self,
        context: Context,
        on_forget: Callable[[Outgoing], None],
        on_last: Callable[[], None],
        on_outbox_empty: Callable[[], None],
    ) -> None:
        self._context = context
        self.connections: dict[Receiver, Connection] = {}
        """By the receivers that routes hold."""
        self.inboxes: set[Inbox] = set()  # of the embedder and the recorder
        self.violations = Violations(context.limits.logged_violations)  # by clients
        self.peak = self.total = 0  # most clients at a time, and how many ever
        self.departed = Totals()
        """What clients and inboxes that have left did."""
        self.departed_by_user: dict[int, Totals] = {}
        """The same by user."""
        self.on_outbox_empty = on_outbox_empty
        self._on_forget = on_forget
        self._on_last = on_last
        self._to_kick: list[tuple[Receiver, Reason]] = []  # when the turn at hand has ended
        self._cut: set[Publisher] = set()  # those that left and have still to finish
        self._stopping = False  # nothing is put off any more

    # -- clients ------------------------------------------------------------------------------------

    def admit(self, sock: socket.SocketType, credentials: Credentials, account: Account, role: Role) -> None:
        """Serve a client whose connection was accepted, and charged to its user."""
        connection = Connection(self._context, sock, credentials, account, role)
        self.connections[connection.outgoing] = connection
        self.total += 1
        connection.number = self.total
        self.peak = max(self.peak, len(self.connections))

    def restore(
        self, sock: socket.SocketType, credentials: Credentials, account: Account, role: Role, record: ClientRecord
    ) -> Connection:
        """Serve a client that another hub has handed over."""
        connection = Connection(self._context, sock, credentials, account, role)
        self.connections[connection.outgoing] = connection
        connection.restore(record)
        return connection

    def close(self, member: Receiver, why: str) -> None:
        log(logging.DEBUG, "client %s of %s: %s", member.credentials, self._context.address(), why)
        self.forget(member)
        if not self.connections:
            self._on_last()

    def kick(self, member: Receiver, reason: Reason) -> None:
        connection = self.connections.get(member)
        if connection is not None and not connection.outgoing.closed:
            connection.outgoing.notify_last(control.Kicked(reason).encode())
            self.close(member, reason)
            self.report(reason, member.credentials)

    def kick_later(self, member: Receiver, reason: Reason) -> None:
        if not self._to_kick:
            self._context.loop.run_callback(self._kick_noted)
        self._to_kick.append((member, reason))

    def _kick_noted(self) -> None:
        while self._to_kick:
            self.kick(*self._to_kick.pop())

    def report(self, reason: Reason, credentials: Credentials) -> None:
        """Count a violation, and log it the first time."""
        if self.violations.note(reason, credentials.uid):
            text = "sbus hub at %s disconnected process %d of user %s: %s (further ones are only counted)"
            user = name_of_user(credentials.uid)
            log(logging.WARNING, text, self._context.address(), credentials.pid, user, reason)

    def forget(self, member: Receiver) -> None:
        """Close a connection, and keep only its counts."""
        connection = self.connections.pop(member, None)
        if connection is None:
            return
        context, client = self._context, connection.outgoing
        connection.close()  # first, since what follows may try to kick it
        self.finish(connection)
        self._on_forget(client)
        self._retire(client, client.account)
        context.fan_out.forget()
        self._release(client.account)
        self._add_up(client.account, connection.totals())

    def _release(self, account: Account) -> None:
        """A user has a connection less."""
        self._context.quotas.close(account)
        self._context.scheduler.several = self._context.quotas.several()

    def count_lost(self, account: Account, cause: Cause, count: int) -> None:
        self._add_up(account, Totals(routed=count, lost={cause: count}))

    def _add_up(self, account: Account, totals: Totals) -> None:
        self.departed.add(totals)
        if account.uid not in self.departed_by_user:
            if len(self.departed_by_user) >= USERS_REMEMBERED:
                del self.departed_by_user[next(iter(self.departed_by_user))]
            self.departed_by_user[account.uid] = Totals()
        self.departed_by_user[account.uid].add(totals)

    def counts(self) -> Iterator[tuple[Account, Totals, int]]:
        """What became of the messages of each client and inbox that is connected, and how many wait for it."""
        for connection in self.connections.values():
            yield connection.outgoing.account, connection.totals(), connection.outgoing.queued
        for inbox in self.inboxes:
            told = inbox.statistics()
            yield inbox.account, Totals(0, told.routed, told.delivered, told.lost), told.waiting

    def groups_of(self, client: Outgoing) -> frozenset[int]:
        """The group of a client's process when it connected, and its supplementary ones."""
        return peer_groups(client.socket) | {client.credentials.gid}

    # -- inboxes ------------------------------------------------------------------------------------

    def add_inbox(self, inbox: Receiver) -> None:
        assert isinstance(inbox, Inbox)
        self.inboxes.add(inbox)

    def forget_inbox(self, inbox: Receiver) -> None:
        assert isinstance(inbox, Inbox)
        self.inboxes.discard(inbox)
        self._retire(inbox, inbox.account)
        self._add_up(inbox.account, Totals(0, inbox.routed, inbox.delivered, inbox.lost))

    # -- what clients that left leave behind --------------------------------------------------------

    def finish(self, publisher: Publisher) -> None:
        """A publisher has left: hand on the rest of what some receivers have got already, in turns of its user.

        It counts as a connection until then. Else clients that come and go could leave any number of rests.
        """
        if publisher.is_cut:
            account = publisher.outgoing.account
            self._context.quotas.keep_open(account)
            self._cut.add(publisher)
            self._context.work.add(account.uid, self._go_on(publisher), lambda: self._finished(publisher))

    @staticmethod
    def _go_on(publisher: Publisher) -> Iterator[None]:
        while publisher.is_cut and publisher.finish():
            yield

    def _finished(self, publisher: Publisher) -> None:
        self._cut.discard(publisher)
        self._release(publisher.outgoing.account)

    def finish_all(self, until: float) -> None:
        """Hand all of it on now, until a time of the monotonic clock."""
        for publisher in [*self.connections.values(), *self._cut]:
            while publisher.is_cut and monotonic() < until:
                publisher.finish()

    def settle(self, until: float) -> bool:
        """Leave nothing half done, for a hub that takes over. Returns whether there was enough time."""
        self._kick_noted()
        self.finish_all(until)
        return not any(publisher.is_cut for publisher in [*self.connections.values(), *self._cut])

    def _retire(self, receiver: Receiver, account: Account) -> None:
        if self._context.router.retire(receiver, account) and not self._stopping:
            self._forget_patterns(account.uid)

    def _forget_patterns(self, user: int) -> None:
        """Take the patterns of a user's clients that left out of the index."""
        context = self._context

        def steps() -> Iterator[None]:
            while context.router.forget_some(FORGOTTEN_A_STEP, user):
                yield

        def on_end() -> None:
            if context.router.has_retired(user):
                context.after(ERROR_PAUSE, lambda: self._forget_patterns(user))

        context.work.add(user, steps(), on_end)

    # -- the end ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """The hub stops: close all, and take all their patterns out of the index."""
        self._stopping = True
        for member in list(self.connections):
            self.forget(member)
        for inbox in list(self.inboxes):
            inbox.unsubscribe()
        self._context.router.forget_all_retired()
        self._stopping = False

    def abandon(self) -> None:
        """Another process serves the clients: let go of them without a word to them."""
        for connection in self.connections.values():
            disown(connection.outgoing.socket)
            connection.close()
        self.connections.clear()
        for inbox in list(self.inboxes):
            inbox.closed = True
        self.inboxes.clear()
