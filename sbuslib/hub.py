"""``Hub``: accepts clients, owns them, and routes between them and the embedder.

What happens to a packet is told in :mod:`sbuslib.core.connection`, who receives it in :mod:`sbuslib.core.router`.
"""

from __future__ import annotations

import logging
import os
import resource
import secrets
import socket
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic
from types import TracebackType
from typing import Any, Literal, TypeAlias

import gevent
import msgspec
from gevent.event import Event
from gevent.hub import Hub as EventLoopHub

from .core.acceptor import Acceptor
from .core.connection import Connection
from .core.fan_out import Fanouts
from .core.inbox import Inbox
from .core.outbox import Cause
from .core.outgoing import Delivery
from .core.parties import Holdable, Receiver
from .core.quotas import Account, Quotas
from .core.router import Router
from .core.scheduler import Scheduler
from .core.send_buffers import SendBuffers
from .core.trimming import Trimmer
from .core.violations import Breaches
from .errors import KeyFormatError, PacketError, StateError, UsageError
from .kernel.areas import Gather, PlainArea, make_area
from .kernel.sockets import HasFileno, Listener, bound_address, peer_groups
from .kernel.users import resolve_group, resolve_user
from .limits import PACKET_BYTES, Limits
from .matcher import SEPARATOR
from .secrets import Credentials
from .statistics import HubStatistics, UserStatistics
from .tree.tree import Tree
from .wire import control
from .wire.addresses import Address, parse_address
from .wire.packets import check_key, encode_message

__all__ = ["Authorize", "Hub"]

logger = logging.getLogger("sbuslib")

Authorize: TypeAlias = Callable[[Credentials, Literal["publish", "subscribe"], bytes], bool]
"""``authorize(credentials, verb, key_or_pattern)``: asked for each ``SUB``, and for a client's first ``MSG`` under
a key; its yes is remembered, within :attr:`~sbuslib.limits.Limits.allowed_bytes`."""

_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()


def _resolve_users(name: str, users: Iterable[int | str] | str | bytes) -> list[int]:
    if isinstance(users, (str, bytes)) or not isinstance(users, Iterable):
        raise UsageError(f"{name} is a list of names and ids, not {users!r}")
    return [resolve_user(user) for user in users]


def _resolve_users_and_groups(
    name: str, members: Iterable[int | str] | str | bytes
) -> tuple[frozenset[int], frozenset[int]]:
    members = members if isinstance(members, (str, bytes)) else list(members)
    groups = [one for one in members if isinstance(one, str) and one.startswith("@")]
    users = members if isinstance(members, (str, bytes)) else [one for one in members if one not in groups]
    return frozenset(_resolve_users(name, users)), frozenset(resolve_group(group[1:]) for group in groups)


