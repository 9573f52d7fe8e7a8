"""Request and reply: a request is published under a plain key, and answered under a secret key of the caller.

This is the caller's side, and the bytes between (``docs/patterns.md``); the other side is in
:mod:`sbuslib.clients.recipes.server`. Replies carry the number of their request, so any number of requests may be in
flight.

A caller that gives up cancels its request: a server that has not begun with it does not. The number of a request is
the hash of a secret, and its cancellation carries the secret: so another process that has seen a request cannot cancel
it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from secrets import token_bytes
from struct import Struct
from types import TracebackType
from typing import Final, Protocol, TypeAlias

import msgspec

from ...errors import NoServerError, PacketError, RefusedError, ReplyError
from ...limits import check_count, check_seconds
from ...secrets import Namespace
from ...wire.packets import Message, check_payload
from ...wire.text import printable
from .mailbox import MAILBOX_BYTES, ClientPort, Mailbox, Posted, WatchedKey

ANSWERED_WITHIN: Final = 0.05
"""Seconds after which a caller without a reply asks the hub whether the key has a receiver; then four times as many
until it asks again."""
MOST_ANSWERS: Final = 4_096
"""Most replies to one request."""
MOST_MILLISECONDS: Final = 2**32 - 1

_QUESTION = Struct("<4sQIH")
_ANSWER = Struct("<4sBQ")
_SECRET_BYTES: Final = 16
ASKED, ANSWERED, CANCELLED = b"REQ1", b"REP1", b"CAN1"
REPLY, FAILED = 2, 3
LONGEST_TEXT: Final = 4_096
_OF_A_CALLER = re.compile(rb"[^0-9A-Za-z]reply[^0-9A-Za-z][0-9a-f]{32}")
"""End of each reply key."""
_ENDING_BYTES: Final = 39
_LONGEST_KEY: Final = 4_096


class Request(Message, frozen=True, gc=False, kw_only=True):
    """A request, as a server gets it: a message with ``key``, ``payload`` and ``sender``, if the server asks for
    senders.
    """

    until: float | None
    """When the caller gives up, by ``time.monotonic`` here; ``None`` for never."""
    number: int
    reply_to: bytes


class Reply(msgspec.Struct, frozen=True, gc=False):
    """One reply: its ``payload``, or the reason of a failure in ``error``; and its sender, if the hub names it."""

    value: bytes
    sender: bytes | None = None
    error: str | None = None

    @property
    def payload(self) -> bytes:
        """The payload of the reply. Raises :exc:`~sbuslib.errors.ReplyError` if the server failed."""
        if self.error is not None:
            raise ReplyError(self.error)
        return self.value


def encode_question(number: int, timeout: float | None, reply_to: bytes, payload: bytes) -> bytes:
    """Return the payload of a request. A wait of less than a millisecond is sent as one millisecond."""
    check_payload(payload)
    left = 0 if timeout is None else round(min(max(1, timeout * 1000), MOST_MILLISECONDS))
    return _QUESTION.pack(ASKED, number, left, len(reply_to)) + reply_to + payload


@lru_cache(256)  # a caller has the same key for all its requests
def _is_of_a_caller(key: bytes, namespace: Namespace) -> bool:
    """Return whether a key is one that callers make for replies."""
    try:
        return caller_of(key) is not None and b"\0" not in key and namespace.check_key(key)
    except PacketError:
        return False


def caller_of(reply_to: bytes) -> bytes | None:
    """Return the credential key in a reply key; ``None`` for any other key. It is not checked further."""
    return reply_to[:-_ENDING_BYTES] if _OF_A_CALLER.fullmatch(reply_to[-_ENDING_BYTES:]) else None


def split_question(payload: bytes) -> tuple[int, int, bytes, bytes] | None:
    """Split a request into number, milliseconds, reply key and payload; ``None`` for other bytes."""
    if len(payload) < _QUESTION.size:
        return None
    asked, number, left, length = _QUESTION.unpack_from(payload)
    start = _QUESTION.size + length
    if asked != ASKED or length > _LONGEST_KEY or start > len(payload):
        return None
    return number, left, payload[_QUESTION.size : start], payload[start:]


def parse_question(message: Message, now: float, namespace: Namespace) -> Request | None:
    """Parse the request in a message; ``None`` if it is none, or its reply key is not a caller's."""
    if (parts := split_question(message.payload)) is None:
        return None

    # Nobody may have a server publish under any key: it has to be one on which only a caller listens.
    number, left, reply_to, payload = parts
    if not _is_of_a_caller(reply_to, namespace):
        return None
    return Request(
        message.key,
        payload,
        message.sender,
        until=now + left / 1000 if left else None,
        number=number,
        reply_to=reply_to,
    )


