"""The objects by which a client is present, and watches: for asyncio as they are.

``client.presence``, ``client.present`` and ``client.hub.watch_interest`` make them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Generic, Self, TypeVar

from ..errors import DisconnectedError, RefusedError, StateError, UsageError
from ..wire.packets import Key, as_key
from ..wire.presence import INFO_BYTES, INTEREST_WATCH, PRESENCE_ON
from .basic_operations import BasicOperations
from .watching import InterestWatch, PresenceEvent, PresenceWatch, Present, Watch

T = TypeVar("T")


class AioPresence:
    """A client that is present under a key, until the end of ``with``, :meth:`leave`, or the end of its connection.

    After a reconnection it is present again.
    """

    def __init__(self, operations: BasicOperations, key: bytes, info: bytes) -> None:
        self._operations = operations
        self.key = key
        """Under which it is present."""
        self.info = info
        """What it says of itself."""

    async def begin(self) -> None:
        """Be present, in force when this returns. Raises :exc:`~sbuslib.errors.RefusedError`."""
        connection, session = self._operations.connection, self._operations.connection.session
        _check(self._operations, PRESENCE_ON, "know who is present")
        if self.key in session.watching.present:
            raise StateError(f"{connection.address}: this client is present under {self.key!r} already")

        # Known to the session first: a new connection says it again.
        rest = b"\0%b\0%b" % (self.key, self.info)
        session.watching.appear(self.key, self.info)
        try:
            refused = await connection.ask(lambda: session.ask_by_token(PRESENCE_ON, rest))
        except BaseException:
            await self.leave()
            raise

        if refused:
            session.watching.present.pop(self.key, None)
            reason = refused.decode("ascii", "replace")
            raise RefusedError(f"{connection.address}: the hub refused the presence: {reason}", reason)

    async def leave(self) -> None:
        """Be present no more: others are told that it was closed."""
        connection = self._operations.connection
        if not connection.is_closed:
            with suppress(DisconnectedError):  # with its connection it has gone
                await connection.change(lambda: connection.session.watching.leave(self.key))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()


class AioWatch(Generic[T]):
    """Events about what a client watches. The end of its ``with`` ends it."""

    def __init__(self, operations: BasicOperations, watch: Watch[T]) -> None:
        self._operations = operations
        self._watch = watch

    async def open(self) -> None:
        """Watch, and wait until the hub has said how things are. Raises :exc:`TimeoutError`."""
        connection = self._operations.connection
        connection.stay()
        try:
            await self._operations.watch(self._watch)
            await connection.until(
                lambda: self._watch.is_known,
                connection.deadline(connection.timeout),
                f"{connection.address}: the hub did not answer in time",
            )
        except BaseException:
            await self.close()
            raise

    @property
    def pattern(self) -> bytes:
        """What is watched."""
        return self._watch.pattern

    @property
    def missed(self) -> int:
        """Events that were forgotten: of more than 65,536 that nobody took, the oldest."""
        return self._watch.missed

    async def receive(self, *, timeout: float | None = None) -> T:
        """The next event.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, and :exc:`~sbuslib.errors.DisconnectedError` when it was
        ended.
        """
        connection, events = self._operations.connection, self._watch.events
        deadline = connection.deadline(timeout)
        while True:
            with suppress(IndexError):
                return events.popleft()
            if self._watch.closed:
                raise DisconnectedError("this is watched no more")
            await connection.until(self._watch.is_ready, deadline, f"nothing has changed within {timeout or 0:.3g} s")

    async def next(self) -> tuple[T] | None:
        """The next event; ``None`` when no more will come."""
        try:
            return (await self.receive(),)
        except DisconnectedError:
            if self._watch.closed or self._operations.connection.is_closed:
                return None
            raise

    async def __aiter__(self) -> AsyncIterator[T]:
        """Events as they come, until it is ended or the client closed."""
        while (event := await self.next()) is not None:
            yield event[0]

    async def close(self) -> None:
        """Watch no more."""
        await self._operations.unwatch(self._watch)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AioInterest(AioWatch["bool | None"]):
    """Whether a key has addressees: *True*, *False*, or *None* where the hub does not know."""

    _watch: InterestWatch

    @property
    def wanted(self) -> bool | None:
        """How it was when this client received last."""
        return self._watch.state


class AioPresent(AioWatch[PresenceEvent]):
    """Who is present under keys of a pattern, and events when somebody comes and goes."""

    _watch: PresenceWatch

    @property
    def members(self) -> list[Present]:
        """Who was there when this client received last, in the order in which the hub learned of them."""
        return list(self._watch.members.values())

    @property
    def is_whole(self) -> bool:
        """Whether the hub knew all of its tree when it listed them. Else a link was away, or a hub has just begun."""
        return self._watch.is_whole


async def be_present(operations: BasicOperations, key: Key, info: bytes) -> AioPresence:
    """As ``presence`` of a client."""
    key = as_key(key)
    operations.connection.session.check_publishable(key)
    if not isinstance(info, bytes) or len(info) > INFO_BYTES:
        raise UsageError(f"info is at most {INFO_BYTES:,} bytes, not {info!r:.100}")
    presence = AioPresence(operations, key, info)
    await presence.begin()
    return presence


async def watch_presences(operations: BasicOperations, pattern: Key) -> AioPresent:
    """As ``present`` of a client."""
    _check(operations, PRESENCE_ON, "know who is present")
    watch = PresenceWatch(as_key(pattern, "pattern"))
    present = AioPresent(operations, watch)
    await present.open()
    if watch.refused:
        await present.close()
        raise RefusedError(f"{operations.connection.address}: the hub refused this: {watch.refused}", watch.refused)
    return present


async def watch_interest(operations: BasicOperations, pattern: Key) -> AioInterest:
    """As ``hub.watch_interest`` of a client."""
    _check(operations, INTEREST_WATCH, "say when a key is wanted")
    interest = AioInterest(operations, InterestWatch(as_key(pattern, "pattern")))
    await interest.open()
    return interest


def _check(operations: BasicOperations, feature: bytes, what: str) -> None:
    """Raise :exc:`~sbuslib.errors.StateError` for a hub that cannot do something."""
    operations.connection.check_caller()
    if not operations.connection.session.can(feature):
        raise StateError(f"{operations.connection.address}: this hub does not {what}")
