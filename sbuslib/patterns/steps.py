"""Steps: what a pattern asks its client to do.

A pattern is a generator that does no input or output and reads no clock. It yields steps; the client carries each out
and sends the result back, or throws the error in. ``client.perform(steps)`` runs one to its end: it returns what the
pattern returns, and raises what it raises; with asyncio it is awaited. So one text serves all three clients::

    def ask(mailbox: Mailbox, key: bytes) -> Steps[Message | None]:
        yield from Open(mailbox)
        try:
            yield from Publish(key, b"?")
            return (yield from take(mailbox, timeout=1.0))
        finally:
            yield from Close(mailbox)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from ..wire.packets import Message

__all__ = [
    "MAILBOX_BYTES",
    "Call",
    "Close",
    "Mailbox",
    "Open",
    "Post",
    "Publish",
    "PublishMany",
    "Step",
    "Steps",
    "Sync",
    "TellSenders",
    "Verbs",
    "Wait",
    "perform",
    "take",
]

MAILBOX_MESSAGES: Final = 65_536
"""Messages that a mailbox keeps. Whoever waits reads until it has what it waits for, so it is mostly near empty."""
MAILBOX_BYTES: Final = 67_108_864
"""Bytes of payload that a mailbox keeps: more than 100 of the longest messages."""

T = TypeVar("T")


class Mailbox:
    """Messages that a client diverts from its inbox: those that match one of ``patterns``, oldest first.

    A message that the application subscribed to as well comes into the inbox, too. A full mailbox drops what comes, and
    counts it in ``lost``.
    """

    def __init__(self, *patterns: bytes, messages: int = MAILBOX_MESSAGES, size: int = MAILBOX_BYTES) -> None:
        self.patterns = list(patterns)
        """The client keeps it true: a secret pattern changes its name with the client's credentials."""
        self.messages: deque[Message] = deque()
        self.lost = 0
        self.closed = False
        """Whether nothing more will come. A pattern that works in the background ends then."""
        self._most = messages
        self._room = size

    def put(self, message: Message) -> None:
        """Take a message in; called by the client while it reads, so it must neither wait nor raise."""
        size = len(message.payload)
        if size > self._room or len(self.messages) >= self._most:
            self.lost += 1
            return
        self._room -= size
        self.messages.append(message)

    def take(self) -> Message | None:
        """The oldest message; ``None`` without one. Of several callers each gets another."""
        try:
            message = self.messages.popleft()
        except IndexError:
            return None
        self._room += len(message.payload)
        return message

    def is_ready(self) -> bool:
        """Whether there is something to take, or nothing to wait for."""
        return self.closed or bool(self.messages)


class Verbs(Protocol):
    """What steps use of a client. With asyncio each of these is awaited."""

    def publish(self, key: bytes, payload: bytes = b"") -> Any: ...

    def post(self, key: bytes, payload: bytes) -> Any: ...

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> Any: ...

    def sync(self, scope: str = "local") -> Any: ...

    def tell_senders(self) -> Any: ...

    def open_mailbox(self, mailbox: Mailbox) -> Any: ...

    def close_mailbox(self, mailbox: Mailbox) -> Any: ...

    def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> Any: ...


class Step(Generic[T]):
    """Something that a client does for a pattern. ``yield from`` it in a pattern; the result is a ``T``."""

    def do(self, client: Any) -> Any:
        """Do it: the result, or something to await that has it."""
        raise NotImplementedError

    def __iter__(self) -> Generator[Step[Any], Any, T]:
        result: T = yield self
        return result


Steps: TypeAlias = Generator[Step[Any], Any, T]
"""A pattern at work, which ends with a ``T``."""


class Publish(Step[None]):
    """Publish one message."""

    def __init__(self, key: bytes, payload: bytes) -> None:
        self.key = key
        self.payload = payload

    def do(self, client: Verbs) -> Any:
        return client.publish(self.key, self.payload)


class Post(Step[None]):
    """Publish one message soon: in one packet with what other callers post before anybody reads.

    For a caller that waits for an answer next. An error of sending may show only there.
    """

    def __init__(self, key: bytes, payload: bytes) -> None:
        self.key = key
        self.payload = payload

    def do(self, client: Verbs) -> Any:
        return client.post(self.key, self.payload)


class PublishMany(Step[int]):
    """Publish pairs of key and payload, many in one packet."""

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self.pairs = pairs

    def do(self, client: Verbs) -> Any:
        return client.publish_many(self.pairs)


class Open(Step[None]):
    """Subscribe to the patterns of a mailbox. When it is done they are in force, and what matches goes there."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox

    def do(self, client: Verbs) -> Any:
        return client.open_mailbox(self.mailbox)


class Close(Step[None]):
    """Take the subscriptions of a mailbox back. Whoever waits for it gets what is left, then ``None``."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox

    def do(self, client: Verbs) -> Any:
        return client.close_mailbox(self.mailbox)


class Wait(Step[bool]):
    """Receive until ``ready()`` holds; ``False`` after ``timeout`` seconds (``None``: never).

    ``ready`` looks at what the messages that came have changed, such as mailboxes. It is called often.
    """

    def __init__(self, ready: Callable[[], bool], timeout: float | None) -> None:
        self.ready = ready
        self.timeout = timeout

    def do(self, client: Verbs) -> Any:
        return client.wait_until(self.ready, self.timeout)


class Sync(Step[str]):
    """Wait until all that the client said is in force; how far it is: ``local``, ``tree`` or ``partial``."""

    def __init__(self, scope: str = "local") -> None:
        self.scope = scope

    def do(self, client: Verbs) -> Any:
        return client.sync(self.scope)


class TellSenders(Step[None]):
    """Have messages carry their senders, if the hub can tell and the application has not said that it should not."""

    def do(self, client: Verbs) -> Any:
        return client.tell_senders()


class Call(Step[T]):
    """Call a function of the application, such as one that answers; with asyncio it may be a coroutine function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def do(self, client: object) -> Any:
        return self.function(*self.arguments)


def take(mailbox: Mailbox, timeout: float | None = None) -> Steps[Message | None]:
    """The next message of a mailbox; ``None`` after ``timeout`` seconds, and when the mailbox is closed and empty.

    There may be more, which ``mailbox.take()`` gives without a step.
    """
    while (message := mailbox.take()) is None:
        if mailbox.closed or not (yield from Wait(mailbox.is_ready, timeout)):
            return None
    return message


def perform(client: Verbs, steps: Steps[T]) -> T:
    """Carry out the steps of a pattern with a client that blocks its caller; what the pattern returns."""
    try:
        step = next(steps)
        while True:
            try:
                result = step.do(client)
            except BaseException as error:  # a timeout or the end of a greenlet, too: the pattern cleans up
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