def _number_of(secret: bytes) -> int:
    return int.from_bytes(sha256(secret).digest()[:8], "little")


def encode_cancellation(secret: bytes) -> bytes:
    """Return the payload that cancels a request, under its key."""
    return CANCELLED + secret


def parse_cancellation(payload: bytes) -> int | None:
    """Return the number of the request that a payload cancels; ``None`` if it is no cancellation."""
    if len(payload) != len(CANCELLED) + _SECRET_BYTES or not payload.startswith(CANCELLED):
        return None
    return _number_of(payload[len(CANCELLED) :])


def encode_answer(kind: int, number: int, rest: bytes = b"") -> bytes:
    return _ANSWER.pack(ANSWERED, kind, number) + rest


def split_answer(payload: bytes) -> tuple[int, int, bytes] | None:
    """Split a reply into kind, number and the rest; ``None`` for other bytes."""
    if len(payload) < _ANSWER.size:
        return None
    answered, kind, number = _ANSWER.unpack_from(payload)
    return (kind, number, payload[_ANSWER.size :]) if answered == ANSWERED and kind in (REPLY, FAILED) else None


# -- asking -------------------------------------------------------------------------------------------------


class _Pending:
    """One request in flight."""

    __slots__ = ("answers", "most", "room", "secret")

    def __init__(self, most: int, secret: bytes) -> None:
        self.most = most
        self.secret = secret  # that cancels it
        #: Bytes of replies that are still taken.
        self.room = MAILBOX_BYTES
        #: Those that have come.
        self.answers: list[Reply] = []

    def is_answered(self) -> bool:
        return len(self.answers) >= self.most


