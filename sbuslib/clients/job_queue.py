"""A shared queue, as a client has it: jobs go in, and a worker takes them.

The rules are in :mod:`sbuslib.clients.recipes.queue` and :mod:`sbuslib.clients.recipes.work`. For asyncio as it is; the
other clients carry out its coroutines.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable

from ..errors import DisconnectedError
from ..limits import check_count
from ..wire.packets import Key, as_key
from .basic_operations import BasicOperations
from .batch import check_pair, in_parts
from .handles import AioService, starting
from .recipes.queue import (
    MOST_PREFETCH,
    SUBMITTED,
    Job,
    QueueState,
    check_name,
    peek,
    purge,
    retry,
    status,
    submit,
)
from .recipes.request import FindRequester
from .recipes.work import DONE, FAILED, REJECTED, Work


class AnyHeldJob:
    """A job, and the worker that holds it."""

    __slots__ = ("_job", "_work")

    def __init__(self, work: Work, job: Job) -> None:
        self._work = work
        self._job = job

    @property
    def key(self) -> bytes:
        """The key that it was submitted under."""
        return self._job.key

    @property
    def payload(self) -> bytes:
        """Its payload."""
        return self._job.payload

    @property
    def sender(self) -> bytes | None:
        """The credential key of its submitter; *None* if the hub of the service has no senders."""
        return self._job.sender

    @property
    def attempt(self) -> int:
        """How often it was given, this time included."""
        return self._job.attempt

    @property
    def again(self) -> bool:
        """Whether it was given before, so that it may have been done, or begun."""
        return self._job.again

    async def _end(self, how: int) -> bool:
        is_ours = self._work.end(self._job, how)
        await self._work.tell()
        return is_ours


class AioHeldJob(AnyHeldJob):
    """A job that a worker holds until it acknowledges, gives back or rejects it, which is sent to the service at once.

    Each of the three verbs returns whether the job was still this worker's, as far as the worker knows: ``False`` if it
    was ended before, or if the service was started again meanwhile and gives it again. ``True`` does not say that the
    service has the acknowledgement, nor that nobody else has the job: a worker that stood still, or was cut off, for
    five seconds counts as dead, its jobs are given to others, marked as given again, and it may not know yet. While the
    hub is away the verbs wait as ``publish`` does, and an acknowledgement that could not be sent is sent later.
    """

    async def done(self) -> bool:
        """It is done, and forgotten."""
        return await self._end(DONE)

    async def give_back(self) -> bool:
        """It is to be given again, now and to anybody."""
        return await self._end(FAILED)

    async def reject(self) -> bool:
        """Nobody can do it: it goes to the queue of dead jobs at once."""
        return await self._end(REJECTED)


class AioWorker(AioService):
    """Takes jobs of a shared queue; the application acknowledges each. ``queue.take`` returns it.

    Jobs may be ended in any order. ``stop``, and the end of a ``with``, give all back that are not ended.
    """

    def __init__(self, operations: BasicOperations, work: Work) -> None:
        super().__init__(operations, work.mailbox, lambda: [work.keep()])
        self.work = work  # its part in the queue

    async def start(self) -> None:
        """Begin. Raises as ``subscribe`` does."""
        await super().start()
        self._mailbox.is_worked = False  # the application takes what comes

    @property
    def prefetch(self) -> int:
        """How many jobs it takes at once; 0 while it pauses."""
        return self.work.prefetch

    @property
    def ready(self) -> bool:
        """Whether something is here for :meth:`receive`: a job, or a message of the service."""
        return self.work.is_ready()

    @property
    def service(self) -> bytes:
        """The key of the service that gives the jobs; another one once a service has taken the place of that, empty
        before its first message.
        """
        return self.work.service

    async def set_prefetch(self, prefetch: int) -> None:
        """Take so many jobs at once from now on, and give back those beyond it that were not received.

        Raises :exc:`~sbuslib.errors.UsageError`.
        """
        check_count(prefetch, "prefetch", MOST_PREFETCH)
        await self.work.set_prefetch(prefetch)

    async def pause(self) -> None:
        """Take no more jobs, until :meth:`set_prefetch`: those that were not received are given back, others stay
        held.
        """
        await self.work.set_prefetch(0)

    async def take(self, timeout: float | None) -> Job:
        """The next job, oldest first. Raises as :meth:`receive`."""
        client, work = self._operations.connection, self.work
        deadline = client.deadline(timeout)
        while (job := work.take()) is None:
            if self._mailbox.closed:
                raise DisconnectedError("the worker was stopped")
            await client.until(work.is_ready, deadline, f"no job within {timeout or 0:.3g} s")
        return job

    async def take_many(self, most: int | None, timeout: float | None) -> list[Job]:
        """At least one job, and all others that are here, up to ``most``."""
        check_count(most, "most")
        try:
            jobs = [await self.take(timeout)]
        except TimeoutError:
            if timeout == 0:
                return []
            raise
        while (most is None or len(jobs) < most) and (job := self.work.take()) is not None:
            jobs.append(job)
        return jobs

    async def next(self) -> Job | None:
        """The next job; ``None`` when the worker was stopped, or the client closed."""
        try:
            return await self.take(None)
        except DisconnectedError:
            if self._mailbox.closed or self._operations.connection.is_closed:
                return None
            raise

    async def receive(self, *, timeout: float | None = None) -> AioHeldJob:
        """The next job.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, :exc:`~sbuslib.errors.StateError` when the service does
        not trust this user, and :exc:`~sbuslib.errors.DisconnectedError` when the worker was stopped.
        """
        return AioHeldJob(self.work, await self.take(timeout))

    async def receive_many(self, *, most: int | None = None, timeout: float | None = None) -> list[AioHeldJob]:
        """At least one job, and all others that are here, up to ``most``. Raises as :meth:`receive`.

        With ``timeout=0``, all that are here, which may be none.
        """
        return [AioHeldJob(self.work, job) for job in await self.take_many(most, timeout)]

    async def __aiter__(self) -> AsyncIterator[AioHeldJob]:
        """Jobs as they come, until the worker is stopped or the client closed."""
        while (job := await self.next()) is not None:
            yield AioHeldJob(self.work, job)


class AioJobQueue:
    """The queue of a name, which ``sbus queue`` keeps. ``client.queue(name)`` returns it.

    Raises :exc:`~sbuslib.errors.UsageError` for anything but a name.
    """

    def __init__(self, operations: BasicOperations, name: Key, find: FindRequester) -> None:
        self._operations = operations
        self._name = as_key(name, "name")  # one segment of a key
        check_name(self._name, self._separator)
        self._find = find  # the requests of this client

    @property
    def _separator(self) -> bytes:
        """The byte between the segments of a key, on the hub of the moment."""
        return self._operations.connection.session.separator

    async def submit(
        self,
        key: Key,
        payload: bytes = b"",
        *,
        delay: float | None = None,
        expires: float | None = None,
        priority: int = 0,
        id: bytes = b"",
        timeout: float | None = 10.0,
    ) -> None:
        """Put a job in, and wait until it is accepted. Parameters and errors are those of :meth:`submit_many`.

        :param id: of this submit, up to 64 bytes, for example ``uuid4().bytes``. It may be submitted again with the
            same id after an error, and is in the queue once, as far as the service remembers: 16,384 ids, the newest.
        """
        pairs = [check_pair((key, payload))]
        await submit(
            self._operations, self._find, self._name, pairs, self._separator, timeout, delay, expires, priority, id
        )

    async def submit_many(
        self,
        jobs: Iterable[tuple[Key, bytes]],
        *,
        delay: float | None = None,
        expires: float | None = None,
        priority: int = 0,
        timeout: float | None = 10.0,
    ) -> None:
        """Put jobs in, pairs of key and payload, and wait until all are accepted.

        :param delay: seconds for which they are given to nobody.
        :param expires: seconds after which those are forgotten that no worker has.
        :param priority: 0 to 9: of jobs that wait, those with more go first.
        :param timeout: for each packet full of jobs.

        Raises :exc:`~sbuslib.errors.ReplyError` when the queue refuses, which it does for a whole packet, and
        :exc:`~sbuslib.errors.PayloadError`. After :exc:`TimeoutError`, :exc:`~sbuslib.errors.NoServerError` and
        :exc:`~sbuslib.errors.DisconnectedError` jobs may be accepted.
        """
        for part in in_parts(jobs, SUBMITTED):
            pairs = map(check_pair, part)
            await submit(
                self._operations, self._find, self._name, pairs, self._separator, timeout, delay, expires, priority
            )

    async def status(self, *, timeout: float | None = 10.0) -> QueueState:
        """How many jobs wait and are held, for how long the oldest has waited, and how many workers there are.

        Raises as :meth:`purge`.
        """
        return await status(self._operations, self._find, self._name, self._separator, timeout)

    async def peek(self, *, timeout: float | None = 10.0) -> list[Job]:
        """The oldest jobs, waiting or held, which stay where they are: up to 1,024, and up to 256 KiB or one.

        Raises as :meth:`purge`.
        """
        return await peek(self._operations, self._find, self._name, self._separator, timeout)

    async def purge(self, *, number: int | None = None, timeout: float | None = 10.0) -> int:
        """Have all jobs forgotten that no worker holds, or one of them, by its ``number``; how many there were.

        Raises :exc:`~sbuslib.errors.NoServerError`, :exc:`TimeoutError`, and :exc:`~sbuslib.errors.ReplyError` unless
        the service trusts this user.
        """
        return await purge(self._operations, self._find, self._name, self._separator, timeout, number)

    async def retry(self, *, timeout: float | None = 10.0) -> int:
        """Have the dead jobs of this queue put back into it, as far as it takes them; how many. Each keeps its sender,
        and its attempts begin anew. Raises as :meth:`purge`.
        """
        return await retry(self._operations, self._find, self._name, self._separator, timeout)

    def _make_work(self, prefetch: int, trusted: Iterable[int]) -> Work:
        own, tag = self._operations.connection.session.credentials, os.urandom(8).hex().encode()
        return Work(
            self._operations,
            own,
            self._separator,
            tag,
            self._name,
            prefetch,
            trusted,
            self._operations.connection.runtime.make_lock(),
        )

    @starting
    async def work(
        self, function: Callable[[Job], object], *, prefetch: int = 8, at_once: int = 1, trusted: Iterable[int] = ()
    ) -> AioService:
        """Work on the jobs from now on, in the background.

        ``function`` is called with each :class:`~sbuslib.Job`: when it returns the job is done, when it raises that is
        logged and the job is given again. ``stop``, and the end of a ``with``, give back jobs that are not begun.

        :param prefetch: how many jobs the service may give before any is done.
        :param at_once: how many calls of ``function`` run at the same time.
        :param trusted: ids of users whose service is accepted, besides this one and root; only if the hub has senders,
            which the client then asks for.

        Raises :exc:`~sbuslib.errors.UsageError`.
        """
        operations = self._operations
        operations.check_function(function, "job")
        check_count(at_once, "at_once")
        work = self._make_work(prefetch, trusted)
        operations.ask_for_senders()
        worker = AioService(operations, work.mailbox, lambda: work.parts(function, at_once))
        await worker.start()
        return worker

    @starting
    async def take(self, *, prefetch: int = 8, trusted: Iterable[int] = ()) -> AioWorker:
        """Take jobs, from now on, and acknowledge each: ``job.done()``, in any order.

        ``with client.queue("mail").take(prefetch=8) as worker: for job in worker: ...``. For programs that hold many
        jobs, or end them elsewhere; else :meth:`work` is simpler. Parameters and errors are those of :meth:`work`.
        """
        work = self._make_work(prefetch, trusted)
        self._operations.ask_for_senders()
        worker = AioWorker(self._operations, work)
        await worker.start()
        return worker
