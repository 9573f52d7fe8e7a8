"""How a client that blocks its caller carries out patterns, and the verbs that are patterns."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from ..errors import DisconnectedError
from ..kernel.files import Source, open_source
from ..patterns.large import MOST_BYTES, Sent
from ..patterns.queue import Job, Work, submit
from ..patterns.request import Answer, Question, request, request_many
from ..patterns.steps import Mailbox, Steps, perform
from ..wire import control
from ..wire.packets import Message
from .channel import Channel
from .large import Files, receiving, sending

__all__ = ["Block", "Patterns", "Running", "Worker"]

T = TypeVar("T")


class Running(Protocol):
    """What runs in the background: a greenlet or a thread."""

    def join(self, timeout: float | None = None) -> object: ...


class Patterns(Channel):
    """The patterns of a client, below its other verbs."""

    @abstractmethod
    def spawn(self, function: Callable[[], object]) -> Running:
        """Run a function in the background, as this kind of client does."""

    @abstractmethod
    def publish(self, key: bytes, payload: bytes = b"") -> None: ...

    @abstractmethod
    def publish_many(self, messages: Iterable[tuple[bytes, bytes]]) -> int: ...

    @abstractmethod
    def subscribe(self, *patterns: bytes) -> None: ...

    @abstractmethod
    def unsubscribe(self, *patterns: bytes) -> None: ...

    @abstractmethod
    def sync(self, scope: str = "local") -> str: ...

    def perform(self, steps: Steps[T]) -> T:
        """Carry out a pattern, see :mod:`sbuslib.patterns.steps`. What it returns; raises what it raises."""
        return perform(self, steps)

    def last(self, *patterns: bytes) -> list[Message]:
        """The newest message of each key that matches, as a service keeps them (``sbus retain``), in order of keys.

        Raises :exc:`~sbuslib.errors.NoServerError` without such a service, :exc:`~sbuslib.errors.AnswerError`,
        :exc:`~sbuslib.errors.PeerError` and :exc:`TimeoutError`.
        """
        return self.perform(self._last(patterns))

    def send_large(
        self, key: bytes, source: Source, *, name: str | None = None, receivers: int = 1, timeout: float = 30.0
    ) -> Sent:
        """Send a file, or bytes, of any size to all that receive large messages under ``key``; wait until they have it.

        :param source: bytes, a path, or a binary file that can be read at any offset.
        :param name: what receivers may call the file; without it, the name of ``source``.
        :param receivers: how many to wait for before the first part is sent. Others may come while it is sent.
        :param timeout: seconds in which they have to come, and for which a receiver may make no progress.

        Raises :exc:`TimeoutError` when they do not come, :exc:`~sbuslib.errors.PeerError` when nobody has the file in
        the end, :exc:`OSError` when it cannot be read, and :exc:`~sbuslib.errors.UsageError`.
        """
        with open_source(source) as opened:
            return self.perform(sending(self, key, opened, name, receivers, timeout))

    def receive_large(
        self,
        *patterns: bytes,
        folder: str | os.PathLike[str] | None = None,
        most: int = MOST_BYTES,
        timeout: float = 30.0,
    ) -> Files:
        """Receive what :meth:`send_large` sends: ``with client.receive_large(b"files/*") as files: files.receive()``.

        :param folder: where files appear, each once it is whole; without it, they are open temporary files. None is
            ever replaced, and a name that points elsewhere is not used.
        :param most: bytes of the largest file that is taken.
        :param timeout: seconds without a part after which a file is given up.
        """
        return Files(self, receiving(self, patterns, folder, most, timeout))

    def submit(self, name: str, key: bytes, payload: bytes = b"", *, timeout: float | None = 10.0) -> None:
        """Put a job into the queue ``name``, and wait until it is accepted. Raises as :meth:`submit_many`."""
        self.submit_many(name, [(key, payload)], timeout=timeout)

    def submit_many(self, name: str, jobs: Iterable[tuple[bytes, bytes]], *, timeout: float | None = 10.0) -> None:
        """Put jobs, pairs of key and payload, into the queue ``name``, and wait until all are accepted.

        ``timeout`` is for each packet full of them. Raises :exc:`~sbuslib.errors.AnswerError` when the queue refuses,
        which it does for a whole packet, and :exc:`~sbuslib.errors.PayloadError`. After :exc:`TimeoutError`,
        :exc:`~sbuslib.errors.NoServerError` and :exc:`~sbuslib.errors.DisconnectedError` jobs may be accepted.
        """
        self.perform(submit(self._asking(secret=True), name.encode(), jobs, self._session.separator, timeout))

    def work(
        self,
        name: str,
        function: Callable[[Job], object] | None = None,
        *,
        room: int = 8,
        at_once: int = 1,
        trusted: Iterable[int] = (),
    ) -> Worker:
        """Work on the jobs of the queue ``name`` in a ``with`` block, see :mod:`sbuslib.patterns.queue`.

        With ``function``, that is called with each :class:`~sbuslib.patterns.queue.Job` in the background: when it
        returns the job is done, when it raises the job is given again. Else iterate over what ``with`` gives, and call
        ``done(job)`` or ``failed(job)``.

        :param room: how many jobs the service may give before any is done. :param at_once: how many calls of
            ``function`` run at the same time. :param trusted: ids of users whose service is listened to, besides this
            one and root; only if the hub tells senders, which the client then asks it to.

        Raises :exc:`~sbuslib.errors.UsageError`.
        """
        return Worker(self, self._work(name, room, trusted), function, at_once)

    def tell_senders(self) -> None:
        """Have messages carry their senders, if the hub can tell and nothing was chosen yet."""
        session = self._session
        if session.can(control.SENDERS_ON) and b"senders" not in session.choices:
            self._say(lambda: session.choose(control.SENDERS_ON), self._deadline(self.timeout))

    def open_mailbox(self, mailbox: Mailbox) -> None:
        """Subscribe for a mailbox. Raises as ``subscribe`` does."""
        with self._lead.lock:
            self._session.divert(mailbox)
        try:
            self.subscribe(*mailbox.patterns)
        except BaseException:
            self._forget_mailbox(mailbox)
            raise

    def close_mailbox(self, mailbox: Mailbox) -> None:
        """Unsubscribe what a mailbox has. What was on its way to it does not come into the inbox."""
        mailbox.closed = True  # whoever waits for it may be the one that reads: the answer to sync lets them look
        try:
            with suppress(DisconnectedError):
                self.unsubscribe(*mailbox.patterns)
                self.sync()
        finally:
            self._forget_mailbox(mailbox)

    def _forget_mailbox(self, mailbox: Mailbox) -> None:
        with self._lead.lock:
            self._session.divert_no_more(mailbox)
            self._lead.wake_all()

    def post(self, key: bytes, payload: bytes) -> None:
        """Publish a message, which may go in one packet with what others post meanwhile."""
        self.publish(key, payload)

    def request(self, key: bytes, payload: bytes = b"", *, timeout: float | None = 10.0, secret: bool = True) -> bytes:
        """Ask who serves ``key``, and wait for the answer, of the first that takes the question.

        The answer comes under a secret key, which nobody else can read. The C daemon has none: there
        :exc:`~sbuslib.errors.StateError` is raised, unless ``secret`` is false. Raises
        :exc:`~sbuslib.errors.NoServerError` when nobody takes the question, :exc:`TimeoutError` when it was taken and
        not answered, :exc:`~sbuslib.errors.AnswerError` with what the server says that went wrong, and as ``publish``.
        """
        return self.perform(request(self._asking(secret), key, payload, timeout))

    def request_many(
        self, key: bytes, payload: bytes = b"", *, wait: float = 1.0, most: int | None = None, secret: bool = True
    ) -> list[Answer]:
        """Ask all who serve ``key``. The answers that come within ``wait`` seconds, or the first ``most``."""
        return self.perform(request_many(self._asking(secret), key, payload, wait, most))

    def serve(self, pattern: bytes, function: Callable[[Question], bytes], *, workers: int = 1) -> Block:
        """Answer questions under keys that match ``pattern``, in the background of a ``with``.

        ``function`` is given each :class:`~sbuslib.patterns.request.Question` and returns the answer; an error that it
        raises is raised where it was asked. So many ``workers`` call it at a time. The end of the block takes no more
        questions, and waits until those that were taken are answered.
        """
        mailbox = Mailbox(pattern)
        return Block(self, mailbox, self._server(mailbox, function, workers).runners)

    def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Receive until ``ready()`` holds; ``False`` after ``timeout`` seconds."""
        try:
            self._until(ready, self._deadline(timeout), "")
        except TimeoutError:
            return ready()
        return True


