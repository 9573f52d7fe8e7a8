"""``Peer``: one end of Simplest pubsub. It listens, connects, publishes and subscribes.

Bytes are the business of :mod:`sbuslib.tcp.framing`, one connection of :mod:`sbuslib.tcp.link`, copies under
``//fwd/`` of :mod:`sbuslib.tcp.mesh`, and finding others of :mod:`sbuslib.tcp.discovery`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from time import monotonic
from types import TracebackType
from typing import Any

import gevent
from gevent import socket
from gevent.event import Event
from gevent.hub import Hub as EventLoopHub
from gevent.server import StreamServer
from gevent.ssl import SSLContext
from gevent.timeout import Timeout

from ..backoff import Backoff
from ..breaches import Breaches
from ..errors import FramingError, PayloadError, StateError, UsageError
from .discovery import Discoverer, Discovery
from .forwarding import NUMBERED, Forwarding
from .framing import (
    Command,
    Publish,
    Subscribe,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
    publish_prefix,
)
from .inbox import PeerInbox
from .limits import TcpLimits
from .link import Link
from .mesh import Mesh, Receiver
from .quota import Quotas, Usage
from .statistics import LinkStatistics, PeerStatistics
from .substrings import Substrings
from .transport import TLS, HostPort, is_loopback, parse_host_port

__all__ = ["Peer"]

logger = logging.getLogger("sbuslib")

_RUN_BYTES = 65_536  # messages under one name are joined up to here before they are queued: what may be lost at once


class Peer:
    """One end of any number of connections of Simplest pubsub, served by gevent's event loop.

    ::

        with Peer("127.0.0.1:9014") as peer:
            peer.connect("127.0.0.1:9015")
            peer.publish("//myorg/chat/main", b"hello")         # to each peer that wants the name
            for message in peer.subscribe("//myorg/chat/"):     # from every peer
                ...

    Both ends are equal: whichever connected, each tells the other what it wants, and sends what the other wants.
    What comes from one peer is not sent on to others, but for names that are forwarded. Connect two peers in one
    direction only; with a second connection, each gets what it wants twice.

    **Greenlets:** two for each connection, see :class:`~sbuslib.tcp.link.Link`; one that accepts; one that looks for
    what takes too long; one for discovery, and more while it connects. A connection that is kept up uses its reader's
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
        self.limits = limits if limits is not None else TcpLimits()
        self._given = None if listener is None else parse_host_port(listener)
        self._tls = None if tls is None else (tls, *tls.contexts(SSLContext))
        self._insecure = insecure
        if self._given is not None and tls is None and not insecure and not is_loopback(self._given.host):
            raise UsageError(
                f"{self._given}: other machines reach this address. Give certificates for TLS, or ask for insecure"
            )
        forwarding = Forwarding(forward)
        if discover is not None:
            forwarding.add(discover.forwarded)
        self._remote: Substrings[Link] = Substrings(self.limits)
        self._local: Substrings[Receiver] = Substrings(self.limits)
        self.mesh = Mesh(forwarding, self._remote, self._local, self.limits)
        self._discoverer = None if discover is None else Discoverer(self, discover)
        self._wanted: dict[str, int] = {}  # what others are told that we want, and for how many reasons
        self._names: dict[str, bytes | None] = {}  # what a message under a name starts with; None: the mesh's
        self._quotas = Quotas(self.limits)
        self._links: dict[Link, None] = {}
        self._accepted = 0
        self._dialling: dict[HostPort, gevent.Greenlet] = {}
        self._inboxes: set[PeerInbox] = set()
        self.breaches = Breaches(self.limits.logged_breaches)
        self._links_total = self._published = self._received = self._unwanted = 0
        self._sent = self._lost = self._ignored = 0
        self._running = False
        self._changed = Event()
        self.area = memoryview(bytearray(self.limits.receive_bytes))
        for substring in forwarding.substrings():
            self._want(substring)
        if forwarding:
            self._want(NUMBERED)

    def __repr__(self) -> str:
        state = f"{len(self._links)} connections" if self._running else "not started"
        return f"<Peer at {self.address or 'no address'}, {state}>"

    # -- lifecycle ----------------------------------------------------------------------------------

    @property
    def address(self) -> str | None:
        """Where this peer listens, ``HOST:PORT``, with the port that it was given; ``None``: nowhere."""
        if self._given is None:
            return None
        if self._running and self._server is not None:
            return str(HostPort(self._given.host, self._server.server_port))
        return str(self._given)

    @property
    def started(self) -> bool:
        """Whether this peer is there for others."""
        return self._running

    @property
    def closed(self) -> bool:
        """Whether this peer is not there for others."""
        return not self._running

    def __enter__(self) -> Peer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, and serve from the event loop of the calling thread. Returns at once.

        Raises :exc:`~sbuslib.errors.StateError` when started already, and :exc:`OSError` when the kernel refuses
        the address.
        """
        if self._running:
            raise StateError(f"{self!r} is started already")
        self._server: StreamServer | None = None
        if self._given is not None:
            server = StreamServer((self._given.host, self._given.port), self._accept, backlog=self.limits.backlog)
            server.start()
            self._server = server
        self._pid = os.getpid()
        self._event_loop: EventLoopHub = gevent.get_hub()
        self._stopped = Event()
        self._stopping = False
        self._running = True
        self._watch = gevent.spawn(self._watch_time)
        if self._discoverer is not None:
            self._discoverer.start()

    def serve_forever(self, stop_timeout: float = 1.0) -> None:
        """Start unless started, and wait until :meth:`stop` is called from elsewhere."""
        if not self._running:
            self.start()
        try:
            self._stopped.wait()
        finally:
            self.stop(stop_timeout)

    def stop(self, timeout: float = 1.0) -> None:
        """Accept no more, send what waits, for at most ``timeout`` seconds, and close everything.

        Stopping a peer that is not started does nothing. It may be started again.
        """
        if not self._running:
            return
        self._check_here()
        if self._stopping:
            self._stopped.wait()
            return
        self._stopping = True
        deadline = monotonic() + timeout
        if self._discoverer is not None:
            self._discoverer.stop()
        try:
            if self._server is not None:
                self._server.stop_accepting()
            self._watch.kill(block=False)
            if timeout > 0:
                self.flush(timeout)
                for link in list(self._links):
                    link.shut_down()
                # The other end closes once it has read everything; closing first might take that from it.
                while self._links and (left := deadline - monotonic()) > 0:
                    self._changed.clear()
                    self._changed.wait(left)
        finally:
            for link in list(self._links):
                self._forget(link)
            gevent.killall(list(self._dialling.values()), block=False)
            self._dialling.clear()
            if self._server is not None:
                self._server.close()
            for inbox in list(self._inboxes):
                inbox.close()
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
            raise StateError(f"{self!r} belongs to process {self._pid}, of which this is a fork")
        if gevent.get_hub() is not self._event_loop:
            raise StateError(f"{self!r} belongs to the thread that started it")

    # -- connections --------------------------------------------------------------------------------

    def _accept(self, sock: Any, address: tuple[Any, ...]) -> None:
        """Serve one connection that another peer has made: the reader's greenlet."""
        remote = HostPort(str(address[0]), int(address[1]))
        if self._accepted >= self.limits.links:
            self._breach("too many connections", remote.host)
            return
        usage = self._quotas.enter(remote.host)
        if usage is None:
            self._breach("too many connections of one address", remote.host)
            return
        self._accepted += 1
        try:
            try:
                sock = self._secure(sock, None)
            except (OSError, Timeout):
                self._breach("TLS handshake failed", remote.host)
                self._quotas.leave(usage)
                return
            self._serve(sock, remote, usage, None)
        finally:
            self._accepted -= 1

    def _secure(self, sock: Any, remote: HostPort | None) -> Any:
        """The socket with TLS on it, if that is wanted; ``remote`` is whom we connected to."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._tls is None:
            return sock
        tls, accepting, connecting = self._tls
        with Timeout(self.limits.handshake_seconds):
            if remote is None:
                return accepting.wrap_socket(sock, server_side=True)
            return connecting.wrap_socket(sock, server_hostname=tls.hostname or remote.host)

    def _serve(self, sock: Any, remote: HostPort, usage: Usage, dialled: HostPort | None) -> None:
        """Be connected until it ends."""
        if self._stopping:
            sock.close()
            self._quotas.leave(usage)
            return
        link = Link(self, sock, remote, usage, dialled)
        self._links[link] = None
        self._links_total += 1
        for substring in self._wanted:
            link.say(encode_subscribe(substring, self.limits))
        self._changed.set()
        link.serve()

    def connect(self, address: str, *, timeout: float | None = None, keep: bool = True, wait: bool = True) -> None:
        """Connect to the peer at ``HOST:PORT``.

        :param timeout: seconds for the first attempt; without it, as the limits say.
        :param keep: connect again, with growing pauses, whenever the connection is lost, until :meth:`disconnect`.
        :param wait: return once connected, or raise. Without it, the first attempt is as any later one.

        Raises :exc:`~sbuslib.errors.AddressError`, :exc:`~sbuslib.errors.StateError` when that address is connected
        to already, :exc:`OSError` when it does not answer or its certificate is wrong, and :exc:`TimeoutError`.
        """
        self._check_here()
        remote = parse_host_port(address)
        if str(remote) == self.address:
            raise UsageError(f"{remote}: that is where this peer listens itself")
        if remote in self._dialling:
            raise StateError(f"{remote}: connected already")
        if self._tls is None and not self._insecure and not is_loopback(remote.host):
            logger.warning("peer: what is sent to %s can be read on the way: there is no TLS", remote)
        sock = self._dial(remote, timeout) if wait else None
        self._dialling[remote] = gevent.spawn(self._keep, remote, sock, keep)
        if wait:
            gevent.sleep(0)  # so that the connection is among the others when this returns

    def disconnect(self, address: str) -> None:
        """End the connection that :meth:`connect` made to ``address``, and do not make it again."""
        self._check_here()
        self._hang_up(parse_host_port(address))

    def _hang_up(self, remote: HostPort) -> None:
        greenlet = self._dialling.pop(remote, None)
        for link in [link for link in self._links if link.dialled == remote]:
            self._forget(link)
        if greenlet is not None:
            greenlet.kill(block=False)

    def _dial(self, remote: HostPort, timeout: float | None = None) -> Any:
        """A connected socket. Raises :exc:`OSError`, of which :exc:`TimeoutError` is one."""
        limit = self.limits.connect_seconds if timeout is None else timeout
        with Timeout(limit, TimeoutError(f"{remote}: no answer within {limit} s")):
            sock = socket.create_connection((remote.host, remote.port))
            try:
                return self._secure(sock, remote)
            except BaseException as error:
                sock.close()
                if isinstance(error, Timeout) and error.seconds == self.limits.handshake_seconds:
                    raise TimeoutError(f"{remote}: no TLS within {error.seconds} s") from None
                raise

    def _keep(self, remote: HostPort, sock: Any, keep: bool) -> None:
        """Serve the connection to ``remote``, and make it again when it ends."""
        backoff = Backoff(self.limits.reconnect_pause, self.limits.reconnect_pause_most)
        try:
            while True:
                if sock is None:
                    try:
                        sock = self._dial(remote)
                    except OSError as error:
                        logger.debug("peer at %s: %s: %s", self.address, remote, error)
                if sock is not None:
                    usage = self._quotas.enter(remote.host, invited=True)
                    assert usage is not None
                    began = monotonic()
                    self._serve(sock, remote, usage, remote)
                    sock = None
                    # A peer that lets go at once is not to be connected to again and again.
                    if monotonic() - began > self.limits.reconnect_pause_most:
                        backoff.reset()
                if not keep or self._stopping:
                    return
                gevent.sleep(backoff.next())
        finally:
            if self._dialling.get(remote) is gevent.getcurrent():
                del self._dialling[remote]

    def _watch_time(self) -> None:
        """Let those go who take too long."""
        pause = min(1.0, self.limits.command_seconds / 4, self.limits.stall_seconds / 4)
        while True:
            gevent.sleep(pause)
            now = monotonic()
            for link in list(self._links):
                reason = link.overdue(now)
                if reason is not None:
                    self.end_link(link, reason, True)

    def end_link(self, link: Link, reason: str, breach: bool) -> None:
        """A link has ended, or has to: for :class:`~sbuslib.tcp.link.Link`."""
        if link not in self._links:
            return
        logger.debug("peer at %s: %s: %s", self.address, link.remote, reason)
        if breach:
            self._breach(reason, link.remote.host)
        self._forget(link)

    def _breach(self, reason: str, host: str) -> None:
        if self.breaches.note(reason, self._quotas.group(host)):
            logger.warning(
                "peer at %s disconnected %s: %s (further ones are only counted)", self.address, host, reason
            )

    def _forget(self, link: Link) -> None:
        del self._links[link]
        link.usage.substrings -= self._remote.count(link)
        self._remote.discard(link)
        link.close()
        self._quotas.leave(link.usage)
        self._sent += link.sent
        self._lost += link.lost
        self._received += link.received
        if self._discoverer is not None:
            self._discoverer.link_gone(link)
        self._changed.set()

    def is_dialling(self, remote: HostPort) -> bool:
        """Whether a connection to ``remote`` is there or being made."""
        return remote in self._dialling

    @property
    def links(self) -> tuple[Link, ...]:
        """The connections that there are."""
        return tuple(self._links)

    # -- what others say ----------------------------------------------------------------------------

    def take_command(self, link: Link, command: Command) -> None:
        """Another peer subscribes or unsubscribes: for :class:`~sbuslib.tcp.link.Link`."""
        if link not in self._links:
            return
        assert not isinstance(command, Publish)
        substring = command.substring
        if not isinstance(command, Subscribe):
            gone = self._remote.remove(substring, link)
            if gone:
                link.substring_bytes -= len(substring)
                link.usage.substrings -= 1
                link.numbered = link.numbered and substring != NUMBERED
            elif gone is None:
                self._ignored += 1
            return
        if not self._remote.holds(link, substring):
            limits = self.limits
            if (
                self._remote.count(link) >= limits.substrings
                or link.substring_bytes + len(substring) > limits.substring_bytes
            ):
                raise FramingError("too many substrings")
            if link.usage.substrings >= limits.address_substrings:
                raise FramingError("too many substrings of one address")
            link.substring_bytes += len(substring)
            link.usage.substrings += 1
        missed = self.mesh.wanted_before(link, substring)
        self._remote.add(substring, link)
        if substring == NUMBERED:
            link.numbered = True
        self.mesh.catch_up(link, missed)
        self._changed.set()

    def take_messages(self, link: Link, messages: Sequence[Publish]) -> None:
        """Another peer has published under one name: for :class:`~sbuslib.tcp.link.Link`."""
        name = messages[0].name
        if name.startswith(NUMBERED) or self._start_of(name) is None:
            for message in messages:
                self.mesh.arrived(link, message)
            return
        receivers = self._local.subscribers(name)
        if not receivers:
            self._unwanted += len(messages)
        for receiver in receivers:
            receiver.take(messages, link)

    # -- publishing ---------------------------------------------------------------------------------

    def _start_of(self, name: str) -> bytes | None:
        """``pub <name>`` and a space; ``None`` when the mesh has to see to it."""
        try:
            return self._names[name]
        except KeyError:
            pass
        start = publish_prefix(name, self.limits)
        known = None if self.mesh.concerns(name) else start
        if len(name) <= self.limits.cached_name_bytes:
            if len(self._names) >= self.limits.cached_names:
                self._names.clear()
            self._names[name] = known
        return known

    def publish(self, name: str, data: bytes = b"") -> None:
        """Publish to each peer that wants ``name``; never blocks. One whose queue is full loses the message.

        Raises :exc:`~sbuslib.errors.NameFormatError`, :exc:`~sbuslib.errors.PayloadError` and
        :exc:`~sbuslib.errors.StateError`.
        """
        if not self._running:
            self._check_here()
        start = self._start_of(name)
        self._published += 1
        if start is None:
            self.mesh.publish(name, data)
            return
        links = self._remote.subscribers(name)
        if links:
            command = encode_publish(name, data, self.limits)
            for link in links:
                link.push(command, 1)

    def publish_many(self, messages: Iterable[tuple[str, bytes]], *, patience: float = 0.0) -> int:
        """Publish pairs of name and data in order; how many there were.

        With ``patience``, in seconds, this waits while the queue of a peer is more than half full, so that a peer
        that keeps reading loses nothing. One that outlasts the patience is not waited for again until it has caught up.
        Raises as :meth:`publish`; what came before the pair at fault was published.
        """
        if not self._running:
            self._check_here()
        count = size = length = 0
        name: str | None = None
        start: bytes | None = b""
        header = b""
        parts: list[bytes] = []
        most = self.limits.data_bytes
        try:
            for new_name, data in messages:
                if new_name != name:
                    self._push_run(name, parts, patience)
                    parts, size, length = [], 0, -1
                    start, name = self._start_of(new_name), new_name
                if start is None:
                    self.mesh.publish(new_name, data)
                    count += 1
                    continue
                if len(data) != length:
                    if not isinstance(data, bytes):
                        raise PayloadError(f"data is bytes, not {type(data).__name__}")
                    if len(data) > most:
                        raise PayloadError(f"data of {len(data):,} bytes: the limit is {most:,}")
                    length = len(data)
                    header = b"%b%d " % (start, length)
                parts += (header, data, b"\n")
                count += 1
                size += length
                if size > _RUN_BYTES:
                    self._push_run(name, parts, patience)
                    parts, size = [], 0
        finally:
            self._push_run(name, parts, patience)
            self._published += count
        return count

    def _push_run(self, name: str | None, parts: list[bytes], patience: float) -> None:
        if not parts or name is None:
            return
        links = self._remote.subscribers(name)
        if not links:
            return
        try:
            commands = b"".join(parts)
        except TypeError:
            raise PayloadError("data is bytes") from None
        limit = self.limits.queued_bytes
        for link in links:
            if patience and link.queued_bytes > limit // 2 and not link.slow:
                link.slow = not link.wait_for_room(limit // 4, patience)
            link.push(commands, len(parts) // 3)

    def retain(self, name: str, data: bytes) -> None:
        """Publish, and keep the data for peers that subscribe to ``name`` later; the last word counts.

        Raises as :meth:`publish`, and :exc:`~sbuslib.errors.UsageError` for more names than the limits allow.
        """
        self._check_here()
        encode_publish(name, data, self.limits)
        if self._start_of(name) is not None:
            self.mesh.retain(name, data, None)
            self.publish(name, data)
            return
        identity = self.mesh.new_identity()
        self.mesh.retain(name, data, identity)
        self.mesh.publish(name, data, identity)
        self._published += 1

    def release(self, name: str) -> None:
        """Keep the data under ``name`` no longer."""
        self.mesh.release(name)

    def subscriber_count(self, name: str) -> int:
        """How many peers want ``name``."""
        return len(self._remote.subscribers(name))

    def wait_for_subscriber(self, name: str, count: int = 1, timeout: float | None = None) -> None:
        """Wait until ``count`` peers want ``name``. Raises :exc:`TimeoutError` after ``timeout`` seconds."""
        self._check_here()
        with Timeout(timeout, TimeoutError(f"not {count} subscribers to {name} within {timeout} s")):
            while len(self._remote.subscribers(name)) < count:
                self._changed.clear()
                self._changed.wait()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the kernel has taken everything for every peer; ``False`` after ``timeout`` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        return all(
            [
                link.wait_for_room(0, None if deadline is None else max(0.0, deadline - monotonic()))
                for link in list(self._links)
            ]
        )

    # -- subscribing --------------------------------------------------------------------------------

    def subscribe(self, *substrings: str) -> PeerInbox:
        """Receive, from every peer, what contains one of ``substrings`` in its name. The empty one is in every name.

        The peers are told at once, but do not say when they have heard it. Raises
        :exc:`~sbuslib.errors.NameFormatError` and :exc:`~sbuslib.errors.StateError`.
        """
        self._check_here()
        inbox = PeerInbox(self.limits, self._forget_inbox)
        self.attach(inbox, *substrings)
        self._inboxes.add(inbox)
        return inbox

    def attach(self, receiver: Receiver, *substrings: str) -> None:
        """Subscribe on behalf of any :class:`~sbuslib.tcp.mesh.Receiver`."""
        if not substrings:
            raise UsageError("subscribe to at least one substring; '' is everything")
        for substring in substrings:
            encode_subscribe(substring, self.limits)
        for substring in substrings:
            if self._local.add(substring, receiver):
                self._want(substring)

    def detach(self, receiver: Receiver) -> None:
        """Take all subscriptions of ``receiver`` back."""
        for substring in self._local.discard(receiver):
            self._want(substring, -1)

    def _forget_inbox(self, inbox: PeerInbox) -> None:
        self._inboxes.discard(inbox)
        self.detach(inbox)

    def _want(self, substring: str, change: int = 1) -> None:
        """Tell the others, when ``substring`` is wanted for the first reason, or no longer for any."""
        before = self._wanted.get(substring, 0)
        if before + change:
            self._wanted[substring] = before + change
        else:
            del self._wanted[substring]
        if not before or not before + change:
            encode = encode_unsubscribe if before else encode_subscribe
            for link in self._links:
                link.say(encode(substring, self.limits))
        # Who wants copies understands their numbers, or could not tell one that comes twice.
        if substring != NUMBERED and "//fwd/" in substring and (not before or not before + change):
            self._want(NUMBERED, change)

    # -- the rest -----------------------------------------------------------------------------------

    def statistics(self) -> PeerStatistics:
        """Counts since the peer was made. Frozen, and true for this instant only."""
        links = list(self._links)
        return PeerStatistics(
            links=len(links),
            links_total=self._links_total,
            substrings=len(self._remote),
            published=self._published,
            received=self._received + sum(link.received for link in links),
            unwanted=self._unwanted + self.mesh.unwanted,
            forwarded=self.mesh.forwarded,
            repeated=self.mesh.repeated,
            hop_limit=self.mesh.hop_limit,
            sent=self._sent + sum(link.sent for link in links),
            lost=self._lost + sum(link.lost for link in links),
            queued_bytes=sum(link.queued_bytes for link in links),
            ignored=self._ignored,
            breaches=dict(self.breaches.counts),
        )

    def link_statistics(self) -> list[LinkStatistics]:
        """The same for each connection that there is."""
        return [
            LinkStatistics(
                remote=str(link.remote),
                who=link.who,
                substrings=self._remote.count(link),
                received=link.received,
                sent=link.sent,
                lost=link.lost,
                queued=link.queued,
                queued_bytes=link.queued_bytes,
            )
            for link in self._links
        ]
