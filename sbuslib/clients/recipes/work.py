"""A worker of a shared queue, as a recipe: see :mod:`.queue`.

Jobs come into a mailbox. They wait there and here until the application takes them, and are held until it acknowledges
them. Acknowledgements are gathered, and the service gets them in one message.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

from ...errors import StateError
from ...limits import check_count, check_users
from ...secrets import Namespace, stranger
from ...wire.text import printable
from . import queue
from .mailbox import ClientPort, Mailbox, called
from .queue import (
    MOST_PREFETCH,
    MOST_STRANGERS,
    Delivery,
    Job,
    WorkerRefusal,
    check_name,
    decode,
    encode,
    is_address,
    queue_key,
)
from .request import LONGEST_TEXT

logger = logging.getLogger("sbuslib.clients.recipes")

DONE, FAILED, RETURNED, REJECTED = range(4)
"""Ends of a job, in the order of an acknowledgement. A returned job was not begun."""

_SOME: Final = 4
"""A worker acknowledges when a quarter of its room is done: so the next jobs come before it has none."""


class Work:
    """A worker of one queue: :meth:`keep` beside any number of :meth:`run`, or of callers of :meth:`take`.

    :param own: the worker's credential key.
    :param tag: distinguishes it from other workers of its process.
    :param room: how many jobs it takes at once.
    :param trusted: users whose services it works for, besides its own and root.
    :param lock: for threads that share it; it is reentrant.
    """

    def __init__(
        self,
        port: ClientPort,
        own: bytes,
        separator: bytes,
        tag: bytes,
        name: bytes,
        prefetch: int,
        trusted: Iterable[int] = (),
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._port = port  # the client with which it publishes and waits
        self._name = name
        check_name(self._name, separator)
        check_count(prefetch, "prefetch", MOST_PREFETCH)
        #: The jobs come here, under a secret key of the worker.
        self.mailbox = Mailbox(own + separator + queue_key(self._name, separator, tag))
        self._key = queue_key(self._name, separator, b"work")  # the key of its announcements
        #: How many jobs it takes at once; 0 while it pauses.
        self.prefetch = prefetch
        #: Users whose service this worker works for, beside its own and root.
        self._trusted = check_users(trusted, "trusted")
        #: Finds the users of senders.
        self._namespace = Namespace(separator)
        #: Held while jobs change hands: those of one service are never taken for the next one's. Nothing waits inside.
        self._lock = lock or nullcontext()
        #: The service's key, and its token for this worker; empty before its first message.
        self._service = self._token = b""
        self._jobs: deque[Job] = deque()  # not begun
        self.mailbox.opened = self._jobs
        self._held: dict[int, Job] = {}  # with no end that the service does not know
        self._ended: dict[int, int] = {}  # ends that are still to be acknowledged
        self._working: list[None] = []  # one for each part at work
        self._strangers: set[int] = set()  # users that are not trusted and have a service of this name
        self._refused = ""
        """Why the service gives this worker no jobs; empty while it does."""

    def parts(self, function: Callable[[Job], object], at_once: int) -> list[Coroutine[Any, Any, None]]:
        """Return the background coroutines: one announces the worker, and ``at_once`` others call ``function``."""
        return [self.keep(), *(self.run(function) for _ in range(at_once))]

    # -- for the application ------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether there is a job to take, or nothing to wait for."""
        return bool(self._jobs) or self.mailbox.is_ready() or bool(self._refused)

    @property
    def service(self) -> bytes:
        """The key of the service that gives the jobs, which no other one has; empty before its first message."""
        self._read()
        return self._service

    def take(self) -> Job | None:
        """Take the next job, if one is here. Raises :exc:`~sbuslib.errors.StateError` where this worker is refused."""
        self._read()
        if self._refused:
            raise StateError(f"queue {printable(self._name)}: {self._refused}")
        with suppress(IndexError):
            return self._jobs.popleft()
        return None

    def end(self, job: Job, how: int) -> bool:
        """Note the end of a job, to be acknowledged. ``False`` if it is not this worker's any more."""
        with self._lock:
            if self._held.get(job.number) is not job or job.number in self._ended:
                return False
            self._ended[job.number] = how
            return True

    async def tell(self, *, leaving: bool = False) -> None:
        """Acknowledge jobs. From then on they are not held: the service may give them again."""
        with self._lock:
            token, ended, self._ended = self._token, self._ended, {}
            held = {number: self._held.pop(number) for number in ended}
            numbers = [[number for number, how in ended.items() if how == kind] for kind in range(4)]
            word = encode((self.mailbox.patterns[0], token, *numbers, leaving))
        if not token or not (ended or leaving):
            return
        try:
            await self._port.publish(self._service, word)
        except TimeoutError:  # the hub is away: acknowledged later
            with self._lock:
                if token == self._token:
                    self._ended = ended | self._ended
                    self._held = held | self._held

    async def announce(self) -> None:
        """Announce this worker to the service: how many jobs it takes, and which it holds."""
        self._read()  # an application that takes nothing for a while keeps its jobs
        # Jobs from a service that is not trusted would be given in vain until they are dead.
        prefetch = self.prefetch if self._token or not self._strangers else 0
        with suppress(TimeoutError):  # the hub is away
            await self._port.publish(self._key, encode((self.mailbox.patterns[0], prefetch, [*self._held])))

    async def set_prefetch(self, prefetch: int) -> None:
        """Take so many jobs at once from now on, and give back those beyond it that were not taken."""
        self.prefetch = prefetch
        await self.announce()
        if self._give_back(prefetch):
            await self.tell()

    def _give_back(self, most: int = 0) -> bool:
        """Give back jobs that were not begun, for other workers, until no more than ``most`` are held. Returns whether
        something is to be acknowledged.
        """
        with self._lock, suppress(IndexError):
            self._read()
            while len(self._held) - len(self._ended) > most:
                self.end(self._jobs.pop(), RETURNED)  # the newest first
        return bool(self._ended)

    # -- in the background --------------------------------------------------------------------------

    async def _next(self) -> Job | None:
        """Take the next job; ``None`` when the mailbox was closed. Raises as :meth:`take`."""
        while not self.mailbox.closed:
            if (job := self.take()) is not None:
                if len(self._ended) * _SOME > self.prefetch:
                    await self.tell()
                return job
            await self.tell()
            await self._port.wait_until(self.is_ready, None)
        return None

    async def run(self, function: Callable[[Job], object]) -> None:
        """Call a function with each job: a job is done when it returns, and given back when it raises."""
        self._working.append(None)
        try:
            while (job := await self._next()) is not None:
                how = DONE
                try:
                    await called(function, job)
                except (Exception, SystemExit):  # the latter would end this thread alone
                    text = "queue %s: job %d under %s failed"
                    logger.exception(text, printable(self._name), job.number, printable(job.key))
                    how = FAILED
                self.end(job, how)
        finally:
            self._working.pop()
        await self._leave()

    async def keep(self) -> None:
        """Announce this worker until the mailbox is closed, or the service refuses it."""
        self._working.append(None)
        try:
            while not self._is_over():
                await self.tell()
                await self.announce()

                # Nobody takes jobs that were on their way when there was less room. They are given back here, and the
                # room is announced: a service that has not heard of it would give them again at once, without end.
                while await self._port.wait_until(self._has_to_act, queue.ANNOUNCE_SECONDS) and not self._is_over():
                    if self._give_back(self.prefetch):
                        break
        finally:
            self._working.pop()
        await self._leave()

    def _is_over(self) -> bool:
        return self.mailbox.closed or bool(self._refused)

    def _has_to_act(self) -> bool:
        return self._is_over() or (self.mailbox.is_ready() and len(self._held) >= self.prefetch)

    async def _leave(self) -> None:
        """Give back all jobs that are not done. The last part to end does this."""
        if not self._working:
            self._give_back()
            await self.tell(leaving=True)

    # -- messages of the service --------------------------------------------------------------------

    def _read(self) -> None:
        with self._lock:
            while (message := self.mailbox.take()) is not None:
                word = decode(Delivery, message.payload) or decode(WorkerRefusal, message.payload)
                if word is None or not is_address(word.key, message.sender, self._name, self._namespace):
                    continue
                separator = self._namespace.separator
                own = self.mailbox.patterns[0].rsplit(separator, 3)[0]
                if (user := stranger(message.sender, own, separator, self._trusted)) is not None:
                    self._distrust(user)
                elif isinstance(word, WorkerRefusal):
                    self._refused = word.why[:LONGEST_TEXT]
                else:
                    self._take_in(word)

    def _take_in(self, word: Delivery) -> None:
        if word.token != self._token:  # a new service, which does not know the jobs of the one before
            self._jobs.clear()
            self._held.clear()
            self._ended.clear()
        self._service, self._token = word.key, word.token
        for job in word.jobs:
            if job.number not in self._held:
                has_room = len(self._held) < self.prefetch
                self._held[job.number] = job
                if has_room:
                    self._jobs.append(job)
                else:  # the next acknowledgement returns it
                    self._ended[job.number] = RETURNED

    def _distrust(self, user: int) -> None:
        """Log that a service is another user's. This raises nothing: otherwise anybody could end this worker."""
        if user not in self._strangers and len(self._strangers) < MOST_STRANGERS:
            self._strangers.add(user)
            text = "queue %s: its service is of user %d, who is not trusted here: see trusted=[%d] of work()"
            logger.error(text, printable(self._name), user, user)
