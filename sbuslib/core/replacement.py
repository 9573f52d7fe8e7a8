"""Replacement of a hub under its clients, on both sides: the old hub and the new one.

First the children leave, while everybody is served. All else happens in one go, in which neither hub serves anybody.
The old hub finishes partly done work, so that its state is waiting packets and nothing else, and hands it over in the
format of :mod:`.handover`. The new one makes a connection of each that it is given, charges it to its user, and reads
on where the old one stopped.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final, Protocol

import gevent
from msgspec.structs import asdict

from ..errors import PacketError, StateError
from ..kernel.sockets import Listener
from ..wire.addresses import PathAddress
from .acceptor import Acceptor
from .callback_errors import log
from .clients import LAST_TURNS, Clients
from .connection import Connection
from .context import Context
from .handover import HandoverError, HandoverSource, hand_over, refuse
from .interest_watches import InterestWatches
from .outbound import Outbound
from .presence_table import PresenceTable
from .publisher import Role
from .records import VERSION, HubRecord, lost_fields
from .settings import Reloads

LEAVE_WAIT: Final = 1.0
"""Seconds that children have to leave in good order."""


class ChildLinks(Protocol):
    """The hub's tree, as a replacement uses it. Links are not handed over: they join the new hub."""

    hub_id: bytes
    watches: InterestWatches
    """Watches of interest."""

    @property
    def presences(self) -> PresenceTable:
        """Presences."""
        ...

    def leave_all(self, timeout: float) -> object:
        """End the links to all children in good order, and let none join. Waits."""

    def join_again(self) -> None:
        """Let hubs join again."""

    @property
    def has_relay(self) -> bool:
        """Whether the hub is joined to one above."""
        ...


