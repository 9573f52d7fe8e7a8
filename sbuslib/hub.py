"""``Hub``: a message bus, as the program that serves it sees it.

``Hub`` makes the parts of a hub, starts and stops them, and publishes and subscribes for the embedding program.
The parts are in :mod:`sbuslib.core`. They share a :class:`~sbuslib.core.context.Context`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Any, Final

import gevent
from gevent.event import Event

from .client import Client
from .clients.batch import Pair, check_pair, in_parts
from .clients.hub_requests import warn_of_wildcard
from .core.acceptor import Acceptor, most_connections
from .core.authorization import Authorization, Authorize
from .core.client_role import ClientRole
from .core.clients import LAST_TURNS, Clients
from .core.context import Context
from .core.embedder import Embedder, Inbox
from .core.handover import HandoverSource, ask_for
from .core.quotas import Quotas
from .core.replacement import Replacement
from .core.reporting import Reporter
from .core.settings import Reloads, Review, Settings
from .core.turns import let_others_run
from .errors import KeyFormatError, PacketError, StateError, UsageError
from .kernel.forks import abandon_in_child
from .kernel.own_hub import Serving
from .kernel.sockets import HasFileno, Listener, anchored, bound_address
from .kernel.threads import runs_asyncio
from .limits import ClientLimits, Limits, check_seconds
from .matcher import SEPARATOR
from .statistics import HubStatistics
from .tree.tree import Tree
from .wire.addresses import AbstractAddress, Address, PathAddress, parse_address
from .wire.packets import Key, as_key

__all__ = ["Hub"]

_BATCH: Final = ClientLimits().batch_messages
"""Messages that the embedder puts into one batch: as many as a client does."""


_FOR_PARTS: Final = frozenset({"clients", "context", "replacement", "reporter", "tree"})
"""Attributes of a hub that only relays and recorders need."""


@dataclass(slots=True, eq=False)
class _Run:
    """State of a hub from a start to the next stop, beside :class:`~sbuslib.core.running.Running`."""

    listener: Listener
    me: Embedder
    acceptor: Acceptor
    stopped: Event = field(default_factory=Event)
    is_stopping: bool = False  # whether it drains
    serving: Serving | None = None  # once others may find it


class Hub:
    """A message bus at one address, served by gevent's event loop.

    ::

        hub = Hub("/tmp/bus")
        hub.start()                                   # or: with Hub("/tmp/bus") as hub: ...
        hub.publish(b"room/1/temp", b"21")
        for message in hub.subscribe(b"room/*/temp"):
            ...

    **Greenlets:** none while it serves (``stop_when_empty`` stops it from one). Each client is two watchers of the
    event loop, whose callbacks never block; the listening socket is one more. Only the thread that called
    :meth:`start` may call the methods; in any other thread, and in a forked child, they raise
    :exc:`~sbuslib.errors.StateError`. Only :meth:`stop`, :meth:`serve_forever` and the inboxes' ``receive`` wait.

    :param listener: an address as :func:`~sbuslib.wire.addresses.parse_address` reads it, a bound socket, or a
        :class:`~sbuslib.kernel.sockets.Listener` that is open already.
    :param mode: permission bits of the socket's file. In the abstract namespace there is no file: there ``0o070``
        lets in the hub's own group and ``0o007`` everybody; else only the hub's user and root may connect.
    :param users: names or ids of the users who may connect; the hub's own always may. ``None``: all
        users that the socket lets in.
    :param trusted: names or ids of users who may ask for the statistics, and hold back publishers of other users with
        ``block``; the hub's own user and root always may.
    :param relays: names or ids of users, and of groups as ``@name``, whose relays may join without learning
        the interest of others: only their own keys that nobody wants are pruned on them.
    :param separator: the byte between the segments of a key.
    :param reuse: replace an empty file at the address, as a socket that nobody listens at always is.
    :param authorize: decides on each ``SUB`` and each new key of a ``MSG``; it is called in the event loop, so
        it must not block. A client that it refuses is disconnected.
    :param stop_when_empty: stop once the last client has left.
    :param limits: see :class:`~sbuslib.limits.Limits`.
    :param replaceable: let a process of this user, or of root, take the hub over with all of its clients. This
        program's subscriptions end then, as if the hub was stopped: see :attr:`replaced_by`.
    :param take_over: take over the hub that serves the address, with its socket and all of its clients, who notice
        nothing. It has to be replaceable.

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
        replaceable: bool = False,
        take_over: bool = False,
    ) -> None:
        self._given: Address | HasFileno | Listener  # where to listen
        if isinstance(listener, (Listener, HasFileno)):
            self._given = listener
        else:
            self._given = anchored(parse_address(listener))
        if take_over and not isinstance(self._given, (PathAddress, AbstractAddress)):
            raise UsageError("take_over needs the address of the hub: a path, or a name in the abstract namespace")
        if not isinstance(mode, int) or not 0 <= mode <= 0o777:
            raise UsageError(f"mode is permission bits, such as 0o770, not {mode!r}")
        self.limits = limits if limits is not None else Limits()
        """The limits of the hub."""
        settings = Settings(users, trusted, relays, authorize)
        self._users = settings.users  # ids of those who may connect; ``None``: all that the socket lets in
        self._mode = mode
        self._reuse = reuse
        self._take_over = take_over  # what serves the address
        self._stop_when_empty = stop_when_empty
        self._is_gone = False  # whether another process has what this hub had
        self.replaced_by: int | None = None
        """The id of the process that has taken the hub over, which is stopped here; ``None``: none has."""
        self._run: _Run | None = None  # while it is started

        # The parts, in the order in which they need each other.
        self.context = context = Context(
            self.limits,
            Quotas(self.limits, most_connections(self.limits), frozenset({os.getuid(), 0})),
            Authorization(authorize),
            trusted=settings.trusted,
            separator=separator.encode() if isinstance(separator, str) else separator,
            address=lambda: self.address,
        )
        """Shared state of this hub's parts. An embedder does not need it: relays and recorders do."""
        self.clients = Clients(context, self._on_last)
        """Those that are connected. An embedder does not need it: recorders do."""
        self._review = Review(context, self.clients.connections)  # of what clients hold, after a reload
        self.tree = Tree(context, self.clients, settings.relays)
        """The parents and children. An embedder does not need it: relays do."""
        self.reporter = Reporter(context, self.clients, self.tree)
        """Gathers statistics. An embedder does not need it: daemons do."""
        self.reloads = Reloads(self._review)
        """Called when a trusted client sends ``hub/reload``: set its ``function``."""
        self.replacement = Replacement(
            context,
            self.clients,
            self.reloads,
            self.tree,
            self.reporter.explainer.end,
            replaceable,
            self._on_replaced,
        )
        """How another process takes the hub over. An embedder does not need it: daemons do."""
        # The role with which clients begin.
        self._role = ClientRole(context, self.clients, self.tree, self.reporter, self.reloads, self.replacement)

    def __repr__(self) -> str:
        state = f"{len(self.clients.connections)} clients" if self.started else "not started"
        return f"<Hub at {self.address}, {state}>"

    def __dir__(self) -> list[str]:
        """Its names without those that only relays and recorders need."""
        return [name for name in super().__dir__() if name not in _FOR_PARTS]

    # -- lifecycle ----------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the hub listens, in the form that :class:`~sbuslib.Client` takes."""
        return str(self._given.address if isinstance(self._given, Listener) else bound_address(self._given))

    @property
    def hub_id(self) -> bytes:
        """16 hexadecimal digits that no other hub has."""
        return self.tree.hub_id

    @property
    def started(self) -> bool:
        """Whether the hub is accepting clients."""
        return self._run is not None

    @property
    def closed(self) -> bool:
        """Whether the hub is not accepting clients."""
        return self._run is None

    def __enter__(self) -> Hub:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, and serve from the event loop of the calling thread. Returns at once.

        With ``take_over`` it waits, for some milliseconds, without gevent. Raises
        :exc:`~sbuslib.errors.StateError` when started already, or when the hub at the address is not handed over,
        :exc:`~sbuslib.errors.NoHubError`, :exc:`~sbuslib.errors.AddressInUseError`, and :exc:`OSError` when the kernel
        refuses the address.
        """
        if self._run is not None:
            raise StateError(f"{self!r} is started already")
        if self._is_gone:
            raise StateError(f"{self!r} was left to another process: make a new one")
        if runs_asyncio():
            raise StateError(
                "the event loop of asyncio that runs here would stop this hub: start it in a thread, as "
                "sbuslib.testing.HubThread does, or in a process"
            )

        if self._take_over:
            assert isinstance(self._given, (PathAddress, AbstractAddress))
            with closing(ask_for(self._given, self.context.router.namespace.separator)) as source:
                self.tree.hub_id = source.record.hub_id
                self._serve(source.take_listener(), source)
        elif not isinstance(self._given, Listener):
            self._serve(Listener(self._given, mode=self._mode, reuse=self._reuse, backlog=self.limits.backlog))
        elif self._given.socket.fileno() < 0:
            raise StateError(f"the listener that {self!r} was given is closed")
        else:
            self._serve(self._given)

    def _serve(self, listener: Listener, source: HandoverSource | None = None) -> None:
        # 1. What runs.
        self.context.start(self.clients.kick)
        self.tree.start()
        acceptor = Acceptor(self.context, self.clients, self._role, listener, self._mode, self._users)
        self._run = run = _Run(listener, Embedder(self.context, self.clients.fan_outs), acceptor)

        # 2. The clients of the hub before.
        if source is not None:
            try:
                self.replacement.take(source, self._role, listener, self._mode)
            except BaseException:
                self._let_go(run)
                raise
            acceptor.turn_away()
            self._review.begin(None)

        # 3. Others may find it.
        self.replacement.begin(listener, acceptor)
        run.serving = Serving(listener.socket)
        abandon_in_child(self, Hub._abandon)
        self.context.events.emit("serves" if source is None else "took over")

    def serve_forever(self, stop_timeout: float = 1.0) -> None:
        """Start unless started, and wait until :meth:`stop` is called from elsewhere."""
        if self._run is None:
            self.start()
        assert self._run is not None
        try:
            self._run.stopped.wait()
        finally:
            self.stop(stop_timeout)

    def stop(self, timeout: float = 1.0) -> None:
        """Accept no more clients, deliver waiting messages for at most ``timeout`` seconds, and close everything.

        Stopping a hub that is not started does nothing. It may be started again.
        """
        timeout = check_seconds(timeout, "timeout")
        run = self._run
        if run is None:
            return
        self.context.check_here()
        if run.is_stopping:
            run.stopped.wait()
            return

        # If something fails here, the rest is closed all the same.
        run.is_stopping = True
        self.replacement.end()
        self.context.events.emit("stops")
        try:
            try:
                run.acceptor.accept_rest()
            finally:
                run.acceptor.close()
                run.listener.close()  # raises where this process may not remove the file any more
        finally:
            self._wind_up(run, monotonic() + timeout)

    def close(self) -> None:
        """Stop without draining."""
        self.stop(0)

    def _wind_up(self, run: _Run, deadline: float) -> None:
        try:
            self._drain(deadline)
            if (left := deadline - monotonic()) > 0:
                self.tree.leave_all(left)
        finally:
            self.tree.stop()
            self.clients.stop(monotonic() + LAST_TURNS)
            self.context.running.stop()  # or a start in another thread would wait for the loop of this one
            self._run = None
            run.stopped.set()

    def _drain(self, deadline: float) -> None:
        """Read what clients have sent already, and wait until it is passed on."""
        connections, emptied = self.clients.connections, self.context.running.emptied
        while monotonic() < deadline:
            if not sum(connection.take_turn() for connection in list(connections.values())):
                break
            let_others_run()
        while (
            self.clients.fan_outs.waiting
            or any(connection.outbound.queued for connection in connections.values())
            or self.tree.is_sending()
        ) and (left := deadline - monotonic()) > 0:
            emptied.clear()
            emptied.wait(left)

    def _on_last(self) -> None:
        """The last client has left."""
        run = self._run
        if self._stop_when_empty and run is not None and not (run.is_stopping or run.acceptor.has_accepted):
            gevent.spawn(self.stop)

    # -- other settings -----------------------------------------------------------------------------

    def reconfigure(
        self,
        *,
        users: Iterable[int | str] | None = None,
        trusted: Iterable[int | str] = (),
        relays: Iterable[int | str] = (),
        authorize: Authorize | None = None,
    ) -> None:
        """Change these settings while serving. They mean the same as in the constructor.

        Clients that may no longer connect are disconnected, and relays that may learn less than before: they join
        again. Subscriptions that ``authorize`` no longer allows are withdrawn: their clients stay, and get a notice if
        they asked for notices. Nothing else is lost. It is all done when :meth:`reviewed` returns.

        Raises :exc:`~sbuslib.errors.UsageError`, before anything has changed, and
        :exc:`~sbuslib.errors.StateError`.
        """
        settings, context = Settings(users, trusted, relays, authorize), self.context
        if self._run is not None:
            context.check_here()
        self._users = settings.users
        context.trusted = settings.trusted
        former = context.authorization.replace(authorize)
        if self._run is not None:
            self._run.acceptor.set_users(settings.users)
            self._review.begin(former)
        self.tree.set_relays(*settings.relays)

    def reviewed(self, timeout: float | None = None) -> bool:
        """Wait until what clients hold is in line with the last :meth:`reconfigure`. Returns whether it is."""
        return self._review.done.wait(check_seconds(timeout, "timeout"))

    def _on_replaced(self, process: int) -> None:
        """Another process has the hub, and all of its clients."""
        self.replaced_by = process
        assert self._run is not None
        self._let_go(self._run)

    def _let_go(self, run: _Run) -> None:
        """Leave everything to the process that serves it, and be stopped for good."""
        inboxes = list(self.clients.inboxes)
        self._abandon()
        self._is_gone = True
        self.context.running.stop()
        for inbox in inboxes:
            inbox.end()
        run.stopped.set()

    def _abandon(self) -> None:
        """Another process serves the hub, as the parent of a fork does: let go of everything, and leave it alone."""
        run, self._run = self._run, None
        if run is None:
            return
        self.context.running.leave_to_parent()
        self.replacement.end()
        run.acceptor.close()
        run.listener.release()
        self.tree.abandon()
        self.clients.abandon()
        self.context.running.cancel_all()

    # -- the embedder -------------------------------------------------------------------------------

    @property
    def _here(self) -> _Run:
        """The running hub. Raises :exc:`~sbuslib.errors.StateError` where this thread may not use it."""
        self.context.check_here()
        assert self._run is not None
        return self._run

    def whoami(self) -> bytes:
        """The embedder's credential key: ``!/cred/<gid>/<uid>/<pid>``."""
        return self._here.me.key

    def publish(self, key: Key, payload: bytes = b"") -> None:
        """Publish to all subscribers of ``key``; never blocks.

        Raises :exc:`~sbuslib.errors.KeyFormatError`, :exc:`~sbuslib.errors.PayloadError`,
        and :exc:`~sbuslib.errors.StateError`.
        """
        self._here.me.publish(key if type(key) is bytes else as_key(key), payload)

    def publish_many(self, messages: Iterable[Pair]) -> int:
        """Publish pairs of key and payload in order, many at once. Returns how many. Raises as :meth:`publish`.

        The pairs before the one at fault are published.
        """
        count, me = 0, self._here.me
        for part in in_parts(messages, _BATCH):
            pairs: list[tuple[bytes, bytes]] = []
            try:
                for key, payload in map(check_pair, part):
                    me.encode(key, payload)  # which raises the right error
                    pairs.append((key, payload))
            finally:
                if pairs:
                    me.publish_some(pairs)
            count += len(pairs)
        return count

    def subscribe(self, *patterns: Key) -> Inbox:
        """Receive what matches one of ``patterns``, from now on, in this process.

        Raises :exc:`~sbuslib.errors.KeyFormatError`, also for secrets of others and beyond the limits, and
        :exc:`~sbuslib.errors.StateError`.
        """
        context = self.context
        context.check_here()
        if not patterns:
            raise UsageError("subscribe to at least one pattern; b'' is everything")

        inbox = self._new_inbox(*(as_key(pattern, "pattern") for pattern in patterns))
        try:
            for pattern in inbox.patterns:
                warn_of_wildcard(pattern, context.router.namespace.separator)
                context.router.subscribe(context.router.cut(pattern), inbox, inbox.credentials, inbox.account)
        except PacketError as error:
            inbox.unsubscribe()
            raise KeyFormatError(f"{pattern!r} cannot be subscribed to: {error.reason}") from None
        except UsageError:
            inbox.unsubscribe()
            raise
        return inbox

    def tap(self, *, secrets: bool = False) -> Inbox:
        """Receive every message that is routed, without counting as a subscriber.

        With ``secrets`` also messages under secret keys.
        """
        self.context.check_here()
        inbox = self._new_inbox()
        self.context.router.add_tap(inbox, secrets)
        return inbox

    def client(self, **options: Any) -> Client:
        """Return a client of this hub: it can ``request`` and the like, and may wait. Use it with ``with``.

        The options and errors are those of :class:`~sbuslib.Client`.
        """
        self.context.check_here()
        return Client(self.address, **options)

    def _new_inbox(self, *patterns: bytes) -> Inbox:
        inbox = Inbox(self.context, self.clients.forget_inbox, *patterns)
        self.clients.add_inbox(inbox)
        return inbox

    def statistics(self, *, clients: bool = True) -> HubStatistics:
        """Counts since the hub was made. Frozen, and true for this instant only.

        Without ``clients``, those of each client are left out: of ten thousand clients they take some 60 ms.
        """
        return self.reporter.hub(clients)
