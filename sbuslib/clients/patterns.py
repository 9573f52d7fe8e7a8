"""How a client that blocks its caller carries out patterns, and the verbs that are patterns."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from ..errors import DisconnectedError
from ..kernel.files import Source, open_source
from ..patterns.large import MOST_BYTES, Sent
from ..patterns.steps import Mailbox, Steps, perform
from .channel import Channel
from .large import Files, receiving, sending

__all__ = ["Block", "Patterns", "Running"]

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

    def open_mailbox(self, mailbox: Mailbox) -> None:
        """Subscribe for a mailbox. Raises as ``subscribe`` does."""
        with self._lead.condition:
            self._session.divert(mailbox)
        try:
            self.subscribe(*mailbox.patterns)
        except BaseException:
            self._forget_mailbox(mailbox)
            raise

    def close_mailbox(self, mailbox: Mailbox) -> None:
        """Unsubscribe what a mailbox has. What was on its way to it does not come into the inbox."""
        try:
            with suppress(DisconnectedError):
                self.unsubscribe(*mailbox.patterns)
                self.sync()
        finally:
            self._forget_mailbox(mailbox)

    def _forget_mailbox(self, mailbox: Mailbox) -> None:
        with self._lead.condition:
            self._session.divert_no_more(mailbox)
            self._lead.condition.notify_all()

    def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Receive until ``ready()`` holds; ``False`` after ``timeout`` seconds."""
        try:
            self._until(ready, self._deadline(timeout), "")
        except TimeoutError:
            return False
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
