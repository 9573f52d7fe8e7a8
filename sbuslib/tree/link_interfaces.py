"""Interfaces (:class:`typing.Protocol`) of links, the parent and the relay, for other modules of this folder.

With the classes themselves, these would import each other in a circle. The protocol between hubs is in
:mod:`.child_link` and :mod:`.parent_link`.
"""

from __future__ import annotations

from typing import Protocol

from ..core.protocols import Receiver
from ..core.publisher import Publisher
from ..statistics import ExplainedLink, LinkStatistics
from .open_questions import OnAnswer


class Neighbour(Protocol):
    """A link to another hub."""

    trusted: bool
    """Whether syncs wait for its answers."""
    lagging: bool
    """Whether it has not answered a question in time, and none since."""

    def __hash__(self) -> int: ...

    @property
    def publisher(self) -> Publisher:
        """The connection."""

    @property
    def receiver(self) -> Receiver:
        """The receiver object for the other end, in routes."""

    @property
    def room(self) -> int:
        """How many more packets may wait for it."""

    def announce(self, most: int) -> tuple[int, bool]:
        """Announce up to ``most`` changes, as far as there is room. Returns how many, and whether there are more."""

    def give_up(self) -> None:
        """Disconnect, since the two ends may no longer agree: the child joins again, and both begin anew."""

    def ask(self, on_answer: OnAnswer) -> bytes:
        """Ask it to answer once all interest announced to it is in force there.

        Returns the token of the question; empty if it is not asked.
        """


class ChildPort(Neighbour, Protocol):
    """The link to a child."""

    synced: bool
    """Whether it has announced all the interest of the hubs below it."""

    def note_overdue(self, token: bytes) -> None:
        """It did not answer a question in time."""

    def say(self, *packets: bytes) -> None:
        """Send or queue control packets."""


class Joiner(Protocol):
    """The relay, which joins one parent after another."""

    def leave(self, timeout: float) -> bool:
        """Leave the parent in good order, and join none. Returns whether that was done within the timeout."""

    def join_again(self) -> None:
        """Join a hub again after :meth:`leave`."""

    def stop(self) -> None:
        """The hub stops."""


class ParentPort(Protocol):
    """The parent, whether or not there is a link to it."""

    relay: Joiner

    @property
    def up(self) -> Receiver:
        """The receiver object for messages to it, in routes."""

    @property
    def joined(self) -> Neighbour | None:
        """The link to it, once this hub has joined over it."""

    @property
    def settled(self) -> bool:
        """Whether this hub has joined, or has failed to."""

    @property
    def stands_apart(self) -> bool:
        """Whether this hub stays without a parent because joining would make a loop or too deep a tree."""

    @property
    def announces_presences(self) -> bool:
        """Whether there is a link over which it announces presences."""

    @property
    def scope_alone(self) -> bytes:
        """The scope of a sync without the parent: *tree* if this hub stands apart, else *partial*."""

    def is_sending(self) -> bool:
        """Whether messages wait that can be sent."""

    def may_import(self, key: bytes) -> bool:
        """Whether a message under a key may come down from it."""
        ...

    def explain(self, key: bytes, carries: bool) -> ExplainedLink:
        """Explain the outcome on the link to it for a message under a key; ``carries``: it is a receiver."""

    def statistics(self) -> LinkStatistics:
        """The link to it."""

    def abandon(self) -> None:
        """End it in a forked child process, and send nothing."""
