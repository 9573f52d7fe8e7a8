"""What clients that block, and hubs, hand out where something is subscribed to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

from ..wire.packets import Message


class Subscription(Protocol):
    """What a client or a hub has subscribed to, with a queue of its own. The end of its ``with`` takes it back."""

    @property
    def patterns(self) -> tuple[bytes, ...]:
        """What is subscribed to. A secret pattern changes with the credentials of the client."""

    @property
    def lost(self) -> dict[str, int]:
        """Messages that did not come, by cause: ``unread`` found the queue of the subscription full.

        What the hub tells of losses is counted where the client is subscribed to nothing else, to answers either: its
        notices do not say under which keys. ``lost`` of the client has all of it.
        """

    @property
    def closed(self) -> bool:
        """Whether it was taken back. What came before can still be received."""

    def receive(self, *, timeout: float | None = None) -> Message:
        """The next message, oldest first.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, and :exc:`~sbuslib.errors.DisconnectedError` when the
        subscription was taken back, or the connection or the hub ended, and nothing is left.
        """

    def receive_many(self, *, most: int | None = None, timeout: float | None = None) -> list[Message]:
        """At least one message, and all others that are here, up to ``most``. Raises as :meth:`receive`.

        With ``timeout=0``, all that are here, which may be none.
        """

    def unsubscribe(self) -> None:
        """Take the subscription back: nothing more comes. A second call does nothing."""

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the subscription is taken back, or the client or the hub closed.

        Raises :exc:`~sbuslib.errors.DisconnectedError` when the hub of a client closes the connection.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object, /) -> None: ...
