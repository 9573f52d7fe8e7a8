"""How a peer publishes: finds the connections that want a name, and queues messages for them.

Forwarded names and copies are handled in :mod:`sbuslib.tcp.mesh`. Other names are looked up in the index of what other
peers want.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import PayloadError
from .framing import encode_publish, publish_prefix
from .limits import TcpLimits
from .link import Link
from .mesh import Mesh
from .substrings import CACHED_NAME_BYTES, Substrings

__all__ = ["Publisher"]

_RUN_BYTES = 65_536  # messages under one name are joined up to here before they are queued: what may be lost at once


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

    def publish(self, name: str, data: bytes) -> None:
        """See :meth:`~sbuslib.tcp.peer.Peer.publish`."""
        start = self.start_of(name)
        self.published += 1
        if start is None:
            self._mesh.publish(name, data)
            return
        links = self._remote.subscribers(name)
        if links:
            command = encode_publish(name, data, self._limits)
            for link in links:
                link.push(command, 1)

    def publish_many(self, messages: Iterable[tuple[str, bytes]], patience: float, leave_out: frozenset[Link]) -> int:
        """See :meth:`~sbuslib.tcp.peer.Peer.publish_many`."""
        run = _Run(patience, self._limits)
        add = run.add
        count = 0
        name: str | None = None
        start: bytes | None = b""
        try:
            for new_name, data in messages:
                if new_name != name:
                    name = new_name
                    start = self.start_of(name)
                    run.go_to(self._wanting(name, leave_out) if start is not None else (), start or b"")
                if start is None:
                    self._mesh.publish(new_name, data)
                elif add(data):
                    name = None  # the links are looked up again, as sending may have waited
                count += 1
        finally:
            run.send()
            self.published += count
        return count

    def _wanting(self, name: str, leave_out: frozenset[Link]) -> tuple[Link, ...]:
        found = self._remote.subscribers(name)
        return tuple([link for link in found if link not in leave_out]) if leave_out else found


class _Run:
    """Messages for the same connections, one after another, which are queued together."""

    __slots__ = ("_header", "_length", "_limits", "_links", "_parts", "_patience", "_size", "_start")

    def __init__(self, patience: float, limits: TcpLimits) -> None:
        self._patience = patience
        self._limits = limits
        self._links: tuple[Link, ...] = ()
        self._start = self._header = b""
        self._length = -1
        self._parts: list[bytes] = []
        self._size = 0

    def go_to(self, links: tuple[Link, ...], start: bytes) -> None:
        """Let messages that are added later start with ``start`` and go to ``links``."""
        if links != self._links:
            self.send()
            self._links = links
        self._start, self._length = start, -1

    def add(self, data: bytes) -> bool:
        """Add one message; whether all were sent, as there is enough. Raises :exc:`~sbuslib.errors.PayloadError`."""
        length = len(data)
        if length != self._length:
            if not isinstance(data, bytes):
                raise PayloadError(f"data is bytes, not {type(data).__name__}")
            if length > self._limits.data_bytes:
                raise PayloadError(f"data of {length:,} bytes: the limit is {self._limits.data_bytes:,}")
            self._length = length
            self._header = b"%b%d " % (self._start, length)
        self._parts += (self._header, data, b"\n")
        self._size += length
        if self._size <= _RUN_BYTES:
            return False
        self.send()
        return True

    def send(self) -> None:
        """Queue the added messages for each connection; wait for slow connections first, if that was asked for."""
        parts, self._parts, self._size = self._parts, [], 0
        if not parts or not self._links:
            return
        commands = b"".join(parts)
        limit = self._limits.queued_bytes
        for link in self._links:
            if self._patience and link.queued_bytes > limit // 2 and not link.slow:
                link.slow = not link.wait_for_room(limit // 4, self._patience)
            link.push(commands, len(parts) // 3)
