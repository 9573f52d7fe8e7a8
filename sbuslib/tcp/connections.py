"""The connections of a peer: accepts and makes them, limits and counts them, and makes them again when they end.

The commands over them are handled in :mod:`sbuslib.tcp.peer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from ipaddress import ip_address
from time import monotonic
from typing import Any, Final

import gevent
from gevent import socket
from gevent.event import Event
from gevent.server import StreamServer
from gevent.ssl import SSLContext
from gevent.timeout import Timeout

from ..clients.reconnect import Backoff
from ..core.violations import Violations
from ..errors import StateError, UsageError
from ..kernel.hosts import HostPort, is_loopback
from ..wire.text import plainly
from .link import Link, Owner
from .tls import TLS

__all__ = ["HOLDS_THE_MOST", "Connections"]

HOLDS_THE_MOST: Final = "holds the most while all hold too much"

logger = logging.getLogger("sbuslib")


class Connections:
    """The links of one peer, ``owner``, that listens at ``given``; ``greet`` is called with each new one."""

    def __init__(
        self,
        owner: Owner,
        given: HostPort | None,
        tls: TLS | None,
        insecure: bool,
        greet: Callable[[Link], None],
        forget: Callable[[Link], None],
    ) -> None:
        if given is not None and tls is None and not insecure and not is_loopback(given.host):
            raise UsageError(
                f"{given}: other machines reach this address. Give certificates for TLS (tls=, "
                "--tls-cert), or do without (insecure=True, --insecure)"
            )
        self._owner = owner
        self.limits = owner.limits
        self._given = given
        self._tls = None if tls is None else (tls, *tls.contexts(SSLContext))
        self._insecure = insecure
        self._greet = greet
        self._forget_link = forget
        self._server: StreamServer | None = None
        self._watch: gevent.Greenlet[..., Any] | None = None
        self._stopping = False
        self._accepted = 0
        self._shaking_hands: set[Any] = set()
        self._links: dict[Link, None] = {}
        self._dialling: dict[HostPort, gevent.Greenlet[..., Any]] = {}
        self.breaches = Violations(self.limits.logged_breaches)
        self.watchers: dict[Callable[[Link], None], None] = {}
        """Called with each connection that has ended."""
        self.changed = Event()
        """Set when the number of connections has changed."""
        self.total = self.received = self.unwanted = self.sent = self.lost = 0

    @property
    def address(self) -> HostPort | None:
        """The address at which the peer listens, with the port that the kernel chose."""
        if self._given is None or self._server is None:
            return self._given
        return HostPort(self._given.host, self._server.server_port or 0)

    def start(self) -> None:
        """Listen. Raises :exc:`OSError`."""
        self._stopping = False
        if self._given is not None:
            place = self._given.host, self._given.port
            server = StreamServer(place, self._on_connection, backlog=self.limits.backlog)
            server.start()
            self._server = server
        self._watch = self._owner.greenlets.spawn(self._watch_time)

    def stop(self, timeout: float) -> None:
        """Stop accepting, send queued messages for at most ``timeout`` seconds, and close everything."""
        self._stopping = True
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
                # The other end closes once it has read everything. Closing first could lose what it has not read.
                while self._links and (left := deadline - monotonic()) > 0:
                    self.changed.clear()
                    self.changed.wait(left)
        finally:
            for link in self.links:
                self._forget(link)
            gevent.killall(list(self._shaking_hands))
            gevent.killall(list(self._dialling.values()), block=False)
            self._dialling.clear()
            if self._server is not None:
                self._server.close()
                self._server = None

    def flush(self, timeout: float | None) -> bool:
        """Wait until the kernel has taken all queued bytes; ``False`` after ``timeout`` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        flushed = True
        for link in self.links:
            flushed &= link.wait_for_room(0, None if deadline is None else max(0.0, deadline - monotonic()))
        return flushed

    def _on_connection(self, sock: Any, address: tuple[Any, ...]) -> None:
        """Called by gevent's server in a greenlet of its own, which becomes the reader's."""
        self._owner.greenlets.run(self._accept, sock, address)

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
                sock = self._secure(sock, None)
            except (OSError, Timeout):
                self._note_violation("TLS handshake failed", remote.host)
                return
            finally:
                self._shaking_hands.discard(greenlet)
            self._serve(sock, remote, None)
        finally:
            self._accepted -= 1

    def _secure(self, sock: Any, remote: HostPort | None) -> Any:
        """The socket, with TLS if that is configured; ``remote`` is the address that was connected to."""
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
            with Timeout(self.limits.handshake_seconds):
                secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return secured

    def _serve(self, sock: Any, remote: HostPort, dialled: HostPort | None) -> None:
        """Serve this connection until it ends."""
        if self._stopping:
            sock.close()
            return
        link = Link(self._owner, sock, remote, dialled)
        self._links[link] = None
        self.total += 1
        self._greet(link)
        self.changed.set()
        link.serve()

    def connect(self, remote: HostPort, timeout: float | None, keep: bool, wait: bool) -> None:
        """See :meth:`~sbuslib.tcp.peer.Peer.connect`."""
        if remote == self.address:
            raise UsageError(f"{remote}: that is where this peer listens itself")
        if remote in self._dialling:
            raise StateError(f"{remote}: connected already")
        if self._tls is None and not self._insecure and not is_loopback(remote.host):
            logger.warning("peer: what is sent to %s can be read on the way: there is no TLS", remote)
        sock = self._dial(remote, timeout) if wait else None
        self._dialling[remote] = self._owner.greenlets.spawn(self._keep, remote, sock, keep)
        if wait:
            gevent.sleep(0)  # lets the greenlet run that adds the connection to the others

    def hang_up(self, remote: HostPort) -> None:
        """End the connection that was made to ``remote``, and do not make it again."""
        greenlet = self._dialling.pop(remote, None)
        for link in [link for link in self._links if link.dialled == remote]:
            self._forget(link)
        if greenlet is not None:
            greenlet.kill(block=False)

    def _dial(self, remote: HostPort, timeout: float | None = None) -> Any:
        """A connected socket. Raises :exc:`OSError`, of which :exc:`TimeoutError` is one."""
        limit = self.limits.connect_seconds if timeout is None else timeout
        with Timeout(limit, TimeoutError(f"{remote}: no answer within {limit} s")):
            sock = self._connected(remote)
            try:
                return self._secure(sock, remote)
            except BaseException as error:
                sock.close()
                if isinstance(error, Timeout) and error.seconds == self.limits.handshake_seconds:
                    raise TimeoutError(f"{remote}: no TLS within {error.seconds} s") from None
                raise

    @staticmethod
    def _connected(remote: HostPort) -> Any:
        try:
            family = socket.AF_INET6 if ip_address(remote.host.partition("%")[0]).version == 6 else socket.AF_INET
        except ValueError:
            try:
                return socket.create_connection((remote.host, remote.port))
            except UnicodeError:
                raise OSError(f"{remote.host!r} cannot be the name of a host") from None
        sock = socket.socket(family, socket.SOCK_STREAM)  # the address is a number already: no name server is asked
        try:
            sock.connect((remote.host, remote.port))
        except BaseException:
            sock.close()
            raise
        return sock

    def _keep(self, remote: HostPort, sock: Any, keep: bool) -> None:
        """Serve the connection to ``remote``, and make it again when it ends."""
        backoff = Backoff(self.limits.reconnect_pause, self.limits.reconnect_pause_most)
        told = False
        try:
            while True:
                if sock is None:
                    try:
                        sock = self._dial(remote)
                    except OSError as error:
                        level = logging.WARNING if keep and not told else logging.DEBUG
                        logger.log(level, "peer: %s: %s; it is tried again", remote, plainly(error))
                        told = True
                if sock is not None:
                    told = False
                    began = monotonic()
                    self._serve(sock, remote, remote)
                    sock = None
                    # Only a connection that lasted resets the pause: a peer may accept and close again and again.
                    if monotonic() - began > self.limits.reconnect_pause_most:
                        backoff.reset()
                if not keep or self._stopping:
                    return
                gevent.sleep(backoff.next())
        finally:
            if self._dialling.get(remote) is gevent.getcurrent():
                del self._dialling[remote]

    def _watch_time(self) -> None:
        """Close connections whose other end is too slow."""
        pause = min(1.0, self.limits.command_seconds / 4, self.limits.stall_seconds / 4)
        while True:
            gevent.sleep(pause)
            now = monotonic()
            for link in list(self._links):
                reason = link.overdue(now)
                if reason is not None:
                    self.end(link, reason, True)

    def end(self, link: Link, reason: str, violation: bool) -> None:
        """A link has ended, or has to end; ``violation`` says that the other end is the cause."""
        if link not in self._links:
            return
        logger.debug("peer: %s: %s", link.remote, reason)
        if violation:
            self._note_violation(reason, link.remote.host)
        self._forget(link)

    def make_room(self) -> None:
        """Let those go that hold the most, while all hold too much."""
        while self._links and self._owner.memory.used > self.limits.all_bytes:
            self.end(max(self._links, key=lambda link: link.held), HOLDS_THE_MOST, True)

    def _note_violation(self, reason: str, host: str) -> None:
        if self.breaches.note(reason, host):
            logger.warning("peer at %s disconnected %s: %s (further ones are only counted)", self.address, host, reason)

    def _forget(self, link: Link) -> None:
        del self._links[link]
        self._forget_link(link)
        link.close()
        self.received += link.received
        self.unwanted += link.unwanted
        self.sent += link.sent
        self.lost += link.lost
        for watcher in tuple(self.watchers):
            watcher(link)
        self.changed.set()

    def is_dialling(self, remote: HostPort) -> bool:
        """Whether a connection to ``remote`` is there or being made."""
        return remote in self._dialling

    @property
    def links(self) -> tuple[Link, ...]:
        """All connections."""
        return tuple(self._links)

    def __contains__(self, link: Link) -> bool:
        return link in self._links
