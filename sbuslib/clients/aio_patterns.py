"""How the asyncio client carries out patterns, and the verbs that are patterns."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from ..errors import DisconnectedError, SbusError
from ..kernel.files import Source, open_source
from ..patterns.large import MOST_BYTES, Sent
from ..patterns.queue import Job, Work, submit
from ..patterns.request import Answer, Question, request, request_many
from ..patterns.steps import Mailbox, Steps
from ..wire import control
from ..wire.packets import Message
from .aio_channel import AioChannel
from .batch import Pair
from .large import AioFiles, receiving, sending

__all__ = ["AioBlock", "AioPatterns", "AioWorker"]

T = TypeVar("T")


class AioPatterns(AioChannel):
    """As :class:`~sbuslib.clients.patterns.Patterns`, awaited."""

    def _make_locks(self) -> None:
        super()._make_locks()
        self._posted: list[Pair] = []

    @abstractmethod
    async def publish(self, key: bytes, payload: bytes = b"") -> None: ...

    @abstractmethod
    async def publish_many(self, messages: Iterable[tuple[bytes, bytes]]) -> int: ...

    @abstractmethod
    async def subscribe(self, *patterns: bytes) -> None: ...

    @abstractmethod
    async def unsubscribe(self, *patterns: bytes) -> None: ...

    @abstractmethod
    async def sync(self, scope: str = "local") -> str: ...

    async def perform(self, steps: Steps[T]) -> T:
        """Carry out a pattern, see :mod:`sbuslib.patterns.steps`. What it returns; raises what it raises."""
        try:
            step = next(steps)
            while True:
                try:
                    result = step.do(self)
                    if isinstance(result, Awaitable):
                        result = await result
                except BaseException as error:  # a cancelled task, too: the pattern cleans up
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    async def last(self, *patterns: bytes) -> list[Message]:
        """The newest message of each key that matches, as a service keeps them."""
        return await self.perform(self._last(patterns))

    async def send_large(
        self, key: bytes, source: Source, *, name: str | None = None, receivers: int = 1, timeout: float = 30.0
    ) -> Sent:
        """Send a file, or bytes, of any size. See :meth:`.patterns.Patterns.send_large`."""
        with open_source(source) as opened:
            return await self.perform(sending(self, key, opened, name, receivers, timeout))

    def receive_large(
        self,
        *patterns: bytes,
        folder: str | os.PathLike[str] | None = None,
        most: int = MOST_BYTES,
        timeout: float = 30.0,
    ) -> AioFiles:
        """Receive what :meth:`send_large` sends, with ``async with``. See :meth:`.patterns.Patterns.receive_large`."""
        return AioFiles(self, receiving(self, patterns, folder, most, timeout))

    async def submit(self, name: str, key: bytes, payload: bytes = b"", *, timeout: float | None = 10.0) -> None:
        """Put a job into the queue ``name``, and wait until it is accepted."""
        await self.submit_many(name, [(key, payload)], timeout=timeout)

    async def submit_many(
        self, name: str, jobs: Iterable[tuple[bytes, bytes]], *, timeout: float | None = 10.0
    ) -> None:
        """Put jobs, pairs of key and payload, into the queue ``name``, and wait until all are accepted."""
        await self.perform(submit(self._asking(secret=True), name.encode(), jobs, self._session.separator, timeout))

    def work(
        self,
        name: str,
        function: Callable[[Job], object] | None = None,
        *,
        room: int = 8,
        at_once: int = 1,
        trusted: Iterable[int] = (),
    ) -> AioWorker:
        """As :meth:`.patterns.Patterns.work`, for ``async with`` and ``async for``; it may be a coroutine function."""
        return AioWorker(self, self._work(name, room, trusted), function, at_once)

    async def tell_senders(self) -> None:
        """Have messages carry their senders, if the hub can tell and nothing was chosen yet."""
        session = self._session
        if session.can(control.SENDERS_ON) and b"senders" not in session.choices:
            await self._say(lambda: session.choose(control.SENDERS_ON))

    async def open_mailbox(self, mailbox: Mailbox) -> None:
        """Subscribe for a mailbox. Raises as ``subscribe`` does."""
        self._session.divert(mailbox)
        try:
            await self.subscribe(*mailbox.patterns)
        except BaseException:
            self._forget_mailbox(mailbox)
            raise

    async def close_mailbox(self, mailbox: Mailbox) -> None:
        """Unsubscribe what a mailbox has. What was on its way to it does not come into the inbox."""
        mailbox.closed = True  # whoever waits for it may be the one that reads: the answer to sync lets them look
        try:
            with suppress(DisconnectedError):
                await self.unsubscribe(*mailbox.patterns)
                await self.sync()
        finally:
            self._forget_mailbox(mailbox)

    def _forget_mailbox(self, mailbox: Mailbox) -> None:
        self._session.divert_no_more(mailbox)
        self._lead.wake_all()

    def post(self, key: bytes, payload: bytes) -> Awaitable[None] | None:
        """Publish a message in one packet with what other tasks post before anybody reads."""
        if not self._lead.is_wanted:
            return self.publish(key, payload)
        self._check_caller()
        self._session.encode(key, payload)  # what cannot be published is told to its caller
        self._posted.append((key, payload))
        if len(self._posted) == 1:
            self._posting = asyncio.ensure_future(self._send_posted())
        return None

    async def _send_posted(self) -> None:
        pairs, self._posted = self._posted, []
        with suppress(OSError, SbusError):  # who waits for an answer finds out that there is no connection
            await self.publish_many(pairs)

    async def request(
        self, key: bytes, payload: bytes = b"", *, timeout: float | None = 10.0, secret: bool = True
    ) -> bytes:
        """Ask who serves ``key``, and wait for the answer, of the first that takes the question."""
        return await self.perform(request(self._asking(secret), key, payload, timeout))

    async def request_many(
        self, key: bytes, payload: bytes = b"", *, wait: float = 1.0, most: int | None = None, secret: bool = True
    ) -> list[Answer]:
        """Ask all who serve ``key``. The answers that come within ``wait`` seconds, or the first ``most``."""
        return await self.perform(request_many(self._asking(secret), key, payload, wait, most))

    def serve(
        self, pattern: bytes, function: Callable[[Question], bytes | Awaitable[bytes]], *, workers: int = 1
    ) -> AioBlock:
        """Answer questions in the background of an ``async with``; ``function`` may be a coroutine function."""
        mailbox = Mailbox(pattern)
        return AioBlock(self, mailbox, self._server(mailbox, function, workers).runners)

    async def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Receive until ``ready()`` holds; ``False`` after ``timeout`` seconds."""
        try:
            await self._until(ready, timeout, "")
        except TimeoutError:
            return ready()
        return True


