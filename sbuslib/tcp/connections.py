"""Connections of a peer: accepted, made, made again when they end, limited and counted.

The commands that come over them are handled in :mod:`sbuslib.tcp.peer`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from time import monotonic
from typing import Any, Final

import gevent
from gevent import socket
from gevent.event import Event
from gevent.server import StreamServer
from gevent.ssl import SSLContext
from gevent.timeout import Timeout

from ..clients.reconnect import Backoff
from ..core.supervision import Supervisor
from ..core.violations import Violations
from ..errors import StateError, UsageError
from ..kernel.hosts import HostPort, is_loopback, parse_host_port
from ..limits import check_seconds
from ..wire.text import plainly
from .certificates import TLS
from .limits import TcpLimits
from .mesh import Mesh
from .peer_link import Owner, PeerLink

HOLDS_THE_MOST: Final = "holds the most while all hold too much"
_RECEIVE_BYTES: Final = 65_536
"""Bytes taken from one peer before others have their turn: thousands of small messages."""

logger = logging.getLogger("sbuslib")


class _Dialled:
    """A connection that this end made, or is making."""

    keeper: gevent.Greenlet[..., Any] | None = None  # serves it, and makes it again; None during the first attempt


class Connections(Owner):
    """The connections of one peer. :class:`~sbuslib.tcp.peer.Peer` is its subclass."""

    def __init__(self, listener: str | None, tls: TLS | None, insecure: bool, limits: TcpLimits | None) -> None:
        given = None if listener is None else parse_host_port(listener)
        if given is not None and tls is None and not insecure and not is_loopback(given.host):
            raise UsageError(
                f"{given}: other machines reach this address: give certificates for TLS, or allow it to be insecure"
            )
        self.limits = limits if limits is not None else TcpLimits()  # of this peer
        self.greenlets = Supervisor(f"peer at {listener or 'no address'}", self.close)  # all that this peer runs
        self.buffer = memoryview(bytearray(_RECEIVE_BYTES))  # into which all connections receive
        self.held_bytes = 0  # by all connections together

        self._given = given  # where to listen
        self._tls = None if tls is None else (tls, *tls.contexts(SSLContext))  # and the contexts for both ends
        self._insecure = insecure
        self._server: StreamServer | None = None  # while it listens
        self._watch: gevent.Greenlet[..., Any] | None = None  # closes slow connections, while the peer is started
        self._stopping = False
        self._accepted = 0  # connections that others made, handshakes included
        self._shaking_hands: set[Any] = set()  # greenlets that wait for a TLS handshake

        self._links: dict[PeerLink, None] = {}  # in the order in which they came
        self._dialled: dict[HostPort, _Dialled] = {}  # connections that this end made, or is making
        self._violations = Violations(self.limits.logged_violations)  # of other peers
        self._links_changed = Event()  # set when a connection came or went, or another peer wants something new
        self._links_total = 0  # connections that there ever were
        self._ended = Counter(received=0, unwanted=0, sent=0, lost=0)  # messages over those that have ended

    mesh: Mesh
    """Forwards messages, and keeps data for later subscribers."""

    @abstractmethod
    def close(self) -> None:
        """Stop without waiting for anything."""

    @abstractmethod
    def _check_here(self) -> None:
        """Raise unless started, and by this thread of this process."""

    @abstractmethod
    def _greet(self, link: PeerLink) -> None:
        """Send this peer's subscriptions over a new connection."""

    @abstractmethod
    def _take_back(self, link: PeerLink) -> None:
        """Forget the subscriptions of the other end of a connection that has ended."""

    @property
    def address(self) -> str:
        """``HOST:PORT`` at which this peer listens, with the port that the kernel chose; empty if it does not."""
        if self._given is None:
            return ""
        port = self._given.port if self._server is None else self._server.server_port or 0
        return str(HostPort(self._given.host, port))

    def _listen(self) -> None:
        if self._given is not None:
            place = self._given.host, self._given.port
            server = StreamServer(place, self._on_connection, backlog=self.limits.backlog)
            server.start()
            self._server = server
        self._watch = self.greenlets.spawn(self._watch_time)

    def _end_all(self, timeout: float) -> None:
        """Stop accepting, send queued messages for at most ``timeout`` seconds, and close everything."""
        deadline = monotonic() + timeout
        try:
            if self._server is not None:
                self._server.stop_accepting()
            if self._watch is not None:
                self._watch.kill(block=False)
            if timeout > 0:
                self.flush(timeout)
                for link in self.links:
                    link.shut_down()
                # The other end closes once it has read everything. Closing first could lose unread bytes.
                while self._links and (remaining := deadline - monotonic()) > 0:
                    self._links_changed.clear()
                    self._links_changed.wait(remaining)
        finally:
            for link in self.links:
                self._forget(link)
            gevent.killall(list(self._shaking_hands))
            keepers = [dialled.keeper for dialled in self._dialled.values() if dialled.keeper is not None]
            gevent.killall(keepers, block=False)
            self._dialled.clear()
            if self._server is not None:
                self._server.close()
                self._server = None

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the kernel has taken everything for every peer; ``False`` after ``timeout`` seconds."""
        timeout = check_seconds(timeout, "timeout")
        deadline = None if timeout is None else monotonic() + timeout
        flushed = True
        for link in self.links:
            flushed &= link.wait_for_room(0, None if deadline is None else max(0.0, deadline - monotonic()))
        return flushed

    def _on_connection(self, sock: Any, address: tuple[Any, ...]) -> None:
        """Accept a connection. gevent's server calls this in a new greenlet, which becomes the reader's."""
        self.greenlets.run(self._accept, sock, address)

    def _accept(self, sock: Any, address: tuple[Any, ...]) -> None:
        """Serve one connection that another peer has made."""
        remote = HostPort(str(address[0]), int(address[1]))
        if self._accepted >= self.limits.links:
            self._note_violation("too many connections", remote.host)
            return

        self._accepted += 1
        greenlet = gevent.getcurrent()
        try:
            self._shaking_hands.add(greenlet)
            try:
                with Timeout(self.limits.connect_seconds):
                    sock = self._secure(sock, None)
            except (OSError, Timeout):
                self._note_violation("TLS handshake failed", remote.host)
                return
            finally:
                self._shaking_hands.discard(greenlet)
            if (link := self._add(sock, remote, None)) is not None:
                link.serve()
        finally:
            self._accepted -= 1

    def _secure(self, sock: Any, remote: HostPort | None) -> Any:
        """Wrap a socket in TLS, if that is configured; ``remote`` is the address that was connected to."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

        if self._tls is None:
            return sock

        tls, accepting, connecting = self._tls
        if remote is None:
            secured = accepting.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        else:
            name = tls.hostname or remote.host
            secured = connecting.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        try:
            secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return secured

    def _add(self, sock: Any, remote: HostPort, dialled: HostPort | None) -> PeerLink | None:
        """Add a connection, which its greenlet has to serve; ``None`` while this peer is stopping."""
        if self._stopping:
            sock.close()
            return None
        link = PeerLink(self, sock, remote, dialled)
        self._links[link] = None
        self._links_total += 1
        self._greet(link)
        self._links_changed.set()
        return link

    def connect(self, address: str, *, timeout: float | None = None, keep: bool = True, wait: bool = True) -> None:
        """Connect to the peer at ``HOST:PORT``.

        :param timeout: seconds for the first attempt; without it, as the limits say.
        :param keep: connect again, with growing pauses, whenever the connection is lost, until :meth:`disconnect`.
        :param wait: return once connected, or raise. Without it, the first attempt is as any later one.

        Raises :exc:`~sbuslib.errors.AddressError`, :exc:`~sbuslib.errors.StateError` when that address is connected
        to already, or disconnected meanwhile, :exc:`OSError` when it does not answer or its certificate is wrong, and
        :exc:`TimeoutError`.
        """
        timeout = check_seconds(timeout, "timeout")
        self._check_here()
        remote = parse_host_port(address)
        if str(remote) == self.address:
            raise UsageError(f"{remote}: that is where this peer listens itself")
        if self._tls is None and not self._insecure and not is_loopback(remote.host):
            logger.warning("peer: what is sent to %s can be read on the way: there is no TLS", remote)

        # 1. The address is taken from here on, so that there is one connection to it.
        if remote in self._dialled:
            raise StateError(f"{remote}: connected already")
        dialled = self._dialled[remote] = _Dialled()

        # 2. The first attempt, unless it is as any later one. Meanwhile others may disconnect, or stop this peer.
        try:
            sock = self._dial(remote, timeout) if wait else None
        except BaseException:
            self._forget_dialled(remote, dialled)
            raise
        if self._dialled.get(remote) is not dialled:
            if sock is not None:
                sock.close()
            raise StateError(f"{remote}: disconnected meanwhile")

        # 3. It is served, and made again.
        link = None if sock is None else self._add(sock, remote, remote)
        dialled.keeper = self.greenlets.spawn(self._keep, remote, dialled, link, keep)

    def disconnect(self, address: str) -> None:
        """End the connection that :meth:`connect` made to ``address``, and do not make it again."""
        self._check_here()
        remote = parse_host_port(address)
        dialled = self._dialled.pop(remote, None)
        for link in [link for link in self._links if link.dialled == remote]:
            self._forget(link)
        if dialled is not None and dialled.keeper is not None:
            dialled.keeper.kill(block=False)

    def is_dialling(self, address: str) -> bool:
        """Whether a connection to ``address`` was made and is there, or is being made."""
        return parse_host_port(address) in self._dialled

    def _forget_dialled(self, remote: HostPort, dialled: _Dialled) -> None:
        """Remove a failed attempt, or a connection that is not made again; not a newer one to the same address."""
        if self._dialled.get(remote) is dialled:
            del self._dialled[remote]

    def _dial(self, remote: HostPort, timeout: float | None = None) -> Any:
        """Connect a socket. Raises :exc:`OSError`; :exc:`TimeoutError` is a subclass of it."""
        limit = self.limits.connect_seconds if timeout is None else timeout
        with Timeout(limit, TimeoutError(f"{remote}: no answer within {limit} s")):
            try:
                sock = socket.create_connection((remote.host, remote.port))
            except UnicodeError:
                raise OSError(f"{remote.host!r} cannot be the name of a host") from None
            try:
                return self._secure(sock, remote)
            except BaseException:
                sock.close()
                raise

    def _keep(self, remote: HostPort, dialled: _Dialled, link: PeerLink | None, keep: bool) -> None:
        """Serve the connection to ``remote``, and make it again when it ends."""
        backoff = Backoff(self.limits.reconnect_pause, self.limits.reconnect_pause_most)
        is_warned = False
        try:
            while True:
                if link is None:
                    try:
                        link = self._add(self._dial(remote), remote, remote)
                    except OSError as error:
                        level = logging.WARNING if keep and not is_warned else logging.DEBUG
                        logger.log(level, "peer: %s: %s; it is tried again", remote, plainly(error))
                        is_warned = True
                if link is not None:
                    is_warned = False
                    began = monotonic()
                    link.serve()
                    link = None
                    # Only a connection that lasted resets the pause: a peer may accept and close again and again.
                    if monotonic() - began > self.limits.reconnect_pause_most:
                        backoff.reset()
                if not keep or self._stopping:
                    return
                gevent.sleep(backoff.next())
        finally:
            self._forget_dialled(remote, dialled)

    def _watch_time(self) -> None:
        """Close connections whose other end is too slow."""
        pause = min(1.0, self.limits.command_seconds / 4, self.limits.stall_seconds / 4)
        while True:
            gevent.sleep(pause)
            now = monotonic()
            for link in list(self._links):
                reason = link.overdue(now)
                if reason is not None:
                    self.end_link(link, reason, True)

    def end_link(self, link: PeerLink, reason: str, violation: bool) -> None:
        """End a link, or note that it has ended; ``violation``: because the other end broke a rule."""
        if link not in self._links:
            return
        logger.debug("peer: %s: %s", link.remote, reason)
        if violation:
            self._note_violation(reason, link.remote.host)
        self._forget(link)

    def make_room(self) -> None:
        """End the links that hold the most, while all together hold too much."""
        while self._links and self.held_bytes > self.limits.all_bytes:
            self.end_link(max(self._links, key=lambda link: link.held), HOLDS_THE_MOST, True)

    def _note_violation(self, reason: str, host: str) -> None:
        if self._violations.note(reason, host):
            logger.warning("peer at %s disconnected %s: %s (further ones are only counted)", self.address, host, reason)

    def _forget(self, link: PeerLink) -> None:
        del self._links[link]
        self._take_back(link)
        link.close()
        for name in self._ended:
            self._ended[name] += getattr(link, name)
        self._links_changed.set()

    def _total(self, name: str) -> int:
        """Sum of a count over all connections, including those that have ended."""
        of_links: int = sum(getattr(link, name) for link in self._links)
        return self._ended[name] + of_links

    @property
    def links(self) -> tuple[PeerLink, ...]:
        """All connections."""
        return tuple(self._links)
