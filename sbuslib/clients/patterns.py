"""How a client that blocks its caller carries out patterns, and the verbs that are patterns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from ..errors import DisconnectedError
from ..patterns.steps import Mailbox, Steps, perform
from .channel import Channel

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
