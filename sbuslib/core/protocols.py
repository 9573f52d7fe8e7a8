"""What the parts of a hub are to each other, named by role: sender, receiver, holder.

A connection, the embedder, its inboxes and a relay play these roles. What each of them does stands in its own module:
:mod:`.outgoing` for clients, :mod:`.inbox`, :mod:`sbuslib.tree.uplink`.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from ..secrets import Credentials
from .messages import Messages

__all__ = ["Holdable", "Holder", "Queue", "Receiver", "Routes", "Run", "Sender"]


class Holder(Protocol):
    """A receiver that holds publishers back."""

    def __hash__(self) -> int: ...

    def forget_held(self, publisher: Holdable) -> None:
        """A publisher that was held has gone."""
        ...


class Holdable(Protocol):
    """A publisher whose reading can be stopped."""

    def __hash__(self) -> int: ...

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
    """A publisher: a connection, or the embedder."""

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


class Receiver(Protocol):
    """What messages can be routed to: a client, an inbox of the embedder, a relay."""

    def __hash__(self) -> int: ...

    @property
    def credentials(self) -> Credentials:
        """What the kernel says of it."""
        ...

    @property
    def refuses(self) -> bool:
        """Whether the next messages will probably be lost, which takes next to no time."""
        ...

    @property
    def takes_batches(self) -> bool:
        """Whether a batch costs this receiver no more than a packet."""
        ...

    def deliver(self, sender: Sender, messages: Messages) -> None:
        """Send or copy messages, now."""
        ...


Routes: TypeAlias = tuple[Receiver, ...]
"""The receivers of a message."""

Run: TypeAlias = tuple[int, int, Routes]
"""Packets of one receive call, from one slot to before another, and their receivers."""


class Queue(Protocol):
    """The fan-out queue of one user, as the user's clients see it: see :mod:`.fan_out_queue`."""

    def takes(self, sender: Sender) -> bool:
        """Whether messages of ``sender`` have to wait here, so that they keep their order."""
        ...

    def add(self, receiver: Receiver, sender: Sender, messages: Messages) -> None:
        """Put messages for one client at the end."""
        ...

    def add_answer(self, receiver: Receiver, packet: bytes) -> bool:
        """Put an answer at the end; ``False``, and nothing put, when so many wait that the client is to be kicked."""
        ...
