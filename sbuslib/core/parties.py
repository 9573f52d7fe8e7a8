"""Who sends and who receives in a hub, as far as they know of each other, and what passes between them in one turn.

A connection is all of these at once; the embedder, its inboxes and relays are some. What each does stands where it is:
:mod:`sbuslib.core.outgoing` for clients, :mod:`sbuslib.core.inbox`, :mod:`sbuslib.tree.uplink`.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from ..secrets import Credentials
from ..wire.batches import Bundle, gather

__all__ = ["Batch", "Holdable", "Holder", "Place", "Receiver", "Routes", "Run", "Sender"]


class Holder(Protocol):
    """A receiver that holds publishers back."""

    def forget_held(self, publisher: Holdable) -> None:
        """A publisher that was held has gone."""
        ...


class Holdable(Protocol):
    """A publisher whose reading can be stopped."""

    @property
    def credentials(self) -> Credentials:
        """What the kernel says of it."""
        ...

    def hold(self, by: Holder) -> None:
        """Read no more from this publisher until ``by`` lets go."""
        ...

    def let_go(self, by: Holder) -> None:
        """``by`` has room again."""
        ...


class Sender(Protocol):
    """Whoever publishes: a connection, or the embedder."""

    @property
    def credentials(self) -> Credentials:
        """What the kernel says of it."""
        ...

    @property
    def key(self) -> bytes:
        """Its credential key."""
        ...

    @property
    def wrapper(self) -> bytes:
        """What goes before its packets on the way to a receiver that asked for senders."""
        ...

    def holdable_by(self, receiver: Receiver) -> Holdable | None:
        """What to hold, when a receiver in ``block`` mode may hold this sender back; else ``None``."""
        ...


class Place(Protocol):
    """Where packets lie. For what the methods do see :class:`~sbuslib.kernel.areas.PlainArea`."""

    def packet(self, slot: int, length: int) -> bytes: ...

    def packets(self, slots: Sequence[int], lengths: Sequence[int]) -> list[bytes]: ...

    def send(self, sock: socket.SocketType, slots: Sequence[int], lengths: Sequence[int]) -> int: ...

    def send_wrapped(
        self, sock: socket.SocketType, wrapper: bytes, slots: Sequence[int], lengths: Sequence[int]
    ) -> int: ...


class Batch:
    """Packets where they lie. Those of a turn are in the hub's area, and good until the turn ends."""

    __slots__ = ("_bundles", "_copies", "_shortest", "area", "lengths")

    def __init__(self, area: Place, lengths: Sequence[int], shortest: int = 0) -> None:
        self.area = area
        self.lengths = lengths
        self._copies: dict[int, bytes] = {}
        self._bundles: dict[Sequence[int], Bundle | None] = {}
        self._shortest = shortest

    @property
    def shortest(self) -> int:
        """The length of the shortest packet."""
        if not self._shortest:
            self._shortest = min(self.lengths)
        return self._shortest

    def size(self, slots: Sequence[int]) -> int:
        """Bytes of several packets."""
        if isinstance(slots, range):
            return sum(self.lengths[slots.start : slots.stop])
        return sum(map(self.lengths.__getitem__, slots))

    def packet(self, slot: int) -> bytes:
        """A copy of a packet, for keeps; one object for all who ask."""
        copy = self._copies.get(slot)
        if copy is None:
            copy = self._copies[slot] = self.area.packet(slot, self.lengths[slot])
        return copy

    def copies(self, slots: Sequence[int]) -> list[bytes]:
        """Copies of several packets that are not remembered: for who takes all that there are."""
        return self.packets(slots) if self._copies else self.area.packets(slots, self.lengths)

    def packets(self, slots: Sequence[int]) -> list[bytes]:
        """Copies of several packets, likewise."""
        copies = self._copies
        if copies:
            return [self.packet(slot) for slot in slots]
        made = self.area.packets(slots, self.lengths)
        copies.update(zip(slots, made, strict=True))
        return made

    def bundle_made(self, slots: Sequence[int]) -> Bundle | None:
        """Several packets as one, where somebody was handed them so before."""
        return self._bundles.get(slots if isinstance(slots, range) else tuple(slots)) if self._bundles else None

    def bundle(self, slots: Sequence[int], most: int) -> Bundle | None:
        """Several packets, all of them messages, as one; ``None`` when they come to more than ``most`` bytes."""
        which = slots if isinstance(slots, range) else tuple(slots)
        try:
            return self._bundles[which]
        except KeyError:
            pass
        made: Bundle | None = None
        if self.size(slots) <= most:
            made = gather(self.packets(slots))
        self._bundles[which] = made
        return made


class Receiver(Protocol):
    """Whoever messages can be routed to: a connection, or an inbox of the embedder."""

    def __hash__(self) -> int: ...

    @property
    def credentials(self) -> Credentials:
        """What the kernel says of it."""
        ...

    @property
    def refuses(self) -> bool:
        """Whether the next messages will be lost, as far as is known: which costs next to nothing."""
        ...

    def deliver(self, sender: Sender, batch: Batch, slots: Sequence[int]) -> None:
        """Send or copy the packets in ``slots``, now."""
        ...

    def deliver_packet(self, sender: Sender, packet: bytes) -> None:
        """Send or keep one packet that lies elsewhere."""
        ...

    def deliver_bundle(self, sender: Sender, bundle: Bundle) -> None:
        """Send or keep messages that came together."""
        ...

    @property
    def takes_batches(self) -> bool:
        """Whether messages that came together may go on so."""
        ...


Routes: TypeAlias = tuple[Receiver, ...]
"""The receivers of a message."""

Run: TypeAlias = tuple[int, int, Routes]
"""Packets of a batch, from one slot to before another, and their receivers."""