class LockLike(Protocol):
    """A lock, for example :class:`threading.Lock`."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def locked(self) -> bool: ...


class Requester(Mailbox):
    """The requests that one client has in flight, and the mailbox for their replies.

    :param reply_to: the reply key, which nobody can guess.
    :param make_lock: for callers that may be threads.
    """

    def __init__(self, reply_to: bytes, make_lock: Callable[[], LockLike]) -> None:
        super().__init__(reply_to)
        self._make_lock = make_lock
        #: Requests in flight, by number.
        self._pending: dict[int, _Pending] = {}
        self._opening = make_lock()  # held while the opener changes
        self._opener: LockLike | None = None  # of the caller that opens the mailbox, while it is locked
        self.is_open = False
        """Whether the mailbox is open."""
        self.was_refused = False
        """Whether the hub refused the reply key: it is that of other credentials, and another has to be made."""

    async def open(self, port: ClientPort, until: float | None) -> None:
        """Open the mailbox, unless it is open. Of several callers one does, and the others wait for it.

        An opener that was interrupted, by a signal handler at any instruction, has released its lock.
        """
        while not self.is_open:
            # 1. One caller has the lock as long as it opens.
            mine = self._make_lock()
            with mine:
                with self._opening:
                    if not self._is_opening():
                        self._opener = mine
                if self._opener is mine:
                    try:
                        await port.open_mailbox(self, until=until)
                    except RefusedError:
                        self.was_refused = True
                        raise
                    self.is_open = True
                    return

            # 2. The others wait for it.
            if not await port.wait_until(lambda: self.is_open or not self._is_opening(), port.remaining(until)):
                raise TimeoutError("the hub did not answer in time")

    def _is_opening(self) -> bool:
        return self._opener is not None and self._opener.locked()

    def put(self, message: Message) -> None:
        """Take a message in. It is dropped unless it answers a request in flight."""
        if (parts := split_answer(message.payload)) is None:
            return
        kind, number, rest = parts
        pending = self._pending.get(number)
        if pending is None or pending.is_answered():
            return

        pending.room -= len(message.payload)
        if pending.room < 0:
            return
        if kind == REPLY:
            pending.answers.append(Reply(rest, message.sender))
        else:
            text = rest[:LONGEST_TEXT].decode("utf-8", "replace")
            pending.answers.append(Reply(b"", message.sender, text))

    def ask(self, most: int) -> tuple[int, _Pending]:
        """Register a new request; return its number, and the record of its replies."""
        secret = token_bytes(_SECRET_BYTES)
        number, pending = _number_of(secret), _Pending(most, secret)  # others who have seen one cannot answer another
        self._pending[number] = pending
        return number, pending

    def is_shared(self) -> bool:
        """Whether several requests are in flight."""
        return len(self._pending) > 1

    def forget(self, number: int) -> None:
        """Take no more replies to a request."""
        del self._pending[number]


FindRequester: TypeAlias = Callable[[float | None], Awaitable[Requester]]
"""Finds the requests of a client, until a time by ``time.monotonic``."""


async def request(
    port: ClientPort,
    find: FindRequester,
    key: bytes,
    payload: bytes,
    timeout: float | None,
    *,
    again: bool = True,
) -> bytes:
    """Send a request, and wait for the first reply.

    :param again: whether it may reach a server's next process, too, that knows no number of the one before.
    """
    timeout = check_seconds(timeout, "timeout")
    until = port.deadline(timeout)
    answers = await _ask(port, await find(until), key, payload, until, 1, again=again)
    if not answers:
        raise TimeoutError(f"{printable(key)}: no answer within {timeout or 0:g} s")
    return answers[0].payload


async def request_many(
    port: ClientPort, find: FindRequester, key: bytes, payload: bytes, wait: float, most: int | None
) -> list[Reply]:
    """Send a request to all servers, and collect replies for ``wait`` seconds, or until there are ``most``."""
    wait = check_seconds(wait, "wait")
    check_count(most, "most", MOST_ANSWERS)
    until = port.deadline(wait)
    port.ask_for_senders()
    with suppress(NoServerError):
        return await _ask(port, await find(until), key, payload, until, most or MOST_ANSWERS)
    return []


async def _wait_for_answers(
    port: ClientPort,
    pending: _Pending,
    key: bytes,
    until: float | None,
    *,
    is_early: Callable[[WatchedKey], bool],
    post: Callable[[], Awaitable[Posted]],
) -> None:
    """Wait for replies. Raises :exc:`~sbuslib.errors.NoServerError` once no server is left to answer."""
    watch = port.begin_watch(key)

    def is_over() -> bool:
        return pending.is_answered() or watch.state is False

    try:
        # 1. A request that came before its server reached nobody: it is sent again when there is one. Servers serve
        # each number once, in case they had it.
        await port.wait_until(lambda: is_over() or watch.is_known, port.remaining(until))
        if is_early(watch):
            await port.wait_until(lambda: is_over() or watch.state is True, port.remaining(until))
            is_served = await port.wait_until(is_over, port.remaining(until, ANSWERED_WITHIN))
            if not is_served and watch.state is True:
                await post()

        # 2. The answers, or that there will be none.
        await port.wait_until(is_over, port.remaining(until))
        if watch.state is False and not pending.answers:
            raise NoServerError(f"nobody serves {printable(key)}: no client of this bus receives it")
    finally:
        port.end_watch(watch)


async def _ask(
    port: ClientPort,
    requester: Requester,
    key: bytes,
    payload: bytes,
    until: float | None,
    most: int,
    *,
    again: bool = True,
) -> list[Reply]:
    """Send a request, and collect replies. Raises :exc:`~sbuslib.errors.NoServerError` when nobody received the
    request.

    The hub acts on packets in order. So if it reports that nobody receives the key, no server has got the request,
    except one that has just left.

    After an outage callers may be back before their servers. So a request for which this client waited for a hub, or
    which came to a hub that did not know yet whether the key has a server, is sent once more when it has one. One that
    was on its way when a hub ended is not: a server may have had it, and ended as well.
    """
    began = port.epoch
    if not requester.is_open:
        await requester.open(port, until)
    number, pending = requester.ask(most)

    async def post() -> Posted:
        question = encode_question(number, port.remaining(until), requester.patterns[0], payload)
        return await port.post(key, question, together=requester.is_shared(), until=until)

    try:
        posted = await post()

        def is_early(watch: WatchedKey) -> bool:
            is_young = watch.is_known and watch.state is None and posted.epoch == port.epoch
            return again and (posted.epoch != began or is_young)

        # Most replies come at once. Else the hub reports when nobody receives the key, now or later.
        if not await port.wait_until(pending.is_answered, port.remaining(until, ANSWERED_WITHIN)):
            await _wait_for_answers(port, pending, key, until, is_early=is_early, post=post)
        return pending.answers
    except NoServerError:
        pending.most = 0  # nobody has it
        raise
    finally:
        requester.forget(number)
        if not pending.is_answered():
            port.tell(key, encode_cancellation(pending.secret))
