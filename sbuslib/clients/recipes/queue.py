"""Shared queues: each job goes to one worker, and is given again unless that worker acknowledges it.

The service of queues (``sbus queue``) is a client of a hub like its workers. Here are the messages between them; the
worker's side is in :mod:`.work`. ``docs/patterns.md`` describes the messages byte by byte.

A worker announces itself under ``queue/NAME/work`` once a second: the secret key of its own under which it gets jobs,
how many jobs it takes, and which it holds. The service answers under that key with a secret key of its own and a token,
and gives jobs in the same way. The worker acknowledges jobs with the token, under the key of the service. So no other
process reads a job or an acknowledgement. Where the hub names senders, service and worker listen only to processes of
their own user, of root, and of ``trusted`` users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from ...errors import NoServerError, PacketError, PayloadError, PeerError, UsageError
from ...keys.own_keys import QUEUE
from ...limits import check_seconds
from ...malformed import MALFORMED
from ...secrets import RESERVED, Namespace
from ...wire.packets import check_payload
from ...wire.text import printable
from .mailbox import ClientPort
from .request import FindRequester, Reply, request

ANNOUNCE_SECONDS: Final = 1.0
"""How often a worker announces itself. A service that is started again knows its workers after that time."""

JOB_BYTES: Final = 400_000
"""Most bytes of key and payload of a job: the room in a packet, less the bytes that the service adds."""

LONGEST_NAME: Final = 255
"""Bytes of the name of a queue."""

MOST_PRIORITY: Final = 9
"""The priority of the most urgent jobs."""

LONGEST_ID: Final = 64
"""Bytes of the id of a submit."""

LONGEST_SECONDS: Final = 3_650 * 86_400.0
"""The longest delay and the longest lifetime of a job: ten years."""

MOST_STRANGERS: Final = 64
"""Users who are not trusted that a worker or a service remembers, each of whom is logged once."""

MOST_PREFETCH: Final = 4_096
"""Most jobs that one worker takes at once. More would only be lost with it."""

SUBMITTED: Final = 4_096
"""Most jobs in one request. They share one sync of the disk."""
_SUBMITTED_BYTES: Final = 262_144
"""Bytes of jobs after which one more request begins."""
_PAIR_EXTRA: Final = 11
"""Most bytes that MessagePack adds to a key and a payload."""

PURGE: Final = b"purge"
"""The request under ``queue/NAME/work`` that empties a queue; with a blank and a number, it is about one job."""
RETRY: Final = b"retry"
"""The request under ``queue/NAME/work`` that puts the dead jobs of a queue back into it."""
NOT_TRUSTED: Final = "is not trusted with"
"""Reason in the reply to a user who may not see or empty a queue."""
PEEK: Final = b"peek"
"""The request under ``queue/NAME/work`` for the jobs of a queue, which stay where they are."""
PEEKED: Final = 1_024
"""Most jobs in the reply, the oldest."""
PEEKED_BYTES: Final = 262_144
"""Bytes of jobs after which the reply ends."""

LISTINGS: Final = 256
"""Requests for lists of queues, one after another: all queues of eight services that have as many as one may."""

FULL: Final = "the queue is full"
"""The reply to jobs for which there is no room."""

T = TypeVar("T")
Pair: TypeAlias = tuple[bytes, bytes]
"""Key and payload."""
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_SECONDS)]
_Name: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]


class Job(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job for a worker. ``attempt`` is how often it was given, this time included; ``sender`` submitted it."""

    number: int
    attempt: int
    key: bytes
    payload: bytes
    sender: bytes | None = None

    @property
    def again(self) -> bool:
        """Whether it was given before, so that it may have been done, or begun."""
        return self.attempt > 1


class Submission(msgspec.Struct, frozen=True, array_like=True):
    """Request under ``queue/NAME/submit`` to accept these jobs.

    The jobs wait for ``delay`` seconds at least, and expire after ``expires``; high priorities go first. A submission
    with an ``id`` is accepted once, however often it is sent.
    """

    jobs: Annotated[list[Pair], msgspec.Meta(max_length=SUBMITTED)]
    delay: _Seconds = 0.0
    expires: _Seconds | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=MOST_PRIORITY)] = 0
    id: Annotated[bytes, msgspec.Meta(max_length=LONGEST_ID)] = b""


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """Announcement of a worker under ``queue/NAME/work``: its secret key, its prefetch, and the jobs it holds."""

    key: bytes
    room: int
    held: list[int]


