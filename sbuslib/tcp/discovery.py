"""Discovery convention: peers announce their addresses, and connect to peers whose announcements they receive.

Under ``//peers/<org>/<who>`` a peer publishes ``host port``, where it can be connected to; the forwarding convention
carries that on as ``//fwd/peers/<org>/<who>``. Source: the example of peer discovery on the page of Simplest pubsub.

Any connected peer can announce anything, so announcements are not trusted. An announced host must be in the list of
allowed networks, so it must be a number: no name server is asked. Limits bound how many peers are remembered and
connected to. A peer that does not answer is tried again every two seconds.

When two peers learn each other's address at the same time, only one should connect. The one whose name sorts first
connects at once. The other connects only if there is no connection after some time.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from time import monotonic
from typing import Any

import gevent
import msgspec
from gevent.event import Event

from ..errors import SbusError, UsageError
from ..kernel.hosts import HostPort, parse_host_port
from ..wire.text import plainly
from .connections import Connections
from .peer_link import PeerLink

logger = logging.getLogger("sbuslib")

_WORD = re.compile(r"[^/ \r\n]+\Z")
_ANNOUNCEMENT = re.compile(rb"([0-9A-Za-z.:_-]{1,253}) ([0-9]{1,5})\n?\Z")


def parse_announcement(data: bytes) -> HostPort | None:
    """Parse the address in ``host port``; ``None`` if there is none.

    >>> parse_announcement(b"1.2.3.4 9014")
    HostPort(host='1.2.3.4', port=9014)
    """
    match = _ANNOUNCEMENT.match(data)
    if match is None or not 0 < int(match[2]) <= 65_535:
        return None
    return HostPort(match[1].decode(), int(match[2]))


def networks_of(entries: Iterable[str]) -> list[IPv4Network | IPv6Network]:
    """Parse networks (``10.1.0.0/16``) and single IP addresses. Raises :exc:`~sbuslib.errors.UsageError`."""
    if isinstance(entries, str):
        raise UsageError("the hosts allowed are a list")
    try:
        return [ip_network(entry) for entry in entries]
    except ValueError as error:
        raise UsageError(f"hosts are allowed by networks and numbers: {error}") from None


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of discovery.

    ``org`` is the name of the organization that the peers belong to, ``who`` this peer's own name in it (a random name
    unless given). ``advertise`` is the address at which others reach this peer, ``HOST:PORT``; by default the one at
    which it listens. ``allow`` lists the hosts that it connects to when they are announced: networks, or IP addresses;
    by default only this machine.

    Raises :exc:`~sbuslib.errors.UsageError`.
    """

    org: str
    who: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    advertise: str | None = None
    allow: tuple[str, ...] = ("127.0.0.0/8", "::1/128")

    def __post_init__(self) -> None:
        for what, word in (("org", self.org), ("who", self.who)):
            if not _WORD.match(word):
                raise UsageError(f"{what} is a word without space and '/', not {word!r}")
        networks_of(self.allow)
        if self.advertise is not None and not parse_host_port(self.advertise).port:
            raise UsageError("what is advertised has a port")

    @property
    def forwarded(self) -> str:
        """The name under which announcements are forwarded."""
        return f"peers/{self.org}"


class _Known(msgspec.Struct):
    """A peer that was announced: its address, and when it was announced with it first and last."""

    address: HostPort
    first: float
    last: float


