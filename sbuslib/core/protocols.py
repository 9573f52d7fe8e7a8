"""The roles that the parts of a hub play for each other: sender, receiver, holder.

A connection, the embedder, its inboxes and a relay play them. The receivers are in :mod:`.outbound` for clients, in
:mod:`.embedder` and in :mod:`sbuslib.tree.uplink`.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from ..secrets import Credentials
from ..statistics import ClientStatistics
from ..wire.control import Away, Lost
from .messages import Messages
from .quotas import Account


class Pauser(Protocol):
    """A receiver that holds publishers back."""

    def __hash__(self) -> int: ...

    def forget_paused(self, publisher: Pausable) -> None:
        """A publisher that was held has left."""


class Pausable(Protocol):
    """A publisher whose reading can be stopped."""

    def __hash__(self) -> int: ...

    @property
    def credentials(self) -> Credentials:
        """Its credentials, from the kernel."""

    def pause(self, by: Pauser) -> None:
        """Read no more from this publisher until ``by`` lets go."""

    def resume(self, by: Pauser) -> None:
        """``by`` has room again."""


class Sender(Protocol):
    """A publisher: a connection, or the embedder."""

    @property
    def credentials(self) -> Credentials:
        """Its credentials, from the kernel."""

    @property
    def key(self) -> bytes:
        """Its credential key."""

    @property
    def wrapper(self) -> bytes:
        """The bytes before its packets, for a receiver that asked for senders."""

    def holdable_by(self, receiver: Receiver) -> Pausable | None:
        """Return the publisher that a receiver in ``block`` mode has to pause for this sender; ``None``: it may not."""


class Receiver(Protocol):
    """A receiver of routed messages: a client, an inbox of the embedder, a relay."""

    def __hash__(self) -> int: ...

    @property
    def credentials(self) -> Credentials:
        """Its credentials, from the kernel."""

    @property
    def takes_batches(self) -> bool:
        """Whether a batch costs this receiver no more than a packet."""

    def deliver(self, sender: Sender, messages: Messages) -> None:
        """Send or copy messages, now."""


class LocalReceiver(Receiver, Protocol):
    """A receiver in the hub's process: an inbox of the embedder, or a recorder."""

    account: Account
    """Of the hub's own user."""
    closed: bool
    """Whether nothing more comes."""
    routed: int
    """Messages that were to come here, ever."""
    lost: dict[str, int]
    """Those of them that were lost, by cause."""

    @property
    def delivered(self) -> int:
        """Those of them that were taken; once closed, all that were not lost."""

    def notify(self, notice: Lost | Away) -> None:
        """Messages were lost between two hubs of the tree."""

    def statistics(self) -> ClientStatistics:
        """This receiver at this instant."""

    def unsubscribe(self) -> None:
        """Receive no more."""

    def end(self) -> None:
        """The hub has gone: nothing more comes."""


Routes: TypeAlias = tuple[Receiver, ...]
"""The receivers of a message."""

Run: TypeAlias = tuple[int, int, Routes]
"""Neighbouring packets of one receive call with the same receivers: first slot, slot after the last, receivers."""


class Queue(Protocol):
    """The fan-out queue of one user, as the user's clients see it: see :mod:`.fan_out`."""

    def takes(self, sender: Sender) -> bool:
        """Whether messages of ``sender`` have to wait here, so that they keep their order."""

    def add(self, receiver: Receiver, sender: Sender, messages: Messages) -> None:
        """Put messages for one client at the end."""

    def add_answer(self, receiver: Receiver, packet: bytes) -> bool:
        """Put an answer at the end; ``False``, and nothing put, when so many wait that the client is to be kicked."""