class Presence(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Announcement of a service to others under ``queue/services``: its start, a random word, and its names.

    ``since`` is in nanoseconds since 1970. Of two services that have a name in common, the one that sorts first goes
    on. A name that ends in ``*`` stands for all that begin so.
    """

    since: int
    word: bytes
    names: Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=4)]


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """Message from the service to a worker: the key and token for acknowledgements, and jobs, or none."""

    key: bytes
    token: bytes
    jobs: list[Job]


class WorkerRefusal(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Message from the service to a worker that gets no jobs: the service's key, and the reason."""

    key: bytes
    why: str


class QueueState(msgspec.Struct, frozen=True, array_like=True):
    """State of a queue: the reply to a request under ``queue/NAME/work``.

    Of ``waiting`` jobs, ``delayed`` are not due yet. ``oldest`` is the age of the oldest of them in seconds, *None*
    without one. ``refused`` are users whose workers are refused: only trusted users see other users there. ``version``
    is another one after each job that came or ended, and in each service; empty for a queue that is not there.
    """

    waiting: _Count = 0
    held: _Count = 0
    oldest: Annotated[float, msgspec.Meta(ge=0)] | None = None
    workers: _Count = 0
    refused: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=2**32)]], msgspec.Meta(max_length=MOST_STRANGERS)] = []
    delayed: _Count = 0
    version: Annotated[bytes, msgspec.Meta(max_length=LONGEST_ID)] = b""


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """The queues of a service, by name, and whether there are more: the reply to a request under ``queue/services``.

    The request is the name after which it begins.
    """

    more: bool
    queues: Annotated[list[tuple[_Name, QueueState]], msgspec.Meta(max_length=SUBMITTED)]


class Peeked(msgspec.Struct, frozen=True, array_like=True):
    """The oldest jobs of a queue, whether they wait or are held."""

    jobs: Annotated[list[Job], msgspec.Meta(max_length=SUBMITTED)]


class Acknowledgement(msgspec.Struct, frozen=True, array_like=True):
    """Message from a worker to the service: its key and token, and the ends of jobs.

    Jobs may be done; failed, to be given again; returned without having been begun; or rejected for good. A worker that
    leaves gives back all others, too.
    """

    key: bytes
    token: bytes
    done: list[int]
    failed: list[int] = []
    returned: list[int] = []
    rejected: list[int] = []
    leaving: bool = False


