"""Protocol of the table of presences, for the parts of a hub that serve clients: :class:`PresenceTable`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..reasons import Reason
from .outbound import Outbound
from .records import PresenceRecord


class PresenceTable(Protocol):
    """The presences of a tree, in :mod:`sbuslib.tree.presences`."""

    def add(self, client: Outbound, key: bytes, info: bytes, *, asks: bool) -> Reason | None:
        """A client is present from now on. Returns why it may not be; one that ``asks`` leaves it at that."""

    def remove(self, client: Outbound, key: bytes) -> bool:
        """It is no more. Returns whether it was."""
        ...

    def watch(self, client: Outbound, raw: bytes) -> None:
        """Begin a watch of a client, or send it the reason why it may not."""

    def unwatch(self, client: Outbound, raw: bytes) -> bool:
        """It does so no more. Returns whether it did."""
        ...

    def watched(self, client: Outbound) -> list[bytes]:
        """The patterns that a client watches."""
        ...

    def review(self, client: Outbound) -> Iterator[None]:
        """The rules have changed: take away what they no longer allow a client, and give back what they do again, in
        small steps."""
        ...

    @property
    def last(self) -> int:
        """The last number that was given to a presence."""
        ...

    def record(self, numbers: dict[Outbound, int]) -> list[PresenceRecord]:
        """All presences, for a hub that takes over; ``numbers`` are those of the clients."""
        ...

    def restore(self, last: int, records: list[PresenceRecord], clients: dict[int, Outbound]) -> None:
        """Go on from what another process knew."""
