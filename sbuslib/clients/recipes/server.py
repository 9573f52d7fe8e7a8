"""The server's side of request and reply: see :mod:`sbuslib.clients.recipes.request`.

Requests that wait in a server are shared out among users, who take turns (:mod:`sbuslib.shares`): a user that asks
more than is answered delays only itself. For this, a server asks its hub to name senders.

A server does not begin with a request whose caller has given up: it has cancelled the request, its time is over, or it
has left. The hub reports that it has left, as nobody receives the reply key then. But this can also be so for a moment
while a hub on the way is replaced, so it has to last for some time.

A server answers only under keys that callers make for replies. Otherwise a stranger could have it publish, with its
rights and under its name, where others trust it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from typing import Any, Final

from ...errors import ReplyError
from ...limits import PACKET_BYTES, check_count
from ...secrets import Namespace
from ...shares import Served, Turns
from ...wire.text import printable
from .mailbox import MAILBOX_BYTES, ClientPort, Mailbox
from .request import (
    ANSWERED_WITHIN,
    FAILED,
    LONGEST_TEXT,
    REPLY,
    Request,
    encode_answer,
    parse_cancellation,
    parse_question,
)

MOST_QUESTIONS: Final = 4_096
"""Most requests that wait in a server, if they are all of one user. More are answered with an error at once."""
LOOK_SECONDS: Final = 0.25
"""How long a request waits before the hub is asked whether its caller is still there, and until it is asked again."""
LEFT_SECONDS: Final = 1.0
"""How long nobody receives a caller's replies before it counts as gone."""

logger = logging.getLogger("sbuslib.clients.recipes")


class _Waiting:
    """A request that waits."""

    __slots__ = ("is_cancelled", "question", "since")

    def __init__(self, question: Request, since: float) -> None:
        self.question = question
        self.since = since  # when it came
        self.is_cancelled = False  # by its caller


class _Caller:
    """State of a caller whose requests wait for long, as the hub reported it."""

    __slots__ = ("asked", "away_since")

    def __init__(self) -> None:
        self.asked = -inf  # when the hub was asked
        self.away_since: float | None = None  # None: somebody receives its replies


class Server:
    """Answers requests with a function of the application.

    It has one runner more than ``workers``: while all of them are at work, one still takes requests.
    """

    def __init__(
        self,
        port: ClientPort,
        mailbox: Mailbox,
        function: Callable[[Request], Any],
        workers: int,
        namespace: Namespace,
        clock: Callable[[], float],
        user_of: Callable[[bytes | None], int | None] = lambda sender: None,
    ) -> None:
        """``user_of`` returns the user who is charged for a sender's requests."""
        check_count(workers, "workers")
        self._port = port  # the client with which it publishes and waits
        self._mailbox = mailbox
        self._function = function
        self._workers = workers
        self._namespace = namespace
        self._clock = clock
        self._user_of = user_of
        #: Requests that wait, with turns for the users who ask.
        self._jobs = Turns[_Waiting](MOST_QUESTIONS, MAILBOX_BYTES)
        self._waiting: dict[int, _Waiting] = {}  # the same, by number
        self._callers: dict[bytes, _Caller] = {}  # by their reply key
        self._served = Served()  # requests that it has had
        self._running = 0  # calls of the function under way

    def runners(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that run side by side until the mailbox is closed."""
        return [self._run() for _ in range(self._workers + 1)]

    def _may_work(self) -> bool:
        return bool(self._jobs) and self._running < self._workers

    def _has_work(self) -> bool:
        return self._mailbox.is_ready() or self._may_work()

    async def _run(self) -> None:
        self._port.ask_for_senders()
        while True:
            await self._port.wait_until(self._has_work, None)
            closed = self._mailbox.closed
            if not closed:
                await self._read()
            if self._may_work():
                await self._work()
            elif closed:
                return

    async def _read(self) -> None:
        now = self._clock()
        while (message := self._mailbox.take()) is not None:
            # 1. A waiting request is cancelled by its caller, which alone knows the secret.
            if (number := parse_cancellation(message.payload)) is not None:
                if (cancelled := self._waiting.get(number)) is not None:
                    cancelled.is_cancelled = True
                continue

            # 2. A request waits for its turn, if there is room.
            question = parse_question(message, now, self._namespace)
            if question is None:
                continue
            user = self._user_of(question.sender)
            if not self._served.is_new(user, question.sender, question.number):
                continue
            waiting = self._waiting[question.number] = _Waiting(question, now)
            if not self._jobs.put(user, waiting, len(question.payload)):
                self._waiting.pop(question.number, None)
                busy = encode_answer(FAILED, question.number, b"the server is busy: too many questions wait")
                await self._send(question, busy)

    async def _work(self) -> None:
        """Answer the requests that wait."""
        self._running += 1
        try:
            while (waiting := self._jobs.take()) is not None:
                question = waiting.question
                if await self._is_awaited(waiting):
                    await self._send(question, await self._answer(question))
        finally:
            self._running -= 1

    async def _is_awaited(self, waiting: _Waiting) -> bool:
        """Return whether the caller still waits for the reply to a request that is about to begin."""
        question = waiting.question
        has_left = False
        if self._clock() - waiting.since >= LOOK_SECONDS:
            has_left = await self._has_left(question.reply_to)
            await self._read()  # messages that came before the hub's answer
        self._waiting.pop(question.number, None)
        return not (
            has_left or waiting.is_cancelled or (question.until is not None and self._clock() >= question.until)
        )

    async def _has_left(self, reply_to: bytes) -> bool:
        """Return whether nobody has received the replies to a caller for some time, as far as the hub knows."""
        if (caller := self._callers.get(reply_to)) is None:
            if len(self._callers) >= MOST_QUESTIONS:
                self._callers.clear()
            caller = self._callers[reply_to] = _Caller()
        now = self._clock()
        if now - caller.asked >= LOOK_SECONDS:
            caller.asked = now
            is_wanted = await self._port.is_wanted(reply_to, timeout=ANSWERED_WITHIN)
            if is_wanted is not False:
                caller.away_since = None
            elif caller.away_since is None:
                caller.away_since = now
        return caller.away_since is not None and now - caller.away_since >= LEFT_SECONDS

    async def _send(self, question: Request, answer: bytes) -> None:
        with suppress(TimeoutError):  # the hub is away for long: the callers have given up
            await self._port.post(question.reply_to, answer, together=bool(self._jobs), until=question.until)

    async def _answer(self, question: Request) -> bytes:
        try:
            result = await self._port.in_time(self._function, question, question.until)
            if not isinstance(result, bytes):
                raise TypeError(f"the server's function returned {type(result).__name__}, not bytes")
            if len(result) + len(question.reply_to) + 18 > PACKET_BYTES:
                raise ValueError(f"the answer has {len(result):,} bytes, which do not fit a packet")
        except ReplyError as error:
            return encode_answer(FAILED, question.number, str(error).encode("utf-8", "replace")[:LONGEST_TEXT])
        except (Exception, SystemExit) as error:  # the latter would end this thread alone
            if isinstance(error, TimeoutError) and question.until is not None and self._clock() >= question.until:
                logger.info("a question under %s was ended: its caller has given up", printable(question.key))
                return encode_answer(FAILED, question.number, b"it took too long")

            # Its text is the server's own: it may name things that a caller is not to know.
            logger.exception("a question under %s failed", printable(question.key))
            return encode_answer(FAILED, question.number, type(error).__name__.encode())
        return encode_answer(REPLY, question.number, result)
