"""Publisher of a peer: finds the connections with a subscription, and queues messages for them.

Forwarded names and copies are handled in :mod:`sbuslib.tcp.mesh`. Other names are looked up in the index of the other
peers' subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from .framing import check_data, publish_prefix
from .limits import TcpLimits
from .mesh import Mesh
from .peer_link import PeerLink
from .substrings import CACHED_NAME_BYTES, Substrings

_RUN_BYTES: Final = 65_536
"""Bytes of messages that are joined before they are queued: what may be lost at once."""


class PeerPublisher:
    """Publishes for one peer. ``remote`` is the index of the other peers' subscriptions."""

    def __init__(self, remote: Substrings[PeerLink], mesh: Mesh, limits: TcpLimits) -> None:
        self._remote = remote
        self._mesh = mesh
        self._limits = limits
        self._known = lru_cache(limits.cached_names)(self._start_of)  # for names that are not long
        self.published = 0  # messages

    def start_of(self, name: str) -> bytes | None:
        """``pub <name>`` and a space; ``None`` when the mesh publishes under this name."""
        return self._known(name) if len(name) <= CACHED_NAME_BYTES else self._start_of(name)

    def _start_of(self, name: str) -> bytes | None:
        start = publish_prefix(name, self._limits)
        return None if self._mesh.concerns(name) else start

    def publish(self, name: str, data: bytes) -> None:
        """See :meth:`~sbuslib.tcp.peer.Peer.publish`."""
        self.publish_many(((name, data),))

    def publish_many(self, messages: Iterable[tuple[str, bytes]], patience: float = 0.0) -> int:
        """See :meth:`~sbuslib.tcp.peer.Peer.publish_many`."""
        before, limits = self.published, self._limits
        commands: list[bytes] = []  # for the same connections, queued together, which is much faster
        links: tuple[PeerLink, ...] = ()
        size, last, start = 0, None, None
        header, length = b"", -1  # start of a message under this name, if its data has this length
        try:
            for name, data in messages:
                if name != last:
                    last, start, length = name, self.start_of(name), -1
                    wanting = self._remote.subscribers(name)
                    if start is None or wanting != links:
                        commands, size, whole = [], 0, commands
                        self._push(links, whole, patience)
                        links = wanting
                if start is None:
                    self._mesh.publish(name, data)
                    self.published += 1
                    continue

                if len(data) != length or type(data) is not bytes:
                    check_data(data, limits)
                    length = len(data)
                    header = b"%b%d " % (start, length)
                commands += (header, data, b"\n")
                size += length
                if size > _RUN_BYTES:
                    commands, size, whole = [], 0, commands
                    self._push(links, whole, patience)
                    last = None  # the connections are looked up again, as sending may have waited
        finally:
            self._push(links, commands, patience)
        return self.published - before

    def _push(self, links: tuple[PeerLink, ...], commands: list[bytes], patience: float) -> None:
        """Queue messages for each of these connections; wait for slow ones first, if that was asked for."""
        if not commands:
            return
        count = len(commands) // 3
        self.published += count
        joined, limit = b"".join(commands) if links else b"", self._limits.queued_bytes
        for link in links:
            if patience and link.queued_bytes > limit // 2 and not link.slow:
                link.slow = not link.wait_for_room(limit // 4, patience)
            link.push(joined, count)
