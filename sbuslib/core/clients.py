"""The clients and inboxes of one hub: admits them, closes them, and takes over those of another hub."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

from ..kernel.descriptors import disown
from ..kernel.peers import peer_credentials, peer_groups
from ..kernel.sockets import take_connection
from ..reasons import Reason
from ..secrets import Credentials
from ..wire import control
from ..wire.events import HubEvent, first_segments
from .callback_errors import log
from .connection import Connection
from .context import Context
from .fan_out import FanOuts
from .outbound import Outbound
from .protocols import LocalReceiver, Receiver
from .publisher import Publisher, Role
from .quotas import Account
from .records import ClientRecord, Totals
from .recurring_job import Steps, UserJobs
from .violations import Violations

FORGOTTEN_A_STEP: Final = 128
"""Patterns that one step takes out of the index, of clients that left: some 0.2 ms."""

LAST_TURNS: Final = 1.0
"""Most seconds that a stopping hub takes to hand on what some receivers have got and others have not."""


class Clients:
    """The clients and inboxes of one hub.

    :param on_last: called when the last client has left.
    """

    def __init__(self, context: Context, on_last: Callable[[], None]) -> None:
        self._context = context
        self.fan_outs = FanOuts(context)
        """Fan-out queues, by user."""
        self.connections: dict[Receiver, Connection] = {}
        """By the receivers that routes hold."""
        self.inboxes: set[LocalReceiver] = set()  # of the embedder and the recorder
        self.violations = Violations(
            context.limits.logged_violations, context.counts.violations, context.events.is_named, monotonic
        )  # by clients
        context.events.listeners.append(self._send_to_watchers)
        self._on_last = on_last
        self._cut: set[Publisher] = set()  # those that left and have still to finish
        self._forgetting = UserJobs(context, self._forget_patterns)  # of those that left
        self._stopping = False  # nothing is put off any more

    # -- clients ------------------------------------------------------------------------------------

    def admit(self, sock: socket.SocketType, credentials: Credentials, account: Account, role: Role) -> None:
        """Serve a client whose connection was accepted, and charged to its user."""
        counts, connection = self._context.counts, self._add(sock, credentials, account, role)
        counts.total += 1
        connection.number = counts.total
        counts.peak = max(counts.peak, len(self.connections))

    def _add(self, sock: socket.SocketType, credentials: Credentials, account: Account, role: Role) -> Connection:
        connection = Connection(self._context, self.fan_outs, sock, credentials, account, role)
        self.connections[connection.outbound] = connection
        return connection

    def close(self, client: Receiver, why: str) -> None:
        """A client has left: close its connection."""
        log(logging.DEBUG, "client %s of %s: %s", client.credentials, self._context.address(), why)
        self.forget(client)
        if not self.connections:
            self._on_last()

    def kick(self, client: Receiver, reason: Reason) -> None:
        """Disconnect a client for a violation, send it the reason, and count that. Not while the receive buffer is in
        use.
        """
        connection = self.connections.get(client)
        if connection is not None and not connection.outbound.closed:
            connection.outbound.kicked = True
            connection.outbound.notify_last(control.Kicked(reason).encode())
            self.close(client, reason)
            self.report(reason, client.credentials, connection.refused)

    def report(self, reason: Reason, credentials: Credentials, key: bytes = b"") -> None:
        """Count a violation, which is about ``key`` if that is given, and log it the first time."""
        if self.violations.note(reason, credentials.uid):
            about = first_segments(key, self._context.router.namespace.separator) if key else ""
            self._context.events.emit("refused", credentials, cause=reason, key=about)

    # -- those that watch the hub -------------------------------------------------------------------

    def _may_watch(self, client: Outbound) -> bool:
        """Return whether a client gets the events of the hub, and reads them."""
        if not (client.is_monitor and client.wants_notices and client.credentials.uid in self._context.trusted):
            return False
        return client.answers < self._context.limits.queued_answers // 2

    def _send_to_watchers(self, event: HubEvent) -> None:
        packet = event.encode()
        for connection in self.connections.values():
            if self._may_watch(connection.outbound):
                connection.outbound.notify(packet)

    def send_latest_events(self, client: Outbound) -> None:
        """Send earlier events to a client that watches the hub from now on."""
        if self._may_watch(client):
            client.answer(*(event.encode() for event in self._context.events.latest))

    def forget(self, client: Receiver) -> None:
        """Close a connection, and keep only its counts."""
        connection = self.connections.pop(client, None)
        if connection is None:
            return
        account = connection.outbound.account
        connection.close()  # first, since what follows may try to kick it
        self.finish(connection)
        connection.role.forget(connection)
        self._retire(client, account)
        self.fan_outs.forget()
        self._release(account)
        self._context.counts.add(account.uid, connection.totals())

    def _release(self, account: Account) -> None:
        """A user has a connection less."""
        self._context.quotas.close(account)
        self._context.running.scheduler.several = self._context.quotas.several()

    def counts(self) -> Iterator[tuple[Account, Totals, int]]:
        """Yield the message counts of each connected client and inbox, and how many messages wait for it."""
        for connection in self.connections.values():
            yield connection.outbound.account, connection.totals(), connection.outbound.queued
        for inbox in self.inboxes:
            told = inbox.statistics()
            yield inbox.account, Totals(0, told.routed, told.delivered, told.lost), told.waiting

    def groups_of(self, client: Outbound) -> frozenset[int]:
        """The group of a client's process when it connected, and its supplementary ones."""
        return peer_groups(client.socket) | {client.credentials.gid}

    # -- inboxes ------------------------------------------------------------------------------------

    def add_inbox(self, inbox: LocalReceiver) -> None:
        """The embedder, or a recorder, receives from now on."""
        self.inboxes.add(inbox)

    def forget_inbox(self, inbox: LocalReceiver) -> None:
        """An inbox was closed."""
        self.inboxes.discard(inbox)
        self._retire(inbox, inbox.account)
        self._context.counts.add(inbox.account.uid, Totals(0, inbox.routed, inbox.delivered, inbox.lost))

    # -- what clients that left leave behind --------------------------------------------------------

    def finish(self, publisher: Publisher) -> None:
        """A publisher has left: hand on the rest of what some receivers have got already, in turns of its user.

        It counts as a connection until then. Else clients that come and go could leave any number of rests.
        """
        if publisher.is_cut:
            account = publisher.outbound.account
            self._context.quotas.keep_open(account)
            self._cut.add(publisher)
            self._context.running.work.add(account.uid, self._go_on(publisher), lambda: self._finished(publisher))

    @staticmethod
    def _go_on(publisher: Publisher) -> Iterator[None]:
        while publisher.is_cut and publisher.finish():
            yield

    def _finished(self, publisher: Publisher) -> None:
        self._cut.discard(publisher)
        self._release(publisher.outbound.account)

    def finish_all(self, until: float) -> bool:
        """Hand all of it on now, until a time of the monotonic clock. Returns whether there was enough time."""
        publishers = [publisher for publisher in [*self.connections.values(), *self._cut] if publisher.is_cut]
        for publisher in publishers:
            while publisher.is_cut and monotonic() < until:
                publisher.finish()
        return not any(publisher.is_cut for publisher in publishers)

    def settle(self, until: float) -> bool:
        """Have all that waits for clients wait in their outboxes, for a hub that takes over.

        Returns whether there was enough time.
        """
        self._context.running.kick_noted()
        done = self.finish_all(until) and self.fan_outs.settle(until)
        self._context.running.kick_noted()
        return done

    def _retire(self, receiver: Receiver, account: Account) -> None:
        if self._context.router.retire(receiver, account) and not self._stopping:
            self._forgetting.wake(account.uid)

    def _forget_patterns(self, user: int) -> Steps:
        """Take the patterns of a user's clients that left out of the index."""
        while self._context.router.forget_some(FORGOTTEN_A_STEP, user):
            yield
        return None

    # -- for a hub that takes over ------------------------------------------------------------------

    def restore(self, records: list[ClientRecord], sockets: list[socket.SocketType], role: Role) -> None:
        """Serve the clients of another hub, as it did. The kernel names the user of each."""
        # 1. Each by itself, charged to its user.
        quotas = self._context.quotas
        by_number: dict[int, Connection] = {}
        for sock, record in zip(sockets, records, strict=True):
            credentials = peer_credentials(sock)
            account = quotas.account(credentials.uid)
            quotas.keep_open(account)
            connection = self._add(take_connection(sock, record.guarded), credentials, account, role)
            connection.restore(record)
            by_number[record.number] = connection
        self._context.running.scheduler.several = quotas.several()

        # 2. Who holds whom back, from when they did.
        for record in records:
            for number, since in record.holds.items():
                receiver, publisher = by_number[record.number].outbound, by_number.get(number)
                if publisher is not None and publisher.holdable_by(receiver) is not None:
                    receiver.pause(publisher, since)

    # -- the end ------------------------------------------------------------------------------------

    def stop(self, until: float) -> None:
        """The hub stops: close all, and take all their patterns out of the index.

        Messages that some receivers have got go to the others before, until a time of the monotonic clock.
        """
        self.finish_all(until)
        self.fan_outs.clear()  # first: messages lost here are counted for clients that are still connected
        self._stopping = True
        for client in list(self.connections):
            self.forget(client)
        for inbox in list(self.inboxes):
            inbox.unsubscribe()
        self._context.router.forget_all_retired()
        self._stopping = False

    def abandon(self) -> None:
        """Another process serves the clients: let go of them without a word to them."""
        for connection in self.connections.values():
            disown(connection.outbound.socket)
            connection.close()
        self.connections.clear()
        for inbox in list(self.inboxes):
            inbox.closed = True
        self.inboxes.clear()
        self.fan_outs.clear()
