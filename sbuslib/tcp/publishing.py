"""How a peer publishes: finds the connections that want a name, and queues messages for them.

Forwarded names and copies are handled in :mod:`sbuslib.tcp.mesh`. Other names are looked up in the index of what other
peers want.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Final

from .framing import check_data, publish_prefix
from .limits import TcpLimits
from .link import PeerLink
from .mesh import Mesh
from .substrings import CACHED_NAME_BYTES, Substrings

__all__ = ["PeerPublisher"]

_RUN_BYTES: Final = 65_536
"""Bytes of messages under one name that are joined before they are queued: what may be lost at once."""


class PeerPublisher:
    """The publishing half of one peer. ``remote`` is the index of what other peers want."""

    def __init__(self, remote: Substrings[PeerLink], mesh: Mesh, limits: TcpLimits) -> None:
        self._remote = remote
        self._mesh = mesh
        self._limits = limits
        self._names: dict[str, bytes | None] = {}  # what a message under a name starts with; None: the mesh's
        self.published = 0

    def start_of(self, name: str) -> bytes | None:
        """``pub <name>`` and a space; ``None`` when the mesh publishes under this name."""
        try:
            return self._names[name]
        except KeyError:
            pass
        start = publish_prefix(name, self._limits)
        known = None if self._mesh.concerns(name) else start
        if len(name) <= CACHED_NAME_BYTES:
            if len(self._names) >= self._limits.cached_names:
                self._names.clear()
            self._names[name] = known
        return known

    def publish(self, name: str, data: bytes) -> None:
        """See :meth:`~sbuslib.tcp.peer.Peer.publish`."""
        self.publish_many(((name, data),))

    def publish_many(
        self, messages: Iterable[tuple[str, bytes]], patience: float = 0.0, leave_out: frozenset[PeerLink] = frozenset()
    ) -> int:
        """See :meth:`~sbuslib.tcp.peer.Peer.publish_many`."""
        before, limits = self.published, self._limits
        for name, run in groupby(messages, itemgetter(0)):
            start = self.start_of(name)
            if start is None:
                for _, data in run:
                    self._mesh.publish(name, data)
                    self.published += 1
                continue

            # Messages under one name are queued together, which is much faster.
            commands: list[bytes] = []
            size = 0
            try:
                for _, data in run:
                    check_data(data, limits)
                    commands.append(b"%b%d %b\n" % (start, len(data), data))
                    size += len(data)
                    if size > _RUN_BYTES:
                        commands, size, whole = [], 0, commands
                        self._push(name, whole, patience, leave_out)
            finally:
                self._push(name, commands, patience, leave_out)
        return self.published - before

    def _push(self, name: str, commands: list[bytes], patience: float, leave_out: frozenset[PeerLink]) -> None:
        """Queue messages for each connection that wants them; wait for slow ones first, if that was asked for."""
        if not commands:
            return
        self.published += len(commands)
        links, limit = self._remote.subscribers(name), self._limits.queued_bytes
        joined = b"".join(commands) if links else b""
        for link in links:
            if link in leave_out:
                continue
            if patience and link.queued_bytes > limit // 2 and not link.slow:
                link.slow = not link.wait_for_room(limit // 4, patience)
            link.push(joined, len(commands))
