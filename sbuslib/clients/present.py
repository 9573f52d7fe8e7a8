"""Handles of presences and watches, in the form for asyncio.

``client.presence``, ``client.present`` and ``client.hub.watch_interest`` return them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, Generic, Self, TypeVar

from ..errors import DisconnectedError, RefusedError, StateError, UsageError
from ..wire.packets import Key, as_key
from ..wire.presence import INFO_BYTES, INTEREST_WATCH, PRESENCE_ON
from .basic_operations import BasicOperations
from .hub_requests import HubQuestion
from .watching import InterestWatch, PresenceEvent, PresenceWatch, Present, Watch

T = TypeVar("T")

_NO_PRESENCE: Final = "this hub does not know who is present"


class AioPresence:
    """A client that is present under a key, until the end of ``with``, :meth:`leave`, or the end of its connection.

    After a reconnection it is present again.
    """

    def __init__(self, operations: BasicOperations, key: bytes, info: bytes) -> None:
        self._operations = operations
        self.key = key
        """The key under which it is present."""
        self.info = info
        """Its description of itself."""

    async def begin(self) -> None:
        """Be present, in force when this returns. Raises :exc:`~sbuslib.errors.RefusedError`."""
        connection, session = self._operations.connection, self._operations.connection.session
        connection.check_caller()
        if self.key in session.watching.present:
            raise StateError(f"{connection.address}: this client is present under {self.key!r} already")

        # Known to the session first: a new connection announces it again.
        rest = b"\0%b\0%b" % (self.key, self.info)
        session.watching.appear(self.key, self.info)

        def ask() -> HubQuestion:
            connection.require(PRESENCE_ON, _NO_PRESENCE)
            return session.ask_by_token(PRESENCE_ON, rest)

        connection.stay()
        try:
            refused = await connection.ask(ask, connection.limit())
        except BaseException:
            self._leave()
            raise

        if refused:
            session.watching.present.pop(self.key, None)
            reason = refused.decode("ascii", "replace")
            raise RefusedError(f"{connection.address}: the hub refused the presence: {reason}", reason)
        self._operations.reader.begin(self, self.leave)

    async def leave(self) -> None:
        """End the presence: others get the reason ``closed``."""
        self._leave()

    def _leave(self) -> None:
        connection = self._operations.connection
        if not connection.is_closed:
            connection.change_now(lambda: connection.session.watching.leave(self.key))
        self._operations.reader.end(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()


class AioWatch(Generic[T]):
    """Events of one watch of a client. The end of its ``with`` ends it."""

    def __init__(self, operations: BasicOperations, watch: Watch[T]) -> None:
        self._operations = operations
        self._watch = watch

    async def open(self, feature: bytes, lack: str) -> None:
        """Watch, and wait until the hub has sent the present state. Raises :exc:`TimeoutError`, and
        :exc:`~sbuslib.errors.StateError`, saying the ``lack``, for a hub without the ``feature``.
        """
        connection, watch = self._operations.connection, self._watch
        deadline, late = connection.limit(), f"{connection.address}: the hub did not answer in time"
        connection.stay()
        await connection.reach(deadline)
        try:
            self._operations.watch(watch)
            await connection.until(lambda: watch.is_known or not connection.session.can(feature), deadline, late)
            connection.require(feature, lack)
        except BaseException:
            self._end()
            raise
        self._operations.reader.begin(self, self.close)

    @property
    def pattern(self) -> bytes:
        """The pattern that is watched."""
        return self._watch.pattern

    @property
    def missed(self) -> int:
        """Number of events that were dropped: of more than 65,536 that nobody took, the oldest."""
        return self._watch.missed

    async def receive(self, *, timeout: float | None = None) -> T:
        """Return the next event.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, and :exc:`~sbuslib.errors.DisconnectedError` after the
        watch ended.
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
        """Return the next event; ``None`` when no more will come."""
        try:
            return (await self.receive(),)
        except DisconnectedError:
            if self._watch.closed or self._operations.connection.is_closed:
                return None
            raise

    async def __aiter__(self) -> AsyncIterator[T]:
        """Yield events as they come, until the watch ends or the client is closed."""
        while (event := await self.next()) is not None:
            yield event[0]

    async def close(self) -> None:
        """End the watch."""
        self._end()

    def _end(self) -> None:
        self._operations.end_watch(self._watch)
        self._operations.reader.end(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AioInterest(AioWatch["bool | None"]):
    """Whether a key has addressees: *True*, *False*, or *None* where the hub does not know."""

    _watch: InterestWatch

    @property
    def wanted(self) -> bool | None:
        """The state when this client last received."""
        return self._watch.state


class AioPresent(AioWatch[PresenceEvent]):
    """The clients that are present under keys of a pattern, and events when one comes or goes."""

    _watch: PresenceWatch

    @property
    def members(self) -> list[Present]:
        """The clients that were present when this client last received, in the order in which the hub learned this."""
        return list(self._watch.members.values())

    @property
    def is_whole(self) -> bool:
        """Whether the hub knows its whole tree, as it said last. Else a link is away, or a hub has just started."""
        return self._watch.is_whole


async def be_present(operations: BasicOperations, key: Key, info: bytes) -> AioPresence:
    """Make a presence, as ``presence`` of a client."""
    key = as_key(key)
    operations.connection.session.check_publishable(key)
    if not isinstance(info, bytes) or len(info) > INFO_BYTES:
        raise UsageError(f"info is at most {INFO_BYTES:,} bytes, not {info!r:.100}")
    presence = AioPresence(operations, key, info)
    await presence.begin()
    return presence


async def watch_presences(operations: BasicOperations, pattern: Key) -> AioPresent:
    """Watch presences, as ``present`` of a client."""
    watch = PresenceWatch(as_key(pattern, "pattern"))
    present = AioPresent(operations, watch)
    await present.open(PRESENCE_ON, _NO_PRESENCE)
    if watch.refused:
        await present.close()
        raise RefusedError(f"{operations.connection.address}: the hub refused this: {watch.refused}", watch.refused)
    return present


async def watch_interest(operations: BasicOperations, pattern: Key) -> AioInterest:
    """Watch interest, as ``hub.watch_interest`` of a client."""
    interest = AioInterest(operations, InterestWatch(as_key(pattern, "pattern")))
    await interest.open(INTEREST_WATCH, "this hub does not say when a key is wanted")
    return interest