_DECODERS: Final[dict[Any, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (
        Announcement,
        Delivery,
        Presence,
        Acknowledgement,
        Submission,
        WorkerRefusal,
        QueueState,
        Listing,
        Peeked,
        int,
    )
}
encode: Final = msgspec.msgpack.Encoder().encode


def decode(kind: type[T], payload: bytes) -> T | None:
    """Decode a message of this kind; ``None`` for anything else."""
    try:
        value: T = _DECODERS[kind].decode(payload)
    except MALFORMED:
        return None
    return value


def check_name(name: bytes, separator: bytes) -> None:
    """Raise :exc:`~sbuslib.errors.UsageError` unless a queue may have this name: one segment of a key."""
    if not name or separator in name or b"*" in name or b"\0" in name or name == RESERVED:
        raise UsageError(f"the name of a queue is one segment of a key, not {printable(name)}")
    if len(name) > LONGEST_NAME:
        raise UsageError(f"the name of a queue has at most {LONGEST_NAME} bytes, not {len(name):,}")


def queue_key(name: bytes, separator: bytes, *words: bytes) -> bytes:
    """``queue/NAME/WORD``: a key of this queue."""
    return separator.join((QUEUE, name, *words))


def services_key(separator: bytes) -> bytes:
    """``queue/services``: the key under which services of queues meet, and are asked what they have."""
    return separator.join((QUEUE, b"services"))


def is_address(key: bytes, sender: bytes | None, name: bytes, namespace: Namespace) -> bool:
    """Return whether a worker or service may publish its messages under this key.

    It has to be a secret key below ``queue/NAME``, and the sender's if the hub names senders. Otherwise somebody could
    have the service or a worker publish under the key of something else, with its rights.
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
    """Yield ``items`` in parts of up to ``most`` items and so many bytes; one larger item goes alone."""
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
    port: ClientPort,
    find: FindRequester,
    name: bytes,
    jobs: Iterable[Pair],
    separator: bytes,
    timeout: float | None,
    delay: float | None = None,
    expires: float | None = None,
    priority: int = 0,
    id: bytes = b"",
) -> None:
    """Have the service of a queue accept jobs, and wait until it has. With an ``id`` they have to fit one request."""
    # 1. Errors that can be seen here.
    check_name(name, separator)
    for what, seconds in (("delay", delay), ("expires", expires)):
        check_seconds(seconds, what)
        if seconds is not None and seconds > LONGEST_SECONDS:
            raise UsageError(f"{what} is at most ten years, not {seconds!r} seconds")
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= MOST_PRIORITY:
        raise UsageError(f"priority is 0 to {MOST_PRIORITY}, not {priority!r}")
    if len(id) > LONGEST_ID:
        raise UsageError(f"the id of a submit has at most {LONGEST_ID} bytes, not {len(id)}")

    # 2. As many requests as it takes.
    for part in in_parts(jobs, _pair_bytes, SUBMITTED, _SUBMITTED_BYTES):
        payload = encode((part, delay or 0.0, expires, priority, id))
        # A service that was killed may have stored the jobs, and the next one knows a submit by its id alone.
        await _ask(port, find, name, separator, b"submit", payload, timeout, again=bool(id))


def _pair_bytes(pair: Pair) -> int:
    key, payload = pair
    check_payload(payload)
    size = len(key) + len(payload)
    if size > JOB_BYTES:
        raise PayloadError(f"a job has at most {JOB_BYTES:,} bytes of key and payload, not {size:,}")
    return size + _PAIR_EXTRA


async def status(
    port: ClientPort, find: FindRequester, name: bytes, separator: bytes, timeout: float | None
) -> QueueState:
    """Ask the service of a queue for its state."""
    return await _ask_about(port, find, QueueState, name, separator, b"", timeout)


async def purge(
    port: ClientPort,
    find: FindRequester,
    name: bytes,
    separator: bytes,
    timeout: float | None,
    number: int | None = None,
) -> int:
    """Have the service of a queue forget all jobs that wait, or the one of a number; return how many there were."""
    word = PURGE if number is None else PURGE + b" %d" % number
    return await _ask_about(port, find, int, name, separator, word, timeout)


async def retry(port: ClientPort, find: FindRequester, name: bytes, separator: bytes, timeout: float | None) -> int:
    """Have the service of a queue put its dead jobs back; return how many there were."""
    return await _ask_about(port, find, int, name, separator, RETRY, timeout)


async def peek(
    port: ClientPort, find: FindRequester, name: bytes, separator: bytes, timeout: float | None
) -> list[Job]:
    """Ask the service of a queue for its oldest jobs, which stay where they are."""
    return (await _ask_about(port, find, Peeked, name, separator, PEEK, timeout)).jobs


def list_queues(ask: Callable[[bytes], list[Reply]]) -> dict[bytes, QueueState]:
    """Return the queues of all services that answer, and their states.

    :param ask: sends them a request under :func:`services_key`. Its errors are raised here, too, and
        :exc:`~sbuslib.errors.ReplyError` where all refuse, and :exc:`~sbuslib.errors.PeerError` where the lists have
        no end.
    """
    queues: dict[bytes, QueueState] = {}
    after = b""
    for _ in range(LISTINGS):
        answers = ask(after)
        given = [one for one in answers if one.error is None] or answers  # if all refuse, that is raised here
        listings = [listing for one in given if (listing := decode(Listing, one.payload)) is not None]
        queues |= {name: state for listing in listings for name, state in listing.queues}

        # Services that have more begin again behind the first name at which one of them stopped.
        ends = [listing.queues[-1][0] for listing in listings if listing.more and listing.queues]
        if not ends or min(ends) <= after:
            return queues
        after = min(ends)
    raise PeerError(f"services of queues have more to list after {LISTINGS} replies")


async def _ask(
    port: ClientPort,
    find: FindRequester,
    name: bytes,
    separator: bytes,
    word: bytes,
    payload: bytes,
    timeout: float | None,
    *,
    again: bool = True,
) -> bytes:
    try:
        return await request(port, find, queue_key(name, separator, word), payload, timeout, again=again)
    except NoServerError:
        who = f"no service has the queue {printable(name)}"
        raise NoServerError(f"{who}: start sbus queue for it, or sbus broker for all") from None


async def _ask_about(
    port: ClientPort,
    find: FindRequester,
    kind: type[T],
    name: bytes,
    separator: bytes,
    payload: bytes,
    timeout: float | None,
) -> T:
    answer = decode(kind, await _ask(port, find, name, separator, b"work", payload, timeout))
    if answer is None:
        raise PeerError(f"queue {printable(name)}: the answer of its service makes no sense")
    return answer
