"""Identities of the hubs behind links, so that a hub that comes back is recognized.

A relay names its hub when it joins (``interest/on``): an *instance*, which stays the same when the hub's process is
started again, and an *epoch*, which is later for each new process. A hub may come back while the parent still
reads its old connection. Then the old link is *retired* first: what came over it is read to its end, and only then the
new one joins. So no message that the hub sent over the old link comes back to it over the new one, and the messages of
both stay in order.

An instance belongs to the user that the kernel names, so no user can take the place of another's hub.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import socket
from collections.abc import Callable
from time import monotonic_ns
from typing import Final, NamedTuple, TypeAlias

from gevent.monkey import get_original

from ..core.clients import Clients
from ..core.context import Context
from ..core.outbound import Outbound
from ..core.publisher import Publisher
from ..errors import PacketError, SbusError
from ..reasons import Reason
from ..wire.addresses import PathAddress, parse_address

RETIRE_WAIT: Final = 1.0
"""Seconds for which an old link may go on sending while a new link of the same hub waits. Later messages of its process
are dropped: the newest link counts. A process that has ended sends nothing more, so all that it sent is read."""

Instance: TypeAlias = tuple[int, bytes]
"""A user, and an id that one of the user's hubs said."""

_SAID = re.compile(rb"([0-9a-f]{16}) ([0-9]{1,18})(?: ([0-9]{1,6})(?: ([a-z/,]{1,256}))?)?")


class Hello(NamedTuple):
    """A relay's description of its hub, in ``interest/on``."""

    id: bytes
    epoch: int
    links: int
    """How many links of trusted users the parent had, as far as this hub knows; 0: unknown."""
    words: frozenset[bytes] = frozenset()
    """Of what the parent can do, the words that this hub knows, too. A parent that has none of them knows no words."""

    def encode(self) -> bytes:
        """The payload of ``interest/on``."""
        words = [b",".join(sorted(self.words))] if self.words else []
        return b" ".join([self.id, b"%d" % self.epoch, b"%d" % self.links, *words])

    @classmethod
    def decode(cls, payload: bytes) -> Hello | None:
        """Decode a payload; ``None`` if it is not well-formed."""
        match = _SAID.fullmatch(payload)
        if match is None:
            return None
        return cls(match[1], int(match[2]), int(match[3] or 0), frozenset((match[4] or b"").split(b",")) - {b""})


def stable_id(address: str, otherwise: bytes) -> bytes:
    """16 hexadecimal digits that stay the same as long as a hub listens at the same place.

    The same path may be another place in another container. So the folder counts as the kernel knows it, not its name;
    for abstract names, it is the network namespace. ``otherwise`` is for a hub whose place cannot be found out.
    """
    try:
        parsed = parse_address(address)
        if isinstance(parsed, PathAddress):
            folder, name = os.path.split(os.path.abspath(parsed.path))
            found = os.stat(folder)
        else:
            found, name = os.stat("/proc/self/ns/net"), str(parsed)
    except (OSError, SbusError):
        return otherwise
    place = f"{found.st_dev} {found.st_ino} {name}"
    return hashlib.sha256(os.fsencode(place)).hexdigest()[:16].encode()


def is_hung_up(sock: socket.SocketType) -> bool:
    """Return whether the other end has closed the connection. Earlier packets may still be unread."""
    waiter = get_original("select", "poll")()  # gevent's would yield where it has patched that
    waiter.register(sock.fileno(), 0)
    return any(events & select.POLLHUP for _, events in waiter.poll(0))


def new_epoch() -> int:
    """Later than that of any process that was started before on this host."""
    return monotonic_ns()


class HubIdentities:
    """The children that have sent a hello.

    :param join: has a hub join whose old link has ended.
    """

    def __init__(self, context: Context, clients: Clients, join: Callable[[Publisher], None]) -> None:
        self._context = context
        self._clients = clients
        self._join = join
        self._relays: dict[Instance, list[Publisher]] = {}  # the one that has joined, and one that waits for its end
        self._said: dict[Outbound, tuple[Instance, Hello]] = {}  # by these

    def arrive(self, publisher: Publisher, said: Hello | None) -> bool:
        """A client said ``interest/on``, and perhaps who it is. ``False``: it joins later, or was refused."""
        newcomer = publisher.outbound
        uid = newcomer.credentials.known()[1]
        if said is None or uid is None:
            return True
        instance = uid, said.id
        relays = self._relays.setdefault(instance, [])

        # Of two processes, the one that was started last stays. It waits until the old link has been read to its end.
        if relays:
            old = relays[0].outbound
            has_gone = is_hung_up(old.socket)
            if said.epoch < self._said[old][1].epoch and not has_gone:
                self._context.running.kick_later(newcomer, Reason.LATER_PROCESS)
                return False
            if len(relays) > 1:
                waiting = relays.pop().outbound
                del self._said[waiting]
                self._context.running.kick_later(waiting, Reason.JOINED_AGAIN)
            if not has_gone:
                self._context.running.after(RETIRE_WAIT, lambda: self._drop(relays, old))

        relays.append(publisher)
        self._said[newcomer] = instance, said
        return len(relays) == 1

    def said_by(self, connection: Outbound) -> tuple[bytes, int]:
        """The instance and the epoch that a connection said; empty and 0 if none."""
        said = self._said.get(connection)
        return (said[1].id, said[1].epoch) if said is not None else (b"", 0)

    def words_of(self, connection: Outbound) -> frozenset[bytes]:
        """The words that the hub at the other end of a connection knows."""
        said = self._said.get(connection)
        return said[1].words if said is not None else frozenset()

    def hub_of(self, connection: Outbound) -> Instance | None:
        """The instance that a connection said; ``None``: none."""
        return self._said[connection][0] if connection in self._said else None

    def _drop(self, relays: list[Publisher], old: Outbound) -> None:
        """An old link whose process lives on has had its time."""
        if len(relays) > 1 and relays[0].outbound is old and not is_hung_up(old.socket):
            self._clients.kick(old, Reason.HUB_JOINED_AGAIN)

    def forget(self, connection: Outbound) -> None:
        """A connection has ended, and what came over it was handed on: a new link of the same hub may join."""
        said = self._said.pop(connection, None)
        if said is None:
            return
        instance, _ = said
        relays = self._relays[instance]
        had_joined = relays[0].outbound is connection
        relays[:] = [publisher for publisher in relays if publisher.outbound is not connection]
        if not relays:
            del self._relays[instance]
        elif had_joined:
            following = relays[0]  # it may end before its turn comes
            self._context.running.after(0, lambda: self._join_now(following))

    def _join_now(self, publisher: Publisher) -> None:
        if publisher.closed:
            return
        try:
            self._join(publisher)
        except PacketError as error:
            self._clients.kick(publisher.outbound, error.reason)

    def clear(self) -> None:
        """The hub has stopped."""
        self._relays.clear()
        self._said.clear()
