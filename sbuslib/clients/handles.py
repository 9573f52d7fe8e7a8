"""Handles that operations return: subscriptions, services, workers.

For asyncio as they are; the other clients carry out their coroutines.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from functools import update_wrapper
from itertools import repeat, starmap
from typing import Any, Generic, ParamSpec, Self, TypeVar

from ..errors import DescriptorError, DisconnectedError, UsageError
from ..limits import check_count
from ..wire.packets import Key, Message, as_key
from ..wire.text import printable
from .basic_operations import BasicOperations, mailbox_of
from .recipes.mailbox import Mailbox, called

logger = logging.getLogger("sbuslib.clients")

P = ParamSpec("P")
T = TypeVar("T")


class Starting(Coroutine[Any, Any, T]):
    """Result of an operation: it is awaited, or used with ``async with``, whose end stops it. A task takes it, too."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work  # Python warns if it is never awaited
        self._begun: Any = None  # the object that began, inside of "async with"

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, None, T]:
        return self._work.__await__()

    async def __aenter__(self) -> T:
        self._begun = await self._work
        entered: T = await self._begun.__aenter__()
        return entered

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._begun.__aexit__(kind, error, trace)


def starting(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Starting[T]]:
    """A verb that begins something."""

    def begin(*args: P.args, **kwargs: P.kwargs) -> Starting[T]:
        return Starting(verb(*args, **kwargs))

    update_wrapper(begin, verb)
    return begin


