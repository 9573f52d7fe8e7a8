"""How a peer publishes: finds the connections that want a name, and queues messages for them.

Forwarded names and copies are handled in :mod:`sbuslib.tcp.mesh`. Other names are looked up in the index of what other
peers want.
"""

from __future__ import annotations

from collections.abc import Iterable

from .framing import check_data, publish_prefix
from .limits import TcpLimits
from .link import Link
from .mesh import Mesh
from .substrings import CACHED_NAME_BYTES, Substrings

__all__ = ["Publisher"]


class Publisher:
    """The publishing half of one peer. ``remote`` is the index of what other peers want."""

    def __init__(self, remote: Substrings[Link], mesh: Mesh, limits: TcpLimits) -> None:
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

    def publish(self, name: str, data: bytes, leave_out: frozenset[Link] = frozenset()) -> None:
        """See :meth:`~sbuslib.tcp.peer.Peer.publish`."""
        start = self.start_of(name)
        if start is None:
            self.published += 1
            self._mesh.publish(name, data)
            return
        check_data(data, self._limits)
        self.published += 1
        links = self._remote.subscribers(name)
        if links:
            command = b"%b%d %b\n" % (start, len(data), data)
            for link in links:
                if link not in leave_out:
                    link.push(command, 1)

    def publish_many(self, messages: Iterable[tuple[str, bytes]], patience: float, leave_out: frozenset[Link]) -> int:
        """See :meth:`~sbuslib.tcp.peer.Peer.publish_many`."""
        count, limit = 0, self._limits.queued_bytes
        for name, data in messages:
            if patience:
                for link in self._remote.subscribers(name):
                    if link.queued_bytes > limit // 2 and not link.slow and link not in leave_out:
                        link.slow = not link.wait_for_room(limit // 4, patience)
            self.publish(name, data, leave_out)
            count += 1
        return count
