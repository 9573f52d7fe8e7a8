"""``Peer``: one end of Simplest pubsub. It listens, connects, publishes and subscribes.

Bytes are in :mod:`sbuslib.tcp.framing`, one connection in :mod:`sbuslib.tcp.peer_link`, all of them in
:mod:`sbuslib.tcp.connections`, publishing in :mod:`sbuslib.tcp.publishing`, copies under ``//fwd/`` in
:mod:`sbuslib.tcp.mesh`, and finding others in :mod:`sbuslib.tcp.discovery`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import gevent
from gevent.event import Event
from gevent.hub import Hub as EventLoopHub
from gevent.timeout import Timeout

from ..core.supervision import Supervisor
from ..errors import StateError, UsageError
from ..limits import check_seconds
from .certificates import TLS
from .connections import HOLDS_THE_MOST, Connections
from .discovery import Discoverer, Discovery
from .forwarding import NUMBERED, Forwarding
from .framing import Publish, Sub, Unsub, encode_publish, encode_subscribe, encode_unsubscribe
from .limits import TcpLimits
from .mesh import Mesh
from .peer_inbox import PeerInbox
from .peer_link import PeerLink, PeerReceiver
from .peer_statistics import PeerStatistics
from .publishing import PeerPublisher
from .substrings import Substrings


class Peer(Connections):
    """One end of any number of connections of Simplest pubsub, served by gevent's event loop.

    ::

        with Peer("127.0.0.1:9014") as peer:
            peer.connect("127.0.0.1:9015")
            peer.publish("//myorg/chat/main", b"hello")         # to each peer that wants the name
            for message in peer.subscribe("//myorg/chat/"):     # from every peer
                ...

    Both ends are equal: each subscribes at the other, and sends the messages that the other subscribed to. Messages
    from one peer are not sent on to others, except under names that are forwarded. Connect two peers in one direction
    only: over two connections, each message comes twice.

    **Greenlets:** two for each connection, see :mod:`~sbuslib.tcp.peer_link`; one that accepts; one that looks for
    stalled connections; one for discovery, and more while it connects. A connection that is kept up uses its reader's
    greenlet for connecting again. The methods here are for the thread that called :meth:`start`, and raise
    :exc:`~sbuslib.errors.StateError` in any other and in a forked child. Of them, only :meth:`connect`,
    :meth:`publish_many` with ``patience``, :meth:`flush`, :meth:`wait_for_subscriber`, :meth:`stop`,
    :meth:`serve_forever` and the inboxes' ``get`` wait.

    :param listener: ``HOST:PORT``; port 0 takes a free one. Without one, this peer only connects.
    :param forward: names whose data is passed on as copies under ``//fwd/``; see :mod:`sbuslib.tcp.forwarding`.
    :param discover: how to find other peers; see :class:`~sbuslib.tcp.discovery.Discovery`.
    :param tls: certificates, for every connection in either direction.
    :param insecure: listen on addresses that other machines reach, without TLS.
    :param limits: see :class:`~sbuslib.tcp.limits.TcpLimits`.

    Raises :exc:`~sbuslib.errors.AddressError`, and :exc:`~sbuslib.errors.UsageError` for an argument that cannot be
    right, and for a listener that other machines reach, without ``tls`` and ``insecure``.
    """

    def __init__(
        self,
        listener: str | None = None,
        *,
        forward: Iterable[str] = (),
        discover: Discovery | None = None,
        tls: TLS | None = None,
        insecure: bool = False,
        limits: TcpLimits | None = None,
    ) -> None:
        super().__init__(listener, tls, insecure, limits)
        forwarding = Forwarding(forward)
        if discover is not None:
            forwarding.add(discover.forwarded)
        self._remote: Substrings[PeerLink] = Substrings(self.limits)  # subscriptions of other peers
        self._local: Substrings[PeerReceiver] = Substrings(self.limits)  # subscriptions of this end
        self.mesh = Mesh(forwarding, self._remote, self._local, self.limits)
        # Finds connections and queues messages for them.
        self._publisher = PeerPublisher(self._remote, self.mesh, self.limits)
        # Announces this peer and finds others.
        self._discoverer = None if discover is None else Discoverer(self, discover)
        self._wanted: dict[str, int] = {}  # substrings announced to other peers, and for how many reasons each
        self._inboxes: set[PeerInbox] = set()  # to be closed at the end
        self._ignored = 0  # unsubscriptions of substrings that were not subscribed
        self._running = False
        for substring in forwarding.substrings():
            self._want(substring)
        if forwarding:
            self._want(NUMBERED)

    def __repr__(self) -> str:
        state = f"{len(self._links)} connections" if self._running else "not started"
        return f"<Peer at {self.address or 'no address'}, {state}>"

    # -- lifecycle ----------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether this peer is started."""
        return self._running

    @property
    def closed(self) -> bool:
        """Whether this peer is not started."""
        return not self._running

    def __enter__(self) -> Peer:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop()
        if kind is None:
            self.greenlets.check()

    def start(self) -> None:
        """Listen, and serve from the event loop of the calling thread. Returns at once.

        Raises :exc:`~sbuslib.errors.StateError` when started already, and :exc:`OSError` when the kernel refuses
        the address.
        """
        if self._running:
            raise StateError(f"{self!r} is started already")
        self.greenlets = Supervisor(f"peer at {self.address or 'no address'}", self.close)
        self._stopping = False
        self._listen()
        self._pid = os.getpid()
        self._event_loop: EventLoopHub = gevent.get_hub()
        self._stopped = Event()
        self._running = True
        if self._discoverer is not None:
            self._discoverer.start()

    def serve_forever(self, stop_timeout: float = 1.0) -> None:
        """Start unless started, and wait until :meth:`stop` is called from elsewhere.

        Raises :exc:`~sbuslib.errors.ServiceError` when an unforeseen error has ended the peer.
        """
        if not self._running:
            self.start()
        try:
            self._stopped.wait()
        finally:
            self.stop(stop_timeout)
        self.greenlets.check()

    def stop(self, timeout: float = 1.0) -> None:
        """Stop accepting, send queued messages for at most ``timeout`` seconds, and close everything.

        Stopping a peer that is not started does nothing. It may be started again.
        """
        timeout = check_seconds(timeout, "timeout")
        if not self._running:
            return
        self._check_here()
        if self._stopping:
            self._stopped.wait()
            return

        self._stopping = True
        if self._discoverer is not None:
            self._discoverer.stop()
        try:
            self._end_all(timeout)
        finally:
            for inbox in list(self._inboxes):
                inbox.unsubscribe()
            self._running = False
            self._stopped.set()

    def close(self) -> None:
        """Stop without waiting for anything."""
        self.stop(0)

    def _check_here(self) -> None:
        """Raise unless started, and by this thread of this process."""
        if not self._running:
            raise StateError(f"{self!r}: start it first")
        if self._pid != os.getpid():
            raise StateError(f"{self!r} belongs to process {self._pid}: this process is its fork")
        if gevent.get_hub() is not self._event_loop:
            raise StateError(f"{self!r} belongs to the thread that started it")

    # -- subscriptions of other peers ---------------------------------------------------------------

    def _greet(self, link: PeerLink) -> None:
        for substring in self._wanted:
            link.say(encode_subscribe(substring, self.limits))

    def _take_back(self, link: PeerLink) -> None:
        self._remote.discard(link)

    def take_command(self, link: PeerLink, command: Sub | Unsub) -> None:
        """Take a subscription of another peer, or its end. Called by :class:`~sbuslib.tcp.peer_link.PeerLink`."""
        if link not in self._links:
            return
        substring = command.substring
        if not isinstance(command, Sub):
            gone = self._remote.remove(substring, link)
            if gone:
                link.charge(-len(substring))
                link.numbered = link.numbered and substring != NUMBERED
            elif gone is None:
                self._ignored += 1
            return

        # A subscription. Each charge and each bound may end this link.
        missed = self.mesh.wanted_before(link, substring)
        if self._remote.add(substring, link):
            link.charge(len(substring))  # which may end this link
        while self._remote.distinct > self.limits.all_substrings:
            self.end_link(max(self.links, key=self._remote.count), HOLDS_THE_MOST, True)

        if link not in self._links:
            return
        if substring == NUMBERED:
            link.numbered = True
        self.mesh.catch_up(link, missed)
        self._links_changed.set()

    def receivers_of(self, name: str) -> tuple[PeerReceiver, ...] | None:
        """The receivers at this end that want ``name``. Called by :class:`~sbuslib.tcp.peer_link.PeerLink`."""
        if name.startswith(NUMBERED) or self._publisher.start_of(name) is None:
            return None
        return self._local.subscribers(name)

    def take_forwarded(self, link: PeerLink, message: Publish) -> None:
        """Take a message that is forwarded. Called by :class:`~sbuslib.tcp.peer_link.PeerLink`."""
        self.mesh.arrived(link, message)

    # -- publishing ---------------------------------------------------------------------------------

    def publish(self, name: str, data: bytes = b"") -> None:
        """Publish to each peer that wants ``name``; never blocks. One whose queue is full loses the message.

        Raises :exc:`~sbuslib.errors.NameFormatError`, :exc:`~sbuslib.errors.PayloadError` and
        :exc:`~sbuslib.errors.StateError`.
        """
        if not self._running:
            self._check_here()
        self._publisher.publish(name, data)

    def publish_many(self, messages: Iterable[tuple[str, bytes]], *, patience: float = 0.0) -> int:
        """Publish pairs of name and data in order. Returns their number.

        With ``patience``, in seconds, this waits while the queue of a peer is more than half full, so that a peer
        that keeps reading loses nothing. One that outlasts the patience is not waited for again until it has caught up.
        Raises as :meth:`publish`; what came before the pair at fault was published.
        """
        if not self._running:
            self._check_here()
        return self._publisher.publish_many(messages, patience)

    def retain(self, name: str, data: bytes) -> None:
        """Publish, and keep the data for peers that subscribe to ``name`` later, in place of earlier data.

        Raises as :meth:`publish`, and :exc:`~sbuslib.errors.UsageError` for more names than the limits allow.
        """
        self._check_here()
        encode_publish(name, data, self.limits)
        if self._publisher.start_of(name) is not None:
            self.mesh.retain(name, data, None)
            self.publish(name, data)
            return
        self.mesh.publish_retained(name, data)
        self._publisher.published += 1

    def release(self, name: str) -> None:
        """Stop keeping data under ``name``."""
        self.mesh.release(name)

    def subscriber_count(self, name: str) -> int:
        """Number of peers that subscribed to ``name``."""
        return len(self._remote.subscribers(name))

    def wait_for_subscriber(self, name: str, count: int = 1, timeout: float | None = None) -> None:
        """Wait until ``count`` peers want ``name``. Raises :exc:`TimeoutError` after ``timeout`` seconds."""
        self._check_here()
        wanting = "no peer wants" if count == 1 else f"fewer than {count} peers want"
        with Timeout(check_seconds(timeout, "timeout"), TimeoutError(f"{wanting} {name} within {timeout} s")):
            while len(self._remote.subscribers(name)) < count:
                self._links_changed.clear()
                self._links_changed.wait()

    # -- subscribing --------------------------------------------------------------------------------

    def subscribe(self, *substrings: str) -> PeerInbox:
        """Receive, from every peer, messages whose name contains one of ``substrings``. The empty one is in every name.

        The subscription is sent at once, but the protocol has no acknowledgement for it. Raises
        :exc:`~sbuslib.errors.NameFormatError` and :exc:`~sbuslib.errors.StateError`.
        """
        self._check_here()
        inbox = PeerInbox(self.limits, self._forget_inbox)
        self.attach(inbox, *substrings)
        self._inboxes.add(inbox)
        return inbox

    def attach(self, receiver: PeerReceiver, *substrings: str) -> None:
        """Subscribe on behalf of any :class:`~sbuslib.tcp.peer_link.PeerReceiver`."""
        if not substrings:
            raise UsageError("subscribe to at least one substring; '' is everything")
        for substring in substrings:
            encode_subscribe(substring, self.limits)
        for substring in substrings:
            if self._local.add(substring, receiver):
                self._want(substring)

    def detach(self, receiver: PeerReceiver) -> None:
        """End all subscriptions of ``receiver``."""
        for substring in self._local.discard(receiver):
            self._want(substring, -1)

    def _forget_inbox(self, inbox: PeerInbox) -> None:
        self._inboxes.discard(inbox)
        self.detach(inbox)

    def _want(self, substring: str, change: int = 1) -> None:
        """Subscribe at other peers when ``substring`` gets its first reason, unsubscribe when it loses the last."""
        before = self._wanted.get(substring, 0)
        if before + change:
            self._wanted[substring] = before + change
        else:
            del self._wanted[substring]
        if not before or not before + change:
            encode = encode_unsubscribe if before else encode_subscribe
            for link in self.links:
                link.say(encode(substring, self.limits))
        # Copies may come twice over different links: with their ids, duplicates are detected.
        if substring != NUMBERED and "//fwd/" in substring and (not before or not before + change):
            self._want(NUMBERED, change)

    # -- the rest -----------------------------------------------------------------------------------

    def statistics(self) -> PeerStatistics:
        """Counts since the peer was made. Frozen, and true for this instant only."""
        mesh = self.mesh

        return PeerStatistics(
            links=len(self._links),
            links_total=self._links_total,
            substrings=len(self._remote),
            published=self._publisher.published,
            received=self._total("received"),
            unwanted=mesh.unwanted + self._total("unwanted"),
            forwarded=mesh.forwarded,
            repeated=mesh.repeated,
            hop_limit=mesh.hop_limit,
            sent=self._total("sent"),
            lost=self._total("lost"),
            waiting_bytes=sum(link.queued_bytes for link in self._links),
            ignored=self._ignored,
            violations=dict(self._violations.counts),
        )