class _Background:
    """Works in the background until its mailbox is closed. An error of the work is raised where its end is awaited."""

    def __init__(self, operations: BasicOperations, mailbox: Mailbox) -> None:
        self._operations = operations
        self._mailbox = mailbox  # what the work reads
        self._running: list[Any] = []  # greenlets, threads or tasks
        self._errors: list[Exception] = []  # what ended some of them

    def _begin(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        client = self._operations.connection
        client.begun[self] = self._stop
        self._mailbox.is_worked = True
        self._running = [client.runtime.start(self._run(work)) for work in works]

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._errors.append(error)
            if not self._operations.connection.is_closed:
                logger.error("what a client had begun has ended: %s", error)

    async def _end(self) -> None:
        """Close the mailbox, and wait until the work has ended."""
        if not self._mailbox.closed:
            await self._operations.close_mailbox(self._mailbox)
        await self._join()

    async def _join(self) -> None:
        self._operations.connection.begun.pop(self, None)
        for running in self._running:
            await self._operations.connection.runtime.join(running)

    async def _stop(self) -> None:
        await self._end()

    async def wait(self) -> None:
        """Wait until it has ended. Raises the error that ended it."""
        for running in self._running:
            await self._operations.connection.runtime.join(running)
        if self._errors and not self._operations.connection.is_closed:
            raise self._errors[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._stop()
        if error is None:
            await self.wait()


class Subscribed(_Background, Generic[T]):
    """Patterns of a client, and a queue for their messages: 65,536 messages and 64 MiB.

    Messages that come while the queue is full are lost, and counted.
    """

    def __init__(self, operations: BasicOperations, mailbox: Mailbox) -> None:
        super().__init__(operations, mailbox)
        self._has_queue = False  # whether messages go into the mailbox
        self._is_taken_back = False

    async def open(self, until: float | None = None) -> None:
        """Subscribe, with messages into the queue. Raises as ``subscribe`` does."""
        await self._operations.open_mailbox(self._mailbox, until=until)
        self._has_queue = True

    @property
    def patterns(self) -> tuple[bytes, ...]:
        """The patterns of the subscription. A secret one changes with the credentials of the client."""
        return tuple(self._mailbox.patterns)

    @property
    def lost(self) -> dict[str, int]:
        """Messages that were lost, and things that cannot be fetched, by cause: see :class:`~sbuslib.Subscription`."""
        return dict(self._mailbox.lost)

    @property
    def closed(self) -> bool:
        """Whether it has ended. Earlier messages can still be received."""
        return self._is_taken_back

    @abstractmethod
    async def receive(self, *, timeout: float | None = None) -> T:
        """The next one, oldest first."""

    async def next(self) -> T | None:
        """The next one that can be had; ``None`` when no more will come."""
        while True:
            try:
                return await self.receive()
            except DescriptorError:
                continue
            except DisconnectedError:
                if self._is_taken_back or self._operations.connection.is_closed:
                    return None
                raise

    async def __aiter__(self) -> AsyncIterator[T]:
        """Yield messages as they come, until the subscription has ended or the client is closed.

        Raises :exc:`~sbuslib.errors.DisconnectedError` when the hub closes the connection.
        """
        while (found := await self.next()) is not None:
            yield found

    async def unsubscribe(self) -> None:
        """Take the subscription back: nothing more comes. With ``on_message``, what came is handed over first."""
        if self._is_taken_back:
            return
        self._operations.connection.check_caller()
        self._is_taken_back = True
        if self._has_queue:
            await self._end()
            return
        self._mailbox.closed = True
        if not self._operations.connection.is_closed:
            await self._operations.unsubscribe(self._mailbox.patterns, self._operations.limit())

    async def _stop(self) -> None:
        await self.unsubscribe()

    async def __aenter__(self) -> Self:
        self._take_over()
        return self

    def _take_over(self) -> Mailbox:
        """The queue, which has the messages from now on."""
        if not self._has_queue:
            self._has_queue = True
            if not self._is_taken_back:
                self._operations.take_over(self._mailbox)
        return self._mailbox

    async def _receive(self, timeout: float | None) -> Message:
        client, mailbox = self._operations.connection, self._take_over()
        deadline = client.deadline(timeout)
        while (message := mailbox.take()) is None:  # another caller may have taken it meanwhile
            if mailbox.closed:
                raise DisconnectedError("the subscription was taken back")
            await client.until(mailbox.is_ready, deadline, f"no message within {timeout or 0:.3g} s")
        return message

    def _miss(self, message: Message, error: DescriptorError) -> DescriptorError:
        """Count what cannot be had; the error for the application, which names the key."""
        self._mailbox.lost[error.reason] += 1
        return DescriptorError(error.reason, f"{printable(message.key)}: {error.reason}")


class AioSubscription(Subscribed[Message]):
    """A subscription of a client. ``client.subscribe`` makes it, and the end of its ``with`` unsubscribes.

    From its first use on it has a queue of its own, of 65,536 messages and 64 MiB; messages that come while that is
    full are lost, and counted. Until then its messages go to :meth:`receive` of the client.
    """

    def __init__(self, operations: BasicOperations, mailbox: Mailbox) -> None:
        super().__init__(operations, mailbox)
        self.take = mailbox.take  # the quick way while something is here

    def start(self, on_message: Callable[[Message], object] | None) -> None:
        """The queue has the messages; a function is given them, if there is one."""
        self._has_queue = True
        if on_message is not None:
            self._operations.connection.stay()
            self._begin([self._call(on_message)])

    async def receive(self, *, timeout: float | None = None) -> Message:
        """The next message, oldest first.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, and :exc:`~sbuslib.errors.DisconnectedError` when the
        subscription was taken back or the connection ended, and nothing is left.
        """
        return self._mailbox.take() or await self._receive(timeout)

    async def receive_many(self, *, most: int | None = None, timeout: float | None = None) -> list[Message]:
        """At least one message, and all others that are here, up to ``most``. Raises as :meth:`receive`.

        With ``timeout=0``, all that are here, which may be none.
        """
        check_count(most, "most")
        try:
            messages = [await self.receive(timeout=timeout)]
        except TimeoutError:
            if timeout == 0:
                return []
            raise
        count = len(self._mailbox.messages) if most is None else min(most - 1, len(self._mailbox.messages))
        messages += (message for message in starmap(self._mailbox.take, repeat((), count)) if message is not None)
        return messages

    async def add(self, *patterns: Key) -> None:
        """Subscribe to more patterns, all with one answer of the hub; what they match comes here. Raises as that."""
        more = mailbox_of(patterns).patterns
        if self._is_taken_back:
            raise DisconnectedError("the subscription was taken back")
        await self._operations.add_to(self._mailbox, more)

    async def remove(self, *patterns: Key) -> None:
        """Take some patterns back. Once it returns nothing more comes under them; what came before is here.

        Raises :exc:`~sbuslib.errors.UsageError` for one that this subscription has not.
        """
        gone = mailbox_of(patterns).patterns
        if left := Counter(gone) - Counter(self.patterns):
            raise UsageError(f"not subscribed to {', '.join(map(printable, left))}")
        await self._operations.remove_from(self._mailbox, gone)

    def matched(self, key: Key) -> tuple[bytes, ...]:
        """The patterns of this subscription that match a key: of a message, those that it came for."""
        return self._mailbox.matching(as_key(key), self._operations.connection.session.separator)

    async def _call(self, on_message: Callable[[Message], object]) -> None:
        while (message := await self.next()) is not None:
            try:
                await called(on_message, message)
            except (Exception, SystemExit):  # the latter would end this thread alone
                logger.exception("on_message failed at a message under %s", printable(message.key))


class AioService(_Background):
    """Answers requests in the background. ``client.serve`` returns it."""

    def __init__(
        self, operations: BasicOperations, mailbox: Mailbox, works: Callable[[], Sequence[Coroutine[Any, Any, None]]]
    ) -> None:
        super().__init__(operations, mailbox)
        self._works = works  # what runs side by side

    async def start(self) -> None:
        """Begin. Raises as ``subscribe`` does."""
        self._operations.connection.stay()
        await self._operations.open_mailbox(self._mailbox)
        self._begin(self._works())

    async def _end(self) -> None:
        """Take nothing more, finish, and only then unsubscribe: else a caller that waits for an answer would get an
        error that nobody serves the key."""
        if not self._mailbox.closed:
            deadline = self._operations.limit()
            try:
                await self._operations.divert(self._mailbox, deadline)
                await self._join()
                deadline = self._operations.limit()  # to finish takes as long as it takes
            finally:  # also where the caller gives up, or the hub is slow
                await self._operations.close_mailbox(self._mailbox, until=deadline)
        await self._join()

    async def stop(self) -> None:
        """Take no more, and finish everything that was taken. A second call does nothing."""
        await self._stop()
