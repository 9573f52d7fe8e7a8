"""Forwarding and retained data of a peer: applies the rules of :mod:`sbuslib.tcp.forwarding` to its connections."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from time import monotonic

from ..errors import NameFormatError, UsageError
from .forwarding import Forwarding, Seen, digest_of, number, unnumber
from .framing import Publish, encode_publish
from .limits import TcpLimits
from .peer_link import PeerLink, PeerReceiver
from .substrings import Substrings


@dataclass(slots=True, eq=False)
class _Retained:
    """The last data under one name; ``identity`` if the name is forwarded."""

    data: bytes
    identity: str | None
    hops: int
    source: PeerLink | None


class Mesh:
    """Forwards messages for one peer. Shares its two indexes: of the other peers' subscriptions, and of its own."""

    def __init__(
        self, forwarding: Forwarding, remote: Substrings[PeerLink], local: Substrings[PeerReceiver], limits: TcpLimits
    ) -> None:
        self.forwarding = forwarding
        self.seen = Seen(limits)  # detects duplicates
        self.forwarded = self.repeated = self.hop_limit = self.unwanted = 0  # messages, see PeerStatistics
        self.on_arrival: Callable[[PeerLink, str, bytes, str | None], None] | None = None
        """Called with each forwarded message that comes, repeated ones too: link, name without number, data, id."""
        self._remote = remote
        self._local = local
        self._limits = limits
        self._origin = "r" + secrets.token_hex(8)  # prefix of the ids of our own messages
        self._counter = count()  # and their numbers
        self._retained: dict[str, _Retained] = {}  # last data for later subscribers, by name

    def concerns(self, name: str) -> bool:
        """Whether messages under ``name`` are to be given to :meth:`arrived`."""
        return self.forwarding.copy_of(name) is not None or self.forwarding.plain_of(name) is not None

    # -- our own messages ---------------------------------------------------------------------------

    def new_identity(self) -> str:
        """An id that no other message has."""
        return f"{self._origin}.{next(self._counter):x}"

    def publish(self, name: str, data: bytes, identity: str | None = None) -> None:
        """Publish under a forwarded name, or under that of a copy.

        Raises :exc:`~sbuslib.errors.NameFormatError` and :exc:`~sbuslib.errors.PayloadError`.
        """
        encode_publish(name, data, self._limits)
        identity = identity or self.new_identity()
        plain = self.forwarding.plain_of(name)
        trace, _ = self.seen.numbered(identity, digest_of(plain or name, data), monotonic())
        trace.add(self)  # our own: no receiver at this end gets it when it comes back
        self._spread(plain or name, data, identity, 0, None, direct=plain is None)

    # -- messages that come -------------------------------------------------------------------------

    def arrived(self, link: PeerLink, message: Publish) -> None:
        """Take a message that is numbered, or whose name is forwarded here."""
        now = monotonic()
        name, identity, hops = unnumber(message.name) or (message.name, None, 0)
        data = message.data

        plain = self.forwarding.plain_of(name)
        is_copy = name.startswith("//fwd/")
        digest = digest_of(plain or ("//" + name[6:] if is_copy else name), data)

        # 1. Is it a duplicate? Its id shows that, else its contents.
        if identity is not None:
            trace, first = self.seen.numbered(identity, digest, now)
        elif not is_copy:
            identity, trace, first = self.seen.direct(digest, now)
        else:
            hops = 1
            news = self.seen.copy(digest, link, now)
            if news is None:
                self.repeated += 1
                if self.on_arrival is not None:
                    self.on_arrival(link, name, data, None)
                return
            (identity, trace), first = news, True
        if self.on_arrival is not None:
            self.on_arrival(link, name, data, identity)

        # 2. Receivers at this end get it once.
        self._deliver(link, trace, message if name == message.name else Publish(name, data))
        if not first:
            self.repeated += 1
            return

        # 3. Other peers get a copy, if it is forwarded and did not come too far.
        base = plain if is_copy else (name if self.forwarding.copy_of(name) else None)
        if base is None:
            return
        if hops + 1 > self._limits.hops:
            self.hop_limit += 1
            return
        self._spread(base, data, identity, hops + 1, link, direct=False)

    def _deliver(self, link: PeerLink, trace: set[object], message: Publish) -> None:
        if self in trace:
            return
        receivers = self._local.subscribers(message.name)
        if not receivers:
            self.unwanted += 1
        for receiver in receivers:
            if receiver not in trace:
                trace.add(receiver)
                receiver.take((message,), link)

    # -- sending ------------------------------------------------------------------------------------

    def _spread(self, plain: str, data: bytes, identity: str, hops: int, source: PeerLink | None, direct: bool) -> None:
        """Send a message once to each link that subscribed to ``plain``, but not back to ``source``."""
        copy = "//fwd/" + plain[2:]
        served = self._remote.subscribers(plain) if direct else ()
        self._send(served, plain, data, identity, hops)
        others = [link for link in self._remote.subscribers(copy) if link is not source and link not in served]
        self._send(others, copy, data, identity, hops)
        if source is not None:
            self.forwarded += len(others)

    def _send(self, links: Iterable[PeerLink], name: str, data: bytes, identity: str | None, hops: int) -> None:
        numbered: bytes | None = None
        plain: bytes | None = None

        # Each form is made once, when the first link takes it.
        for link in links:
            if link.numbered and identity is not None:
                if numbered is None:
                    numbered = self._encode(number(name, identity, hops), data) or self._encode(name, data)
                command = numbered
            else:
                if plain is None:
                    plain = self._encode(name, data)
                command = plain
            if command:
                link.push(command, 1)
            else:
                link.lost += 1

    def _encode(self, name: str, data: bytes) -> bytes:
        try:
            return encode_publish(name, data, self._limits)
        except NameFormatError:
            return b""  # with the number before it, the name is too long

    # -- the last data under a name ------------------------------------------------------------------

    def retain(
        self, name: str, data: bytes, identity: str | None, source: PeerLink | None = None, hops: int = 0
    ) -> None:
        """Keep ``data`` for later subscribers. Raises :exc:`~sbuslib.errors.UsageError` when it is too much."""
        if name not in self._retained and len(self._retained) >= self._limits.retained:
            raise UsageError(f"more than {self._limits.retained:,} names whose data is to be kept")
        self._retained[name] = _Retained(data, identity, hops, source)

    def publish_retained(self, name: str, data: bytes) -> None:
        """Publish under a forwarded name, and keep the data. Raises as :meth:`publish` and :meth:`retain`."""
        identity = self.new_identity()
        self.retain(name, data, identity)
        self.publish(name, data, identity)

    def release(self, name: str) -> None:
        """Stop keeping data under ``name``."""
        self._retained.pop(name, None)

    def wanted_before(self, link: PeerLink, substring: str) -> list[tuple[str, bool]]:
        """Names of kept data and its copies that contain ``substring``, and that ``link`` did not want before."""
        names = []
        for name, kept in self._retained.items():
            if kept.source is link:
                continue
            copy = self.forwarding.copy_of(name)
            in_name = kept.source is None and substring in name
            in_copy = copy is not None and substring in copy
            if not (in_name or in_copy):
                continue

            # Another substring has brought it already.
            if kept.source is None and link in self._remote.subscribers(name):
                continue
            if copy is not None and link in self._remote.subscribers(copy):
                continue
            names.append((name, in_name))
        return names

    def catch_up(self, link: PeerLink, names: Iterable[tuple[str, bool]]) -> None:
        """Send the data kept under ``names``, as :meth:`wanted_before` returned them."""
        for name, itself in names:
            kept = self._retained[name]
            copy = self.forwarding.copy_of(name)
            self._send((link,), name if itself or copy is None else copy, kept.data, kept.identity, kept.hops)