class _Embedder:
    """The embedding process as a sender."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.credentials = Credentials(gid=os.getgid(), uid=os.getuid(), pid=os.getpid())

    @property
    def key(self) -> bytes:
        return self._hub.router.namespace.credential_key(self.credentials)

    @property
    def wrapper(self) -> bytes:
        return control.wrapper_from(self.key)

    def holdable_by(self, receiver: Receiver) -> Holdable | None:
        return None  # publish() never blocks


class Hub:
    """A message bus at one address, served by gevent's event loop.

    ::

        hub = Hub("/tmp/bus")
        hub.start()                                   # or: with Hub("/tmp/bus") as hub: ...
        hub.publish(b"room/1/temp", b"21")
        for message in hub.subscribe(b"room/*/temp"):
            ...

    **Greenlets:** none while it serves (``stop_when_empty`` stops it from one). Each client is two watchers
    of the event loop, whose callbacks never block; the
    listening socket is one more. The methods here are for the thread that called :meth:`start`, and raise
    :exc:`~sbuslib.errors.StateError` in any other and in a forked child. Of them, only :meth:`stop`,
    :meth:`serve_forever` and the inboxes' ``get`` wait.

    :param listener: an address as :func:`~sbuslib.wire.addresses.parse_address` reads it, a bound socket, or a
        :class:`~sbuslib.kernel.sockets.Listener` that is open already.
    :param mode: permission bits of the socket's file. In the abstract namespace, which has none, ``0o070``
        lets in the hub's own group and ``0o007`` everybody; else only the hub's user and root may connect.
    :param users: names or ids of the users who may connect; the hub's own always may. ``None``: whoever
        the socket lets in.
    :param trusted: names or ids of users who may ask for the statistics, and hold back publishers of other users with
        ``block``; the hub's own user and root always may.
    :param relays: names or ids of users, and of groups as ``@name``, whose relays may join without learning what
        anybody else wants: they are told of keys that they published and nobody wants, and nothing else.
    :param separator: the byte between the segments of a key.
    :param reuse: replace a socket that stands at the address.
    :param authorize: decides on each ``SUB`` and each new key of a ``MSG``; it is called in the event loop, so
        it must not block. A client that it refuses is disconnected.
    :param stop_when_empty: stop once the last client has left.
    :param limits: see :class:`~sbuslib.limits.Limits`.

    Raises :exc:`~sbuslib.errors.UsageError` for an argument that cannot be right.
    """

    def __init__(
        self,
        listener: str | bytes | os.PathLike[str] | HasFileno | Listener,
        *,
        mode: int = 0o700,
        users: Iterable[int | str] | None = None,
        trusted: Iterable[int | str] = (),
        relays: Iterable[int | str] = (),
        separator: bytes | str = SEPARATOR,
        reuse: bool = False,
        authorize: Authorize | None = None,
        stop_when_empty: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._given: Address | HasFileno | Listener
        if isinstance(listener, (Listener, HasFileno)):
            self._given = listener
        else:
            self._given = parse_address(listener)
        if not isinstance(mode, int) or not 0 <= mode <= 0o777:
            raise UsageError(f"mode is permission bits, such as 0o770, not {mode!r}")
        if authorize is not None and not callable(authorize):
            raise UsageError("authorize is a function of credentials, verb and key")
        self._users = None if users is None else {os.getuid(), *_resolve_users("users", users)}
        self._trusted = frozenset({os.getuid(), 0, *_resolve_users("trusted", trusted)})
        self._relay_users, self._relay_groups = _resolve_users_and_groups("relays", relays)
        self._mode = mode
        self._reuse = reuse
        self._separator = separator.encode() if isinstance(separator, str) else separator
        self._stop_when_empty = stop_when_empty
        self.limits = limits if limits is not None else Limits()
        self.authorize = authorize
        self.hub_id = secrets.token_hex(8).encode()
        self.quotas = Quotas(self.limits, self._connections_most(), frozenset({os.getuid(), 0}))
        self.buffers = SendBuffers(self.limits, self.quotas.send_buffers)
        self.router: Router[Receiver] = Router(self.limits, self.quotas, self._separator)
        self.tree = Tree(self)
        self.fanouts = Fanouts(self)
        self._listener: Listener | None = None
        self._pid = 0
        self._connections: set[Connection] = set()
        self._inboxes: set[Inbox] = set()
        self._reset_counts()

    def _reset_counts(self) -> None:
        self.breaches = Breaches(self.limits.logged_breaches)
        self.ignored = 0
        self.authorize_failures = 0
        self._clients_total = self._clients_peak = 0
        self._received = self._routed = self._delivered = 0
        self._lost: Counter[str] = Counter()
        self._condemned: list[tuple[Delivery, str]] = []
        self._forgetting: Any = None

    def _connections_most(self) -> int:
        """How many clients there are descriptors for."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, (soft if soft != resource.RLIM_INFINITY else 2**20) - self.limits.spare_descriptors)

    def __repr__(self) -> str:
        state = f"{len(self._connections)} clients" if self.started else "not started"
        return f"<Hub at {self.address}, {state}>"

    # -- lifecycle ----------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the hub listens, in the form that :class:`~sbuslib.Client` takes."""
        return str(self._given.address if isinstance(self._given, Listener) else bound_address(self._given))

    @property
    def started(self) -> bool:
        """Whether the hub is accepting clients."""
        return self._listener is not None

    @property
    def closed(self) -> bool:
        """Whether the hub is not accepting clients."""
        return self._listener is None

    def __enter__(self) -> Hub:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, and serve from the event loop of the calling thread. Returns at once.

        Raises :exc:`~sbuslib.errors.StateError` when started already,
        :exc:`~sbuslib.errors.AddressInUseError`, and :exc:`OSError` when the kernel refuses the address.
        """
        if self._listener is not None:
            raise StateError(f"{self!r} is started already")
        if isinstance(self._given, Listener):
            if self._given.socket.fileno() < 0:
                raise StateError(f"the listener that {self!r} was given is closed")
            listener = self._given
        else:
            listener = Listener(self._given, mode=self._mode, reuse=self._reuse, backlog=self.limits.backlog)
        self._listener = listener
        self._pid = os.getpid()
        self._event_loop: EventLoopHub = gevent.get_hub()
        self.loop: Any = self._event_loop.loop
        self._counts_rounds = hasattr(self.loop, "iteration")  # libev does
        self.area: PlainArea = make_area(self.limits.batch)
        self.gather = Gather()
        self.scheduler = Scheduler(self.loop)
        self._trimmer = Trimmer(self.loop, self.limits, self.quotas.waiting)
        self.quotas.on_freed = self._trimmer.freed
        self._me = _Embedder(self)
        self._stopping = False
        self._stopped = Event()
        self._flushed = Event()
        self.tree.start()
        try:
            self._acceptor = Acceptor(self, listener, self._mode, self._users)
        except OSError:
            self._listener = None
            self.area.close()
            listener.close()
            raise
        _hubs.add(self)

    def serve_forever(self, stop_timeout: float = 1.0) -> None:
        """Start unless started, and wait until :meth:`stop` is called from elsewhere."""
        if not self.started:
            self.start()
        try:
            self._stopped.wait()
        finally:
            self.stop(stop_timeout)

    def stop(self, timeout: float = 1.0) -> None:
        """Accept no more, deliver what was sent, for at most ``timeout`` seconds, and close everything.

        Stopping a hub that is not started does nothing. It may be started again.
        """
        if self._listener is None:
            return
        self.check_here()
        if self._stopping:
            self._stopped.wait()
            return
        self._stopping = True
        try:
            try:
                self._acceptor.accept_rest()
            finally:
                self._acceptor.close()
                self._listener.close()  # raises where this process may not remove the file any more
        finally:
            self._wind_up(monotonic() + timeout)

    def _wind_up(self, deadline: float) -> None:
        try:
            self._drain(deadline)
        finally:
            self.tree.stop()
            self.fanouts.clear()  # first, since what is lost so is counted for those who are there
            for connection in list(self._connections):
                self._forget(connection)
            for inbox in list(self._inboxes):
                inbox.close()
            while self.router.forget_some(self.limits.user_patterns):
                pass
            self._close_timers()  # or a start in another thread would wait for the loop of this one
            self.area.close()
            self._listener = None
            self._pid = 0
            _hubs.discard(self)
            self._stopped.set()

    def close(self) -> None:
        """Stop without draining."""
        self.stop(0)

    def _drain(self, deadline: float) -> None:
        """Read what clients have sent already, and wait until it was passed on."""
        while monotonic() < deadline:
            if not sum(connection.turn() for connection in list(self._connections)):
                break
            gevent.sleep(0)
        while self._anything_queued() and (left := deadline - monotonic()) > 0:
            self._flushed.clear()
            self._flushed.wait(left)

    def _anything_queued(self) -> bool:
        waits = self.fanouts.standing or any(connection.queued for connection in self._connections)
        return bool(waits) or self.tree.is_sending()

    def flushed(self, freed: int = 0) -> None:
        """For somebody nothing waits any more; ``freed`` bytes did: for :class:`~sbuslib.core.outgoing.Delivery`."""
        self._trimmer.freed(freed)
        if self._stopping:
            self._flushed.set()

    def round(self) -> int:
        """The number of the event loop's round; always 0 where it does not count them."""
        number: int = self.loop.iteration if self._counts_rounds else 0
        return number

    def check_here(self) -> None:
        """Raise :exc:`~sbuslib.errors.StateError` unless started, and by this thread of this process."""
        if self._pid not in (0, os.getpid()):
            raise StateError(f"the hub at {self.address} belongs to process {self._pid}, of which this is a fork")
        if self._listener is None:
            raise StateError(f"{self!r}: start it first")
        if gevent.get_hub() is not self._event_loop:
            raise StateError(
                f"the hub at {self.address} belongs to the thread that started it: use a Client in this one"
            )

    def abandon(self) -> None:
        """In the child of a fork: let go of everything and leave the parent's hub alone."""
        if self._listener is None or self._pid == os.getpid():
            return
        self._acceptor.close()
        self._listener.release()
        self._listener = None
        self.tree.abandon()
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self.fanouts.clear()
        self._close_timers()
        for inbox in list(self._inboxes):
            inbox.closed = True
        self._inboxes.clear()

    # -- clients ------------------------------------------------------------------------------------

    def admit(self, sock: socket.SocketType, credentials: Credentials, account: Account) -> None:
        """Serve a client whose connection was accepted and charged: for :class:`~sbuslib.core.acceptor.Acceptor`."""
        self._connections.add(Connection(self, sock, credentials, account))
        self._clients_total += 1
        self._clients_peak = max(self._clients_peak, len(self._connections))

    def close_connection(self, connection: Connection, why: str) -> None:
        """A client has gone: for :class:`~sbuslib.core.connection.Connection`."""
        logger.debug("client %s of %s: %s", connection.credentials, self.address, why)
        self._forget(connection)
        if self._stop_when_empty and not self._connections and not self._stopping:
            gevent.spawn(self.stop)

    def kick(self, connection: Connection, reason: str) -> None:
        """Let a client go for what it did: for :class:`~sbuslib.core.connection.Connection`."""
        if not connection.closed:
            connection.notify_last(control.Kicked(reason).encode())
            self.close_connection(connection, reason)
            self.breach(reason, connection.credentials)

    def condemn(self, receiver: Delivery, reason: str) -> None:
        """Kick a receiver as soon as the turn at hand has ended: for :class:`~sbuslib.core.outgoing.Delivery`."""
        self._condemned.append((receiver, reason))

    def carry_out(self) -> None:
        """A turn has ended: kick whoever was condemned in it."""
        while self._condemned:
            receiver, reason = self._condemned.pop()
            assert isinstance(receiver, Connection)
            self.kick(receiver, reason)

    def is_trusted(self, uid: int) -> bool:
        """Whether a user may see what concerns everybody."""
        return uid in self._trusted

    def may_relay(self, connection: Connection) -> bool:
        """Whether a client's user may join hubs to this one without seeing what concerns everybody."""
        credentials = connection.credentials
        if credentials.uid in self._relay_users or credentials.gid in self._relay_groups:
            return True
        return bool(self._relay_groups) and not self._relay_groups.isdisjoint(peer_groups(connection.socket))

    @property
    def connections(self) -> set[Connection]:
        """The clients that are connected."""
        return self._connections

    @property
    def inboxes(self) -> set[Inbox]:
        """The embedder's subscriptions and taps."""
        return self._inboxes

    def may_hold(self, publisher: Credentials, receiver: Credentials) -> bool:
        """Whether a receiver in ``block`` mode may hold a publisher back."""
        uid = receiver.known()[1]  # an unknown user is nobody's own
        return uid is not None and (uid == publisher.uid or uid in self._trusted)

    def breach(self, reason: str, credentials: Credentials) -> None:
        """Count what a client did wrong, and log it the first time."""
        if self.breaches.note(reason, credentials.uid):
            logger.warning(
                "sbus hub at %s disconnected process %d of user %d: %s (further ones are only counted)",
                self.address,
                credentials.pid,
                credentials.uid,
                reason,
            )

    def _forget(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        connection.close()  # first, since what follows may carry out that it be kicked as well
        self.tree.forget(connection)
        self._retire(connection)
        self.fanouts.forget()
        self.quotas.close(connection.account)
        self.scheduler.several = self.quotas.several()
        self._received += connection.received
        self._routed += connection.routed
        self._delivered += connection.delivered
        self._lost.update(connection.lost)

    def count_lost(self, cause: Cause, count: int) -> None:
        """Messages were lost for a client that has left meanwhile: for :class:`~sbuslib.core.outgoing.Delivery`."""
        self._routed += count
        self._lost[cause] += count

    def _retire(self, receiver: Connection | Inbox) -> None:
        if self.router.retire(receiver, receiver.account) and self._forgetting is None:
            self._forget_some()

    def _forget_some(self) -> None:
        """Take the patterns of those who left out of the index: some now, and some in each round to come."""
        self._end_forgetting()
        count = self.limits.forgotten_per_round
        if self.scheduler.several:  # nobody waits for it but the user whose patterns they were
            count = max(1, count // 8)
        if self.router.forget_some(count) and not self._stopping:
            # A timer and no callback of the loop, since such run in the same round until it has lasted a while.
            self._forgetting = self.loop.timer(0.0)
            self._forgetting.start(self._forget_some, update=False)

    def _end_forgetting(self) -> None:
        if self._forgetting is not None:
            self._forgetting.close()
            self._forgetting = None

    def _close_timers(self) -> None:
        self._end_forgetting()
        self.scheduler.close()
        self._trimmer.close()

    def is_authorized(self, credentials: Credentials, verb: Literal["publish", "subscribe"], key: bytes) -> bool:
        """What ``authorize=`` says; an error in it counts as a no."""
        assert self.authorize is not None
        try:
            return bool(self.authorize(credentials, verb, key))
        except Exception:
            self.authorize_failures += 1
            if self.authorize_failures == 1:
                logger.exception("sbus hub at %s: authorize= failed, which counts as a no", self.address)
            return False

    # -- the embedder -------------------------------------------------------------------------------

    @property
    def features(self) -> control.Features:
        """What this hub answers to ``hub/features``."""
        return control.Features(frozenset(control.SUPPORTED), self.hub_id, self.tree.path, self._separator)

    @property
    def embedder_credentials(self) -> Credentials:
        """Of this process."""
        return self._me.credentials

    def whoami(self) -> bytes:
        """The embedder's credential key: ``!/cred/<gid>/<uid>/<pid>``."""
        self.check_here()
        return self._me.key

    def publish(self, key: bytes, payload: bytes = b"") -> None:
        """Publish to everybody who wants ``key``; never blocks.

        Raises :exc:`~sbuslib.errors.KeyFormatError`, :exc:`~sbuslib.errors.PayloadError`,
        and :exc:`~sbuslib.errors.StateError`.
        """
        self.check_here()
        packet = encode_message(key, payload)
        header = packet[: len(packet) - len(payload)]
        receivers = self.router.routes.get(header)
        if receivers is None:
            try:
                receivers = self.router.route(header)
            except PacketError as error:
                raise KeyFormatError(f"nobody may publish under {key!r}: {error.reason}") from None
        self._received += 1
        for receiver in self.fanouts.near(receivers, self._me):
            receiver.deliver_packet(self._me, packet)
        self.carry_out()

    def subscribe(self, *patterns: bytes) -> Inbox:
        """Receive what matches one of ``patterns``, from now on, in this process.

        Raises :exc:`~sbuslib.errors.KeyFormatError`, also for secrets of others and beyond the limits, and
        :exc:`~sbuslib.errors.StateError`.
        """
        self.check_here()
        if not patterns:
            raise UsageError("subscribe to at least one pattern; b'' is everything")
        inbox = self._new_inbox()
        try:
            for pattern in patterns:
                check_key(pattern, "pattern")
                self.router.subscribe(pattern, inbox, self._me.credentials, inbox.account)
        except PacketError as error:
            inbox.close()
            raise KeyFormatError(f"{pattern!r} cannot be subscribed to: {error.reason}") from None
        except UsageError:
            inbox.close()
            raise
        return inbox

    def tap(self, *, secrets: bool = False) -> Inbox:
        """Receive every message that is routed, without counting as anybody who wants it.

        With ``secrets`` also those under secret keys, for whoever has a reason to.
        """
        self.check_here()
        inbox = self._new_inbox()
        self.router.add_tap(inbox, secrets)
        return inbox

    def attach(self, inbox: Inbox, *, tap: bool) -> None:
        """Have an inbox of another kind receive everything but secrets: as a tap, or as a subscriber to everything."""
        self.check_here()
        self._add_inbox(inbox)
        if tap:
            self.router.add_tap(inbox, False)
        else:
            self.router.subscribe(b"", inbox, self._me.credentials, inbox.account)

    def _new_inbox(self) -> Inbox:
        inbox = Inbox(self, self._me.credentials)
        self._add_inbox(inbox)
        return inbox

    def _add_inbox(self, inbox: Inbox) -> None:
        self._inboxes.add(inbox)
        self.tree.count_senders(1)

    def forget_inbox(self, inbox: Inbox) -> None:
        """An inbox was closed: for :class:`~sbuslib.core.inbox.Inbox`."""
        self._inboxes.discard(inbox)
        self.tree.count_senders(-1)
        self._retire(inbox)
        self._routed += inbox.routed
        self._delivered += inbox.delivered
        self._lost.update(inbox.lost)

    def statistics(self) -> HubStatistics:
        """Counts since the hub was made. Frozen, and true for this instant only."""
        receivers: list[Connection | Inbox] = [*self._connections, *self._inboxes]
        clients = tuple(receiver.statistics() for receiver in receivers)
        lost = self._lost.copy()
        for client in clients:
            lost.update(client.lost)
        return HubStatistics(
            hub_id=self.hub_id.decode(),
            address=self.address,
            clients=len(self._connections),
            clients_peak=self._clients_peak,
            clients_total=self._clients_total,
            patterns=self.router.pattern_count(),
            received=self._received + sum(client.received for client in clients),
            routed=self._routed + sum(client.routed for client in clients),
            delivered=self._delivered + sum(client.delivered for client in clients),
            queued=sum(client.queued for client in clients),
            lost=dict(lost),
            ignored=self.ignored,
            breaches=dict(self.breaches.counts),
            dropped=dict(self.tree.dropped),
            per_client=clients,
            per_user=tuple(
                UserStatistics(
                    uid=account.uid,
                    connections=account.connections,
                    patterns=account.patterns,
                    pattern_bytes=account.pattern_bytes,
                    queued_packets=account.packets.used + account.line.packets.used,
                    queued_bytes=account.queued_bytes.used + account.line.queued_bytes.used,
                    buffer_bytes=self.quotas.send_buffers.held(account.uid),
                )
                for account in self.quotas.accounts()
            ),
        )

    def encode_statistics(self) -> bytes:
        """The statistics as JSON, less those of each client, and of each user, where they do not fit one packet."""
        statistics = self.statistics()
        encoded = msgspec.json.encode(statistics)
        if len(encoded) > PACKET_BYTES:
            encoded = msgspec.json.encode(msgspec.structs.replace(statistics, per_client=()))
        if len(encoded) > PACKET_BYTES:
            encoded = msgspec.json.encode(msgspec.structs.replace(statistics, per_client=(), per_user=()))
        return encoded


def _abandon_all() -> None:
    for hub in list(_hubs):
        hub.abandon()
    _hubs.clear()


os.register_at_fork(after_in_child=_abandon_all)
