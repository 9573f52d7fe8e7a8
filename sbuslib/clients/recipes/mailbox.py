"""Mailboxes, in which recipes receive, and the interface between a recipe and its client.

A recipe is a pattern of use, for example request and reply. It is a coroutine that does no input or output and reads no
clock: it awaits verbs of its client. With asyncio they are awaited; a client that blocks its caller carries the
coroutine out, and it never suspends::

    async def ask(party: ClientPort, mailbox: Mailbox, key: bytes) -> Message | None:
        await party.open_mailbox(mailbox)
        try:
            await party.publish(key, b"?")
            await party.wait_until(mailbox.is_ready, 1.0)
            return mailbox.take()
        finally:
            await party.close_mailbox(mailbox)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

from ...matcher import Pattern, Subscriptions
from ...secrets import RESERVED
from ...wire.packets import Message

MAILBOX_MESSAGES: Final = 65_536
"""Messages that a mailbox keeps. A caller that waits reads until it has its message, so a mailbox is mostly near
empty."""
MAILBOX_BYTES: Final = 67_108_864
"""Bytes of payload that a mailbox keeps: more than 100 of the longest messages."""

OF_ANOTHER_USER: Final = "of another user"
"""Cause of loss: from a user whose messages were not asked for."""


class Mailbox:
    """Messages that a client diverts from its inbox: those that match one of ``patterns``, oldest first.

    A message that the application subscribed to as well comes into the inbox, too. A full mailbox drops new messages,
    and counts them in ``lost``.

    :param lock: of its patterns, where one thread may change them while another reads messages.
    """

    def __init__(
        self,
        *patterns: bytes,
        messages: int = MAILBOX_MESSAGES,
        size: int = MAILBOX_BYTES,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.patterns = list(patterns)
        """The client keeps it true: a secret pattern changes its name with the client's credentials."""
        #: Messages not taken yet, the oldest first.
        self.messages: deque[Message] = deque()
        self.lost: Counter[str] = Counter()  # lost messages, by cause
        self.closed = False
        """Whether no more messages will come. A recipe that works in the background ends then."""
        self.opened: Collection[object] = ()
        """Messages that were read out of it and that the application has not taken yet."""
        self.is_worked = False
        """Whether something in the background takes the messages."""
        self._most = messages  # how many are kept
        self._room = size  # bytes of payload that are still taken
        #: Finds patterns by key; made when it is first needed.
        self._index: Subscriptions[bytes] | None = None
        self._lock = nullcontext() if lock is None else lock  # of patterns and index

    # -- its patterns -------------------------------------------------------------------------------

    def matching(self, key: bytes, separator: bytes) -> tuple[bytes, ...]:
        """The patterns that match a key, each once. As on a hub, no wildcard reaches a secret key."""
        with self._lock:
            if (index := self._index) is None:
                index = self._index = Subscriptions(separator)
                for pattern in self.patterns:
                    index.add(Pattern(pattern, separator), pattern)
            found = index.subscribers(key)
        start = RESERVED + separator
        is_secret = key.startswith(start)
        return tuple(pattern for pattern in found if pattern.startswith(start) == is_secret)

    def add(self, patterns: Iterable[bytes], separator: bytes) -> None:
        """Add patterns. This takes no longer when there are many already."""
        with self._lock:
            for pattern in patterns:
                self.patterns.append(pattern)
                if self._index is not None:
                    self._index.add(Pattern(pattern, separator), pattern)

    def remove(self, patterns: Iterable[bytes], separator: bytes) -> None:
        """Remove each of these patterns once. Unknown ones are left out."""
        with self._lock:
            gone = Counter(patterns)
            kept = []
            for pattern in self.patterns:
                if gone[pattern]:
                    gone[pattern] -= 1
                    if self._index is not None:
                        self._index.remove(Pattern(pattern, separator), pattern)
                else:
                    kept.append(pattern)
            self.patterns[:] = kept

    def rename(self, old: bytes, new: bytes) -> None:
        """Rename a secret pattern, because the client has new credentials."""
        with self._lock:
            self.patterns[:] = [new if pattern == old else pattern for pattern in self.patterns]
            self._index = None

    # -- its messages -------------------------------------------------------------------------------

    def put(self, message: Message) -> None:
        """Take a message in; called by the client while it reads, so it must neither wait nor raise."""
        size = len(message.payload)
        if size > self._room or len(self.messages) >= self._most:
            self.lost["unread"] += 1
            return
        self._room -= size
        self.messages.append(message)

    def take(self) -> Message | None:
        """Take the oldest message; ``None`` without one. Each of several callers gets another."""
        try:
            message = self.messages.popleft()
        except IndexError:
            return None
        self._room += len(message.payload)
        return message

    def clear(self) -> None:
        """Forget all messages that came until now."""
        while self.take() is not None:
            pass
        self.lost.clear()

    def put_first(self, messages: list[Message]) -> None:
        """Put messages before those that came, even into a full mailbox."""
        self._room -= sum(len(message.payload) for message in messages)
        self.messages.extendleft(reversed(messages))

    def is_ready(self) -> bool:
        """Whether there is something to take, or nothing to wait for."""
        return self.closed or bool(self.messages)


