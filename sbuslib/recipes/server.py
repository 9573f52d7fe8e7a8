"""Answering questions: see :mod:`sbuslib.recipes.request`.

Questions that wait in a server are shared out among users, who take turns (:mod:`sbuslib.shares`): one that asks more
than is answered delays itself. So a server asks its hub to tell senders.

A server answers under no other keys than those that callers make for answers: or a stranger could have it publish, with
its rights and under its name, where others trust it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from ..errors import AnswerError
from ..limits import PACKET_BYTES, check_count
from ..secrets import Namespace
from ..shares import Turns
from ..wire.text import printable
from .mailbox import MAILBOX_BYTES, Mailbox, Party
from .request import FAILED, LONGEST_TEXT, REPLY, Question, encode_answer, parse_question

__all__ = ["Server"]

MOST_QUESTIONS: Final = 4_096
"""Most questions that wait in a server, if they are all of one user. More are answered with an error at once."""

logger = logging.getLogger("sbuslib.recipes")


class Server:
    """Answers questions with a function of the application.

    It has one runner more than ``workers``: while all of them are at work, one still takes questions.
    """

    def __init__(
        self,
        party: Party,
        mailbox: Mailbox,
        function: Callable[[Question], Any],
        workers: int,
        namespace: Namespace,
        clock: Callable[[], float],
        user_of: Callable[[bytes | None], int | None] = lambda sender: None,
    ) -> None:
        """``user_of`` tells who is charged for what a sender asks."""
        check_count(workers, "workers")
        self._party = party  # what it publishes and waits with
        self._mailbox = mailbox
        self._function = function
        self._workers = workers
        self._namespace = namespace
        self._clock = clock
        self._user_of = user_of
        #: Questions that wait, with turns for the users who ask.
        self._jobs = Turns[Question](MOST_QUESTIONS, MAILBOX_BYTES)
        self._running = 0  # calls of the function under way

    def runners(self) -> list[Coroutine[Any, Any, None]]:
        """What is to run side by side until the mailbox is closed."""
        return [self._run() for _ in range(self._workers + 1)]

    def _may_work(self) -> bool:
        return bool(self._jobs) and self._running < self._workers

    def _has_work(self) -> bool:
        return self._mailbox.is_ready() or self._may_work()

    async def _run(self) -> None:
        with suppress(TimeoutError):  # the hub is away: then all count as one user
            await self._party.tell_senders()
        while True:
            await self._party.wait_until(self._has_work, None)
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
            question = parse_question(message, now, self._namespace)
            if question is not None and not self._jobs.put(
                self._user_of(question.sender), question, len(question.payload)
            ):
                busy = encode_answer(FAILED, question.number, b"the server is busy: too many questions wait")
                await self._send(question, busy)

    async def _work(self) -> None:
        """Answer what waits."""
        self._running += 1
        try:
            while (question := self._jobs.take()) is not None:
                if question.until is None or self._clock() < question.until:
                    await self._send(question, await self._answer(question))
        finally:
            self._running -= 1

    async def _send(self, question: Question, answer: bytes) -> None:
        with suppress(TimeoutError):  # the hub is away for long: the callers have given up
            await self._party.post(question.reply_to, answer, together=bool(self._jobs))

    async def _answer(self, question: Question) -> bytes:
        try:
            result = await self._party.in_time(self._function, question, question.until)
            if not isinstance(result, bytes):
                raise TypeError(f"the server's function returned {type(result).__name__}, not bytes")
            if len(result) + len(question.reply_to) + 18 > PACKET_BYTES:
                raise ValueError(f"the answer has {len(result):,} bytes, which do not fit a packet")
        except AnswerError as error:
            return encode_answer(FAILED, question.number, str(error).encode("utf-8", "replace")[:LONGEST_TEXT])
        except (Exception, SystemExit) as error:  # the latter would end this thread alone
            if isinstance(error, TimeoutError) and question.until is not None and self._clock() >= question.until:
                logger.info("a question under %s was ended: its caller has given up", printable(question.key))
                return encode_answer(FAILED, question.number, b"it took too long")

            # Its text is the server's own: it may name what a caller is not to know.
            logger.exception("a question under %s failed", printable(question.key))
            return encode_answer(FAILED, question.number, type(error).__name__.encode())
        return encode_answer(REPLY, question.number, result)