class Replacement:
    """Gives one hub to another process, and takes one over.

    :param end_questions: answers those that wait for a turn of their users.
    :param is_allowed: whether another process may have this hub.
    :param on_taken: called with the id of the process that has it.
    """

    def __init__(
        self,
        context: Context,
        clients: Clients,
        reloads: Reloads,
        tree: ChildLinks,
        end_questions: Callable[[], None],
        is_allowed: bool,
        on_taken: Callable[[int], None],
    ) -> None:
        self._context = context
        self._clients = clients
        self._reloads = reloads
        self._tree = tree
        self._end_questions = end_questions
        self._is_allowed = is_allowed  # by the program that serves the hub
        self._on_taken = on_taken
        self.handed_on: dict[str, str] = {}
        """Values that the program that serves the hub has for the next, or has from the one before."""
        self._listener: Listener | None = None  # while the hub may be given away
        self._acceptor: Acceptor | None = None  # the same
        self._is_asked = False  # whether a process asked and was not answered yet

    def begin(self, listener: Listener, acceptor: Acceptor) -> None:
        """The hub listens."""
        self._listener, self._acceptor, self._is_asked = listener, acceptor, False

    def end(self) -> None:
        """The hub stops."""
        self._listener = self._acceptor = None

    # -- the old hub --------------------------------------------------------------------------------

    def ask(self, client: Outbound, said: bytes) -> None:
        """The process of a client asks for the hub. It is answered when the turn at hand has ended.

        :param said: what it can restore.
        """
        why = self._why_not(client)
        if why:
            client.answer(refuse(why))
        else:
            self._is_asked = True
            gevent.spawn(self._give, client, said)

    def _why_not(self, client: Outbound) -> str:
        if client.credentials.uid not in (os.getuid(), 0):
            return "only its own user and root may take it over"
        if not self._is_allowed:
            return "its program did not say that it may be taken over"
        if client.credentials.pid <= 0:
            return "the process that asks is in another namespace of process ids"
        if self._tree.has_relay:
            return "it is joined to a parent, and a relay cannot be taken over yet"
        if self._listener is None:
            return "it is stopping"
        return "another process takes it over" if self._is_asked else ""

    def _give(self, client: Outbound, said: bytes) -> None:
        address, process = self._context.address(), client.credentials.pid
        try:
            self._tree.leave_all(LEAVE_WAIT)
            began = monotonic()
            count = self._give_now(client, said)

        except Exception as error:
            is_ours = not isinstance(error, HandoverError)
            log(logging.WARNING, "the hub at %s goes on: %s", address, error, exc_info=is_ours)
            client.answer(refuse(str(error)))
            self._clients.close(client, "it did not take the hub over")
            self._tree.join_again()
            self._is_asked = False

        else:
            waited = 1e3 * (monotonic() - began)
            self._on_taken(process)  # first: what logs may wait, and the event loop would serve on
            cause = f"its {count:,} clients waited for {waited:.0f} ms"
            self._context.events.emit("taken over", client.credentials, cause=cause)

    def _give_now(self, client: Outbound, said: bytes) -> int:
        """Give all of it, but for the client that asked. Returns how many clients. Raises :exc:`HandoverError`."""
        if client.closed or self._listener is None or self._acceptor is None:
            raise HandoverError("the process that asked has gone, or the hub stops")

        # 1. Have all that clients sent, and that was received, wait as packets.
        self._acceptor.serve_accepted()
        if not self._clients.settle(monotonic() + LAST_TURNS):
            raise HandoverError("it is too busy")
        self._context.running.delivery_barrier.answer_all()
        self._reloads.end()
        self._end_questions()

        # 2. Hand it over, unless clients would lose what they hold or watch, without a word.
        connections = [one for one in self._clients.connections.values() if one.outbound is not client]
        record = self._record(connections, self._listener)
        if lost := lost_fields(record, said):
            raise HandoverError(f"the process that asks, which is older, does not know of: {', '.join(lost)}")
        sockets = [connection.outbound.socket for connection in connections]
        hand_over(client.socket, record, self._listener.socket, sockets)
        return len(connections)

    def _record(self, connections: list[Connection], listener: Listener) -> HubRecord:
        numbers = {connection.outbound: connection.number for connection in connections}
        presences, watches = self._tree.presences, self._tree.watches

        return HubRecord(
            version=VERSION,
            hub_id=self._tree.hub_id,
            separator=self._context.router.namespace.separator,
            owns_file=listener.owns_file,
            clients=[connection.record() for connection in connections],
            last_presence=presences.last,
            presences=presences.record(numbers),
            presence_watches=[(number, raw) for one, number in numbers.items() for raw in presences.watched(one)],
            interest_watches=[(number, raw) for one, number in numbers.items() for raw in watches.watched(one)],
            handed_on=self.handed_on,
            **asdict(self._context.counts),
        )

    # -- the new hub --------------------------------------------------------------------------------

    def take(self, source: HandoverSource, role: Role, listener: Listener, mode: int) -> None:
        """Serve the clients of the hub before, as it did, from now on.

        Raises :exc:`HandoverError` for a record that cannot be, and where the old hub went on: nothing is taken then.
        """
        try:
            with _without_collector():
                self._restore(source, role)
        except (PacketError, StateError, LookupError) as error:
            raise HandoverError(f"the record of the hub contradicts itself: {error}") from None
        source.commit()
        if source.record.owns_file and isinstance(source.address, PathAddress):
            listener.take_file(source.address.path, mode)
        listener.listen_again(self._context.limits.backlog)

    def _restore(self, source: HandoverSource, role: Role) -> None:
        record = source.record
        self.handed_on = record.handed_on
        self._context.counts.restore(record)
        self._clients.restore(record.clients, source.take_connections(), role)

        # Their presences and watches.
        presences, interest = self._tree.presences, self._tree.watches
        clients = {connection.number: connection.outbound for connection in self._clients.connections.values()}
        presences.restore(record.last_presence, record.presences, clients)
        for watches, watch in ((record.presence_watches, presences.watch), (record.interest_watches, interest.add)):
            for number, raw in watches:
                watch(clients[number], raw)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Thousands of objects are made, and none is garbage: to look for some would double the pause."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
