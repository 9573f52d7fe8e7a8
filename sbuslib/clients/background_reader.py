"""Reader in the background: what a client announced, or watches, outlives its hub, whatever its program does."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from .connection import ClientConnection

logger = logging.getLogger("sbuslib.clients")


class BackgroundReader:
    """Reads for a client while it announces or watches anything, and so connects again when the hub has gone.

    One reader is for all of that, since each takes a thread with :class:`sbuslib.blocking.Client`. It reads the
    application's messages, too: those that nobody takes are bounded by :mod:`.mailboxes`.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection  # the client's
        self._causes: set[object] = set()  # for which it reads; changed with the leader's lock
        self._is_running = False  # changed with the leader's lock

    def begin(self, cause: object, stop: Callable[[], Awaitable[None]]) -> None:
        """Read from now on, because of this presence or watch; ``stop`` ends that when the client is drained."""
        connection = self._connection
        connection.begun[cause] = stop
        with connection.leadership.lock:
            self._causes.add(cause)
            if self._is_running:
                return
            self._is_running = True
            connection.session.bound_inbox()
        connection.runtime.start(self._read())

    def end(self, cause: object) -> None:
        """Note that this presence or watch has ended. After the last one the reader ends with the next packet."""
        connection = self._connection
        connection.begun.pop(cause, None)
        with connection.leadership.lock:
            self._causes.discard(cause)
            connection.leadership.wake_all()  # among them callers that wait for an event of it

    async def _read(self) -> None:
        connection = self._connection
        while True:
            failure: Exception | None = None
            try:
                await connection.until(lambda: not self._causes, None, "")
            except Exception as error:
                failure = error

            with connection.leadership.lock:
                if self._causes and failure is None:  # one more has begun meanwhile
                    continue
                self._is_running = False
            if failure is not None and not connection.is_closed:
                logger.error("client of %s: presences and watches have ended: %s", connection.address, failure)
            return