class Block:
    """A pattern that works in the background of a ``with``, until the mailbox that it reads is closed.

    The block begins when the mailbox is open, and ends when the patterns have ended. An error of theirs is raised at
    the end of the block.
    """

    def __init__(self, client: Patterns, mailbox: Mailbox, patterns: Sequence[Steps[Any]]) -> None:
        self._client = client
        self._mailbox = mailbox
        self._patterns = patterns
        self._errors: list[BaseException] = []

    def __enter__(self) -> Self:
        self._client.open_mailbox(self._mailbox)
        self._running = [self._client.spawn(partial(self._run, steps)) for steps in self._patterns]
        return self

    def _run(self, steps: Steps[Any]) -> None:
        try:
            self._client.perform(steps)
        except Exception as error:
            self._errors.append(error)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # While the hub is away nothing ends: then this raises, and the patterns end by themselves once it is back.
        self._client.close_mailbox(self._mailbox)
        for running in self._running:
            running.join()
        if self._errors and error is None and not self._client.closed:
            raise self._errors[0]


class Worker(Block):
    """A worker of a queue; made by :meth:`Patterns.work`. Iterate over it where it has no function."""

    def __init__(self, client: Patterns, work: Work, function: Callable[[Job], object] | None, at_once: int) -> None:
        super().__init__(client, work.mailbox, work.parts(function, at_once))
        self._work = work
        self.done = work.done
        self.failed = work.failed

    def __enter__(self) -> Self:
        self._client.tell_senders()
        return super().__enter__()

    def next(self, timeout: float | None = None) -> Job | None:
        """The next job; ``None`` after ``timeout`` seconds, and at the end of the block."""
        return self._client.perform(self._work.next(timeout))

    def __iter__(self) -> Iterator[Job]:
        while (job := self.next()) is not None:
            yield job