class GuardedMailbox(Mailbox):
    """A mailbox for the messages of some users: it drops messages for which ``admits`` is false, and counts them in
    ``lost``.
    """

    def __init__(
        self, admits: Callable[[Message], bool], *patterns: bytes, lock: AbstractContextManager[object]
    ) -> None:
        super().__init__(*patterns, lock=lock)
        self._admits = admits

    def put(self, message: Message) -> None:
        if self._admits(message):
            super().put(message)
        else:
            self.lost[OF_ANOTHER_USER] += 1


class Posted:
    """A message that was posted, or will be soon."""

    __slots__ = ("epoch",)

    def __init__(self) -> None:
        self.epoch = 0
        """The number of the connection over which it went; 0: it has not gone yet."""


class WatchedKey(Protocol):
    """Whether a key has addressees, as the hub reports it."""

    state: bool | None
    """*None* while nobody knows."""
    is_known: bool
    """Whether the hub has reported anything."""


class ClientPort(Protocol):
    """Interface of a client, as recipes use it.

    Coroutines that wait for the hub raise :exc:`TimeoutError` after the time limit of the client, or at ``until`` or a
    deadline, times of ``time.monotonic``, if that is earlier.
    """

    def deadline(self, timeout: float | None) -> float | None:
        """Return when so many seconds are over; ``None`` for never."""

    def limit(self, until: float | None = None) -> float | None:
        """Return when a verb that begins now has to be done."""

    def remaining(self, until: float | None, most: float | None = None) -> float | None:
        """Return the seconds until a time, and ``most`` of them at most; ``None`` for ever."""

    @property
    def epoch(self) -> int:
        """Number of the connection."""
        ...

    async def publish(self, key: bytes, payload: bytes = b"", /) -> None: ...

    async def post(self, key: bytes, payload: bytes, *, together: bool, until: float | None = None) -> Posted:
        """Publish a message; ``together``: others are to come, with which it may go in one packet."""
        ...

    def tell(self, key: bytes, payload: bytes) -> None:
        """Publish a message, behind those before it, if that takes no time; else nothing is published."""

    async def confirm(self, scope: str, deadline: float | None) -> str:
        """Wait until everything that this client sent is in force."""
        ...

    async def is_wanted(
        self, key: bytes, *, timeout: float | None = None, until: float | None = None
    ) -> bool | None: ...

    def begin_watch(self, key: bytes) -> WatchedKey:
        """Watch whether a key has addressees, until :meth:`end_watch`. Does not wait for the hub."""
        ...

    def end_watch(self, watch: Any) -> None: ...

    def ask_for_senders(self) -> None: ...

    async def open_mailbox(self, mailbox: Mailbox, *, until: float | None = None) -> None: ...

    async def close_mailbox(self, mailbox: Mailbox, *, until: float | None = None) -> None: ...

    async def in_time(self, function: Callable[[Any], Any], argument: Any, until: float | None) -> Any:
        """Call a function of the application and return its result. It is ended at ``until`` where that is possible."""

    async def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> bool: ...


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the application, which with asyncio may be a coroutine function, and return its result."""
    result = function(*arguments)
    return await result if isinstance(result, Awaitable) else result
