"""Shared queues: each job goes to one worker, and is given again unless that worker acknowledges it.

The service of a queue (``sbus queue``) is a client of a hub like its workers. Here is what both know: the messages
between them, and the worker's side. ``docs/patterns.md`` tells the messages byte by byte.

A worker announces itself under ``queue/NAME/work`` once a second: where it gets jobs, which is a secret key of its own,
how many jobs it takes, and which it holds. The service answers under that key with a secret key of its own and a token,
and gives jobs in the same way. The worker acknowledges jobs with the token, under the key of the service. So nobody
else reads a job or an acknowledgement. Where the hub tells senders, service and worker listen only to processes of
their own user, of root, and of users that they were told to trust.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from itertools import repeat, starmap
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from ..errors import PacketError, PayloadError, StateError, UsageError
from ..limits import check_count, check_users
from ..secrets import RESERVED, Namespace, stranger
from ..wire.packets import check_payload
from ..wire.text import printable
from .mailbox import Mailbox, Party, called
from .request import LONGEST_TEXT, Asking, request

__all__ = [
    "ANNOUNCE_SECONDS",
    "JOB_BYTES",
    "MOST_ROOM",
    "MOST_STRANGERS",
    "Acknowledgement",
    "Announcement",
    "Delivery",
    "Job",
    "Presence",
    "QueueState",
    "Submission",
    "Work",
    "WorkerRefusal",
    "check_name",
    "decode",
    "encode",
    "in_parts",
    "is_address",
    "queue_key",
    "submit",
]

logger = logging.getLogger("sbuslib.recipes")

ANNOUNCE_SECONDS: Final = 1.0
"""How often a worker announces itself. A service that is started again knows its workers after that time."""

JOB_BYTES: Final = 400_000
"""Most bytes of key and payload of a job: what a packet holds, less room for what the service adds."""

MOST_STRANGERS: Final = 64
"""Users who are not trusted that a worker or a service remembers, each of whom is logged once."""

MOST_ROOM: Final = 4_096
"""Most jobs that one worker takes at once. More would only be lost with it."""

SUBMITTED: Final = 4_096
"""Most jobs in one question. They share one sync of the disk."""
_SUBMITTED_BYTES: Final = 262_144
"""Bytes of jobs after which one more question begins."""
_PAIR_EXTRA: Final = 11
"""Most bytes that MessagePack adds to a key and a payload."""

_SOME: Final = 4
"""A worker acknowledges when a quarter of its room is done: so the next jobs come before it has none."""

T = TypeVar("T")
Pair: TypeAlias = tuple[bytes, bytes]
"""Key and payload."""


class Job(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job for a worker. ``attempt`` is how often it was given, this time included."""

    number: int
    attempt: int
    key: bytes
    payload: bytes

    @property
    def again(self) -> bool:
        """Whether it was given before, so that it may have been done, or begun."""
        return self.attempt > 1


class Submission(msgspec.Struct, frozen=True, array_like=True):
    """What a caller asks under ``queue/NAME/submit``: that these jobs are accepted."""

    jobs: Annotated[list[Pair], msgspec.Meta(max_length=SUBMITTED)]


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says under ``queue/NAME/work``: its secret key, how many jobs it takes, and which it holds."""

    key: bytes
    room: int
    held: list[int]


class Presence(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a service says under ``queue/NAME/work`` to others of its name: since when it serves, and a random word.

    ``since`` is in nanoseconds since 1970. Of two services, the one that sorts first goes on.
    """

    since: int
    word: bytes


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """What the service says to a worker: where to acknowledge, with which token, and jobs, or none."""

    key: bytes
    token: bytes
    jobs: list[Job]


class WorkerRefusal(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the service says to a worker that gets no jobs: its key, and why."""

    key: bytes
    why: str


class QueueState(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a question under ``queue/NAME/work``: jobs, workers, and users whose workers are refused.

    Who may not work is told only of the own user.
    """

    jobs: Annotated[int, msgspec.Meta(ge=0)]
    workers: Annotated[int, msgspec.Meta(ge=0)]
    refused: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=2**32)]], msgspec.Meta(max_length=MOST_STRANGERS)]


