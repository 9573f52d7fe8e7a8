"""Interface of subscriptions, as blocking clients and hubs return them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

from ...wire.packets import Message


class Subscription(Protocol):
    """A subscription of a client or a hub, with a queue of its own. The end of its ``with`` ends it."""

    @property
    def patterns(self) -> tuple[bytes, ...]:
        """The patterns subscribed to. A secret pattern changes with the credentials of the client."""

    @property
    def lost(self) -> dict[str, int]:
        """Lost messages, by cause: ``unread`` ones found the queue of the subscription full.

        Losses that the hub reports are counted here only if this is the client's only subscription and it has made no
        requests: the hub's notices do not name keys. ``lost`` of the client has all of them.
        """

    @property
    def closed(self) -> bool:
        """Whether it has ended. Messages that came before can still be received."""

    def receive(self, *, timeout: float | None = None) -> Message:
        """Return the next message, oldest first.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, and :exc:`~sbuslib.errors.DisconnectedError` when the
        subscription, the connection or the hub has ended, and no message is left.
        """

    def receive_many(self, *, most: int | None = None, timeout: float | None = None) -> list[Message]:
        """Return at least one message, and all others that are here, up to ``most``. Raises as :meth:`receive`.

        With ``timeout=0``, return all that are here, which may be none.
        """

    def unsubscribe(self) -> None:
        """End the subscription: no more messages come. A second call does nothing."""

    def __iter__(self) -> Iterator[Message]:
        """Yield messages as they come, until the subscription ends, or the client or the hub is closed.

        Raises :exc:`~sbuslib.errors.DisconnectedError` when the hub of a client closes the connection.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object, /) -> None: ...
