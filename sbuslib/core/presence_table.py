"""Who is there, as the parts of a hub that serve clients know it: :class:`PresenceTable`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..reasons import Reason
from .outgoing import Outgoing
from .records import PresenceRecord


class PresenceTable(Protocol):
    """The presences of a tree, in :mod:`sbuslib.tree.presences`."""

    def add(self, client: Outgoing, key: bytes, info: bytes) -> Reason | None:
        """A client is present from now on. Returns why it may not be."""

    def remove(self, client: Outgoing, key: bytes) -> bool:
        """It is no more. Returns whether it was."""
        ...

    def watch(self, client: Outgoing, raw: bytes) -> None:
        """A client watches a pattern, or is told why it may not."""

    def unwatch(self, client: Outgoing, raw: bytes) -> bool:
        """It does so no more. Returns whether it did."""
        ...

    def watched(self, client: Outgoing) -> list[bytes]:
        """The patterns that a client watches."""
        ...

    def review(self, client: Outgoing) -> Iterator[None]:
        """The rules have changed: take away what they no longer allow a client, in small steps."""
        ...

    @property
    def last(self) -> int:
        """The last number that was given to a presence."""
        ...

    def record(self, numbers: dict[Outgoing, int]) -> list[PresenceRecord]:
        """All presences, for a hub that takes over; ``numbers`` are those of the clients."""
        ...

    def restore(self, last: int, records: list[PresenceRecord], clients: dict[int, Outgoing]) -> None:
        """Go on from what another process knew."""