class Acknowledgement(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says to the service: its key and token, which jobs are done, and which it gives back."""

    key: bytes
    token: bytes
    done: list[int]
    failed: list[int] = []
    leaving: bool = False


_DECODERS: Final[dict[Any, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (Announcement, Delivery, Presence, Acknowledgement, Submission, WorkerRefusal, QueueState)
}
encode: Final = msgspec.msgpack.Encoder().encode


def decode(kind: type[T], payload: bytes) -> T | None:
    """A message of this kind; ``None`` for anything else."""
    try:
        value: T = _DECODERS[kind].decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value


def check_name(name: bytes, separator: bytes) -> None:
    """Raise :exc:`~sbuslib.errors.UsageError` unless a queue may have this name: one segment of a key."""
    if not name or separator in name or b"*" in name or b"\0" in name or name == RESERVED:
        raise UsageError(f"the name of a queue is one segment of a key, not {printable(name)}")


def queue_key(name: bytes, separator: bytes, *words: bytes) -> bytes:
    """``queue/NAME/WORD``: a key of this queue."""
    return separator.join((b"queue", name, *words))


def is_address(key: bytes, sender: bytes | None, name: bytes, namespace: Namespace) -> bool:
    """Whether a worker or service may be told something under this key.

    It is a secret key, of the sender if that is told, and below ``queue/NAME``: nobody is to use the service or a
    worker to publish, with its rights, where something else listens.
    """
    separator = namespace.separator
    if sender is not None and not key.startswith(sender + separator):
        return False
    parent = key.rpartition(separator)[0]
    try:
        return parent.endswith(separator + queue_key(name, separator)) and b"\0" not in key and namespace.check_key(key)
    except PacketError:
        return False


def in_parts(items: Iterable[T], size: Callable[[T], int], most: int, most_bytes: int) -> Iterator[list[T]]:
    """``items``, up to ``most`` at a time and up to so many bytes, unless one alone is larger."""
    part: list[T] = []
    room = most_bytes
    for item in items:
        room -= size(item)
        if part and (room < 0 or len(part) == most):
            yield part
            part, room = [], most_bytes - size(item)
        part.append(item)
    if part:
        yield part


async def submit(
    party: Party, asking: Asking, name: bytes, jobs: Iterable[Pair], separator: bytes, timeout: float | None
) -> None:
    """Have the service of a queue accept jobs, and wait until it has."""
    check_name(name, separator)
    for part in in_parts(jobs, _pair_bytes, SUBMITTED, _SUBMITTED_BYTES):
        await request(party, asking, queue_key(name, separator, b"submit"), encode((part,)), timeout)


def _pair_bytes(pair: Pair) -> int:
    key, payload = pair
    check_payload(payload)
    size = len(key) + len(payload)
    if size > JOB_BYTES:
        raise PayloadError(f"a job has at most {JOB_BYTES:,} bytes of key and payload, not {size:,}")
    return size + _PAIR_EXTRA


class Work:
    """A worker of one queue, as recipes: :meth:`keep` beside any number of :meth:`run`.

    :param own: the worker's credential key. :param tag: what tells it from other workers of its process.
    :param room: how many jobs it takes at once.
    :param trusted: users whose services are listened to, besides its own and root.
    """

    def __init__(
        self,
        party: Party,
        own: bytes,
        separator: bytes,
        tag: bytes,
        name: bytes,
        room: int,
        trusted: Iterable[int] = (),
    ) -> None:
        self._party = party  # what it publishes and waits with
        self._name = name
        check_name(self._name, separator)
        check_count(room, "room", MOST_ROOM)
        #: The jobs come here, under a secret key of the worker.
        self.mailbox = Mailbox(own + separator + queue_key(self._name, separator, tag))
        self._key = queue_key(self._name, separator, b"work")  # where the service hears of it
        self._room = room
        #: Users whose service this worker works for, beside its own and root.
        self._trusted = check_users(trusted, "trusted")
        #: It tells the users of senders.
        self._namespace = Namespace(separator)
        #: The service's key, and what it calls this worker; empty before it was heard of.
        self._service = self._token = b""
        self._jobs: deque[Job] = deque()  # not begun
        self._held: dict[int, Job] = {}  # not acknowledged
        self._done: deque[int] = deque()
        self._failed: deque[int] = deque()  # jobs whose function raised an error, not told yet
        self._working: list[None] = []  # one for each part at work
        self._strangers: set[int] = set()  # users that are not trusted and have a service of this name
        self._refused = ""
        """Why the service gives this worker no jobs; empty while it does."""

    def parts(self, function: Callable[[Job], object], at_once: int) -> list[Coroutine[Any, Any, None]]:
        """What runs in the background: one coroutine announces the worker, and ``at_once`` others call ``function``."""
        return [self.keep(), *(self.run(function) for _ in range(at_once))]

    async def _next(self) -> Job | None:
        """The next job; ``None`` when the mailbox was closed.

        Raises :exc:`~sbuslib.errors.StateError` when the service refuses this worker.
        """
        while not self.mailbox.closed:
            self._read()
            if self._refused:
                raise StateError(f"queue {printable(self._name)}: {self._refused}")
            with suppress(IndexError):  # another part may have taken it
                job = self._jobs.popleft()
                if len(self._done) * _SOME > self._room:
                    await self._tell()
                return job
            await self._tell()
            await self._party.wait_until(lambda: self.mailbox.is_ready() or bool(self._refused), None)
        return None

    async def run(self, function: Callable[[Job], object]) -> None:
        """Call a function with each job: a job is done when it returns, and given back when it raises."""
        self._working.append(None)
        try:
            while (job := await self._next()) is not None:
                ended = self._done
                try:
                    await called(function, job)
                except (Exception, SystemExit):  # the latter would end this thread alone
                    text = "queue %s: job %d under %s failed"
                    logger.exception(text, printable(self._name), job.number, printable(job.key))
                    ended = self._failed
                if self._held.get(job.number) is job:  # else it is of a service that was started again
                    ended.append(job.number)
        finally:
            self._working.pop()
        await self._leave()

    async def keep(self) -> None:
        """Announce this worker until the mailbox is closed, or the service refuses it."""
        self._working.append(None)
        try:
            while not (self.mailbox.closed or self._refused):
                await self._tell()
                # Jobs from a service that is not trusted would be given in vain until they are dead.
                room = self._room if self._token or not self._strangers else 0
                with suppress(TimeoutError):  # the hub is away
                    await self._party.publish(self._key, encode((self.mailbox.patterns[0], room, [*self._held])))
                await self._party.wait_until(lambda: self.mailbox.closed or bool(self._refused), ANNOUNCE_SECONDS)
        finally:
            self._working.pop()
        await self._leave()

    async def _leave(self) -> None:
        """The last part to end gives all back that was not done."""
        if not self._working:
            await self._tell(leaving=True)

    def _read(self) -> None:
        separator = self._namespace.separator
        while (message := self.mailbox.take()) is not None:
            word = decode(Delivery, message.payload) or decode(WorkerRefusal, message.payload)
            if word is None or not is_address(word.key, message.sender, self._name, self._namespace):
                continue
            own = self.mailbox.patterns[0].rsplit(separator, 3)[0]
            if (user := stranger(message.sender, own, separator, self._trusted)) is not None:
                self._distrust(user)
                continue
            if isinstance(word, WorkerRefusal):
                self._refused = word.why[:LONGEST_TEXT]
                continue
            if word.token != self._token:  # a new service, which knows nothing of what the one before gave
                for held in (self._jobs, self._held, self._done, self._failed):
                    held.clear()
            self._service, self._token = word.key, word.token
            for job in word.jobs:
                if len(self._held) < self._room and job.number not in self._held:
                    self._held[job.number] = job
                    self._jobs.append(job)

    def _distrust(self, user: int) -> None:
        """A service is another user's. That is logged, and no error: anybody could end this worker with one."""
        if user not in self._strangers and len(self._strangers) < MOST_STRANGERS:
            self._strangers.add(user)
            text = "queue %s: its service is of user %d, who is not trusted here: see trusted=[%d] of work()"
            logger.error(text, printable(self._name), user, user)

    async def _tell(self, *, leaving: bool = False) -> None:
        """Acknowledge what is done and give back what failed."""
        done, failed = _drain(self._done), _drain(self._failed)
        if self._token and (done or failed or leaving):
            word = encode((self.mailbox.patterns[0], self._token, done, failed, leaving))
            try:
                await self._party.publish(self._service, word)
            except TimeoutError:  # the hub is away
                self._done.extend(done)
                self._failed.extend(failed)
                return
        for number in (*done, *failed):
            self._held.pop(number, None)


def _drain(numbers: deque[int]) -> list[int]:
    """All that is in a deque to which other threads may append."""
    return [*starmap(numbers.popleft, repeat((), len(numbers)))]