class Discoverer:
    """Announces one peer and connects it to others. **Greenlets:** one, which only waits."""

    def __init__(self, peer: Connections, config: Discovery) -> None:
        self._peer = peer
        self._limits = peer.limits  # of the peer
        self._config = config
        self._allowed = networks_of(config.allow)  # of hosts to connect to
        self._own = f"//peers/{config.org}/{config.who}"  # the name under which this peer announces itself
        self._prefixes = f"//peers/{config.org}/", f"//fwd/peers/{config.org}/"  # of announcements, and of their copies
        self._made: set[HostPort] = set()  # addresses connected to because of an announcement
        self._wake = Event()  # set when a new peer is known
        self._greenlet: gevent.Greenlet[..., Any] | None = None  # while it is started
        self.known: dict[str, _Known] = {}  # whom it has heard of, by name
        self.refused = 0  # announcements that were not taken

    def start(self) -> None:
        """Announce, and look for others, until :meth:`stop`."""
        self._peer.mesh.on_arrival = self.hear
        self._greenlet = self._peer.greenlets.spawn(self._run)

    def stop(self) -> None:
        """Announce no more."""
        self._peer.mesh.on_arrival = None
        self._peer.mesh.release(self._own)
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None

    def _advertised(self) -> HostPort | None:
        text = self._config.advertise or self._peer.address
        return parse_host_port(text) if text else None

    def _run(self) -> None:
        announced = float("-inf")
        while True:
            now = monotonic()
            if now - announced >= self._limits.announce_seconds:
                self._announce()
                announced = now
            self.expire(now)
            self._connect(now)
            self._wake.clear()
            self._wake.wait(min(self._limits.announce_seconds, self._limits.yield_seconds))

    def _announce(self) -> None:
        address = self._advertised()
        if address is not None:
            try:
                self._peer.mesh.publish_retained(self._own, b"%b %d" % (address.host.encode(), address.port))
            except SbusError as error:
                logger.error("peer at %s cannot announce itself: %s", self._peer.address, plainly(error))

    def expire(self, now: float) -> None:
        """Forget peers that missed three announcements."""
        for who, known in list(self.known.items()):
            if now - known.last > 3 * self._limits.announce_seconds:
                del self.known[who]
                self._peer.mesh.release(self._prefixes[0] + who)

    def hear(self, link: PeerLink, name: str, data: bytes, identity: str | None) -> None:
        """Take a forwarded message, which may be an announcement. Called by :class:`~sbuslib.tcp.mesh.Mesh`."""
        prefix = next((prefix for prefix in self._prefixes if name.startswith(prefix)), None)
        if prefix is None:
            return
        who = name[len(prefix) :]
        if who == self._config.who or not _WORD.match(who):
            return
        address, known = parse_announcement(data), self.known.get(who)
        if address is None:
            self.refused += 1
            return

        # 1. The other end of this connection announces its own name.
        if prefix is self._prefixes[0] and link.who is None:
            link.who = who
            self._part_from_twins(link, who)

        # 2. It may be a peer to connect to. The announcement is retained for later subscribers.
        now = monotonic()
        if known is None and len(self.known) >= self._limits.known_peers:
            self.refused += 1
            return
        if known is None or known.address != address:
            self.known[who] = _Known(address, now, now)
            self._wake.set()
        else:
            known.last = now
        try:
            self._peer.mesh.retain(self._prefixes[0] + who, data, identity, link, 1)
        except SbusError:
            self.refused += 1  # too many names are kept already

    def _part_from_twins(self, link: PeerLink, who: str) -> None:
        """Keep one of several connections with a peer. The end whose name sorts first chooses."""
        twins = [other for other in self._peer.links if other.who == who]
        if len(twins) < 2 or who < self._config.who:
            return
        keep = next((twin for twin in twins if twin.dialled is not None), twins[0])
        for twin in twins:
            if twin is not keep:
                self._peer.end_link(twin, "connected twice", False)

    def _is_allowed(self, host: str) -> bool:
        try:
            return any(ip_address(host) in network for network in self._allowed)
        except ValueError:  # a name: no name server is asked
            return False

    def _connect(self, now: float) -> None:
        """Connect to known peers without a connection: at once if this peer's name sorts first, else after a while."""
        peer, own = self._peer, self._advertised()
        self._made = {address for address in self._made if peer.is_dialling(str(address))}

        # Of two that know each other one has to begin, or they would have two connections.
        linked = {link.who for link in peer.links}
        for who, known in self.known.items():
            address = known.address
            if len(self._made) >= self._limits.discovered_links:
                return
            if who in linked or address == own or peer.is_dialling(str(address)) or not self._is_allowed(address.host):
                continue
            if own is not None and who < self._config.who and now - known.first < self._limits.yield_seconds:
                continue
            try:
                peer.connect(str(address), keep=False, wait=False)
            except SbusError as error:  # it may be our own address
                logger.debug("peer at %s: %s was announced by %s: %s", peer.address, address, who, plainly(error))
            else:
                self._made.add(address)
