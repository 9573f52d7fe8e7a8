"""A shared queue, as a client has it: jobs go in, and a worker takes them.

The rules are in :mod:`sbuslib.recipes.queue`. For asyncio as it is; the other clients carry out its coroutines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from ..limits import check_count
from ..recipes.queue import SUBMITTED, Job, Work, check_name, submit
from ..recipes.request import Asking
from ..wire.packets import Key, as_key
from .basics import Basics
from .batch import check_pair, in_parts
from .objects import AioService, starting

__all__ = ["AioJobQueue"]


class AioJobQueue:
    """The queue of a name, which ``sbus queue`` keeps. What ``client.queue(name)`` returns.

    Raises :exc:`~sbuslib.errors.UsageError` for what is no name.
    """

    def __init__(self, verbs: Basics, name: Key, ask: Callable[[], Asking]) -> None:
        self._verbs = verbs
        self._name = as_key(name, "name")  # one segment of a key
        check_name(self._name, verbs.channel._session.separator)
        self._ask = ask  # the questions of this client

    async def submit(self, key: Key, payload: bytes = b"", *, timeout: float | None = 10.0) -> None:
        """Put a job in, and wait until it is accepted. Raises as :meth:`submit_many`."""
        await self.submit_many([(key, payload)], timeout=timeout)

    async def submit_many(self, jobs: Iterable[tuple[Key, bytes]], *, timeout: float | None = 10.0) -> None:
        """Put jobs in, pairs of key and payload, and wait until all are accepted.

        ``timeout`` is for each packet full of them. Raises :exc:`~sbuslib.errors.AnswerError` when the queue refuses,
        which it does for a whole packet, and :exc:`~sbuslib.errors.PayloadError`. After :exc:`TimeoutError`,
        :exc:`~sbuslib.errors.NoServerError` and :exc:`~sbuslib.errors.DisconnectedError` jobs may be accepted.
        """
        for part in in_parts(jobs, SUBMITTED):
            pairs = map(check_pair, part)
            await submit(self._verbs, self._ask(), self._name, pairs, self._verbs.channel._session.separator, timeout)

    @starting
    async def work(
        self, function: Callable[[Job], object], *, room: int = 8, at_once: int = 1, trusted: Iterable[int] = ()
    ) -> AioService:
        """Work on the jobs from now on, in the background.

        ``function`` is called with each :class:`~sbuslib.Job`: when it returns the job is done, when it raises that is
        logged and the job is given again. ``stop``, and the end of a ``with``, give back what is not begun.

        :param room: how many jobs the service may give before any is done. :param at_once: how many calls of
            ``function`` run at the same time. :param trusted: ids of users whose service is listened to, besides this
            one and root; only if the hub tells senders, which the client then asks it to.

        Raises :exc:`~sbuslib.errors.UsageError`.
        """
        verbs, session = self._verbs, self._verbs.channel._session
        verbs.check_function(function, "job")
        check_count(at_once, "at_once")
        tag = os.urandom(8).hex().encode()
        work = Work(verbs, session.credentials, session.separator, tag, self._name, room, trusted)
        await verbs.tell_senders()
        worker = AioService(verbs, work.mailbox, lambda: work.parts(function, at_once))
        await worker.start()
        return worker