class AioBlock:
    """As :class:`~sbuslib.clients.patterns.Block`, for ``async with``."""

    def __init__(self, client: AioPatterns, mailbox: Mailbox, patterns: Sequence[Steps[Any]]) -> None:
        self._client = client
        self._mailbox = mailbox
        self._patterns = patterns

    async def __aenter__(self) -> Self:
        await self._client.open_mailbox(self._mailbox)
        self._running = [asyncio.ensure_future(self._client.perform(steps)) for steps in self._patterns]
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._client.close_mailbox(self._mailbox)
        results = await asyncio.gather(*self._running, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and error is None and not self._client.closed:
                raise result


class AioWorker(AioBlock):
    """As :class:`~sbuslib.clients.patterns.Worker`, for ``async with`` and ``async for``."""

    def __init__(self, client: AioPatterns, work: Work, function: Callable[[Job], object] | None, at_once: int) -> None:
        super().__init__(client, work.mailbox, work.parts(function, at_once))
        self._work = work
        self.done = work.done
        self.failed = work.failed

    async def __aenter__(self) -> Self:
        await self._client.tell_senders()
        return await super().__aenter__()

    async def next(self, timeout: float | None = None) -> Job | None:
        """The next job; ``None`` after ``timeout`` seconds, and at the end of the block."""
        return await self._client.perform(self._work.next(timeout))

    async def __aiter__(self) -> AsyncIterator[Job]:
        while (job := await self.next()) is not None:
            yield job
