"""Ordinary channels, from which any process may receive, for :mod:`.channels`: each is a shared queue.

So a service of queues keeps messages until they are received, and gives each to one process. The queue forgets a
message before it is received: no channel may deliver one twice.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import BoundedSemaphore
from typing import Final

from channels.exceptions import MessageTooLarge

from .. import aio, blocking
from ..clients.job_queue import AioHeldJob, AioWorker
from ..clients.recipes.queue import FULL, JOB_BYTES, list_queues, services_key
from ..errors import NoServerError, ReplyError, SbusError
from .channels_memory import LayerSettings
from .trust import TrustedUsers

FORWARDED: Final = 256
"""Messages for groups that are on their way from one process to ordinary channels. More are dropped."""
LISTED_WITHIN: Final = 0.25
"""Seconds in which services of queues report their queues."""

logger = logging.getLogger("sbuslib.integrations")


class Queues:
    """Sends to ordinary channels. Its methods wait for the service, and raise as :class:`sbuslib.Client`."""

    def __init__(self, settings: LayerSettings, client: blocking.Client) -> None:
        self._settings = settings
        self._client = client
        self._thread = ThreadPoolExecutor(1, "sbus channel layer")  # forwards messages, in their order
        self._room = BoundedSemaphore(FORWARDED)  # for messages that wait for that thread

    def close(self) -> None:
        """Forget messages for groups that are on their way."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def submit(self, channel: str, message: bytes) -> bool:
        """Put a message into a channel. Returns whether there was room."""
        settings, timeout = self._settings, self._client.timeout
        if len(settings.prefix) + len(message) > JOB_BYTES:
            raise MessageTooLarge(f"{channel}: a message for an ordinary channel has less than {JOB_BYTES:,} bytes")
        queue = self._client.queue(settings.queue(channel))
        try:
            # Senders that ask at the same time may put in one message more than there is room for, each.
            if queue.status(timeout=timeout).waiting >= settings.capacity_of(channel):
                return False
            queue.submit(settings.prefix, message, expires=settings.expiry, timeout=timeout)
        except NoServerError:
            start = f"start sbus queue --memory '{settings.queue('*')}'"
            raise NoServerError(f"{channel}: nobody keeps what is sent to ordinary channels: {start}") from None
        except ReplyError as error:
            if str(error) == FULL:
                return False
            raise
        return True

    def forward(self, group: str, channel: str, message: bytes) -> None:
        """Put a message for a group into a channel, soon. Without room it is dropped."""
        if self._room.acquire(blocking=False):
            self._thread.submit(self._forward, group, channel, message)
        else:
            logger.info("%s: a message for group %s is dropped, as too many are on their way", channel, group)

    def _forward(self, group: str, channel: str, message: bytes) -> None:
        try:
            if not self.submit(channel, message):
                logger.info("%s is over capacity: a message for group %s is dropped", channel, group)
        except (SbusError, TimeoutError, MessageTooLarge) as error:
            logger.warning("a message for group %s does not reach %s: %s", group, channel, error)
        finally:
            self._room.release()

    def purge(self) -> None:
        """Forget the messages in all channels of the layer."""
        client, mine = self._client, self._settings.queue("").encode()
        key = services_key(client.hub.separator)
        with suppress(ReplyError):  # there are services of others alone
            for name in list_queues(lambda after: client.request_many(key, after, wait=LISTED_WITHIN)):
                if name.startswith(mine):
                    client.queue(name).purge(timeout=client.timeout)


class _Reader:
    """Receives from one channel in one event loop: a worker of its queue.

    It takes as many messages as tasks wait here, and leaves the rest to other processes.
    """

    def __init__(self, settings: LayerSettings, channel: str, client: aio.Client, worker: AioWorker) -> None:
        self._channel = channel
        self._client = client  # its own, of the event loop
        self._trusted = TrustedUsers(f"{channel}: messages", settings.users, client.hub.separator)
        self._worker = worker
        self._waiting = 0  # tasks

    @classmethod
    async def open(cls, settings: LayerSettings, channel: str) -> _Reader:
        """Connect. Raises as :class:`sbuslib.Client`."""
        client = await aio.Client(settings.url.address, reconnect=True, **settings.url.options)
        try:
            worker = await client.queue(settings.queue(channel)).take(prefetch=1, trusted=settings.users)
            await worker.pause()
        except BaseException:
            client.close()
            raise
        return cls(settings, channel, client, worker)

    def close(self) -> None:
        """Close the connection, from the event loop, or when that is closed."""
        self._client.close()

    async def receive(self) -> bytes:
        """Return the next message."""
        while True:
            try:
                await self._count(1)
                job = await self._worker.receive()
            finally:
                await self._count(-1)
            if await job.done() and self._may_come(job):
                return job.payload

    async def _count(self, more: int) -> None:
        self._waiting += more
        await (self._worker.set_prefetch(self._waiting) if self._waiting else self._worker.pause())

    def _may_come(self, job: AioHeldJob) -> bool:
        if job.again:
            logger.warning("%s: a message is dropped, as it may have been received before", self._channel)
            return False
        return self._trusted.why_refused(job.sender, self._client.credentials) is None


class Readers:
    """Receives from ordinary channels, in any event loops."""

    def __init__(self, settings: LayerSettings) -> None:
        self._settings = settings
        #: By event loop and channel, each made by its first task.
        self._opening: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[_Reader]] = {}

    async def receive(self, channel: str) -> bytes:
        """Return the next message of a channel. Raises as :class:`sbuslib.Client` and its workers."""
        loop = asyncio.get_running_loop()
        opening = self._opening.get((loop, channel))
        if opening is None:
            self.close()
            opening = self._opening[loop, channel] = loop.create_task(_Reader.open(self._settings, channel))
        try:
            reader = await asyncio.shield(opening)  # a task that is cancelled takes it from nobody
            return await reader.receive()
        except (SbusError, TimeoutError):
            self._forget(loop, channel)
            raise

    def close(self, of: asyncio.AbstractEventLoop | None = None) -> None:
        """Disconnect where this event loop received, which is that of the caller, and any that is closed by now."""
        for loop, channel in list(self._opening):
            if loop is of or loop.is_closed():
                self._forget(loop, channel)

    def _forget(self, loop: asyncio.AbstractEventLoop, channel: str) -> None:
        opening = self._opening.pop((loop, channel), None)
        if opening is not None and opening.done() and not opening.cancelled() and opening.exception() is None:
            opening.result().close()
