"""Answering questions: see :mod:`sbuslib.recipes.request`.

A server that answers quickly just answers. A slower one first says with a word that it has taken the question. So
"nobody serves this" and "it takes long" are two errors, the first after a short time.

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
from .request import FAILED, LONGEST_TEXT, MOST_NUMBERS, NUMBER, REPLY, TAKEN, Question, encode_answer, parse_question

__all__ = ["Server"]

SLOW: Final = 0.01
"""Seconds after which an answer counts as slow. Then the server says before the next one that it has taken it."""
TOGETHER: Final = 64
"""Answers that are sent together at most."""
TOGETHER_SECONDS: Final = 0.001
"""Seconds that an answer waits for others at most."""
MOST_QUESTIONS: Final = 4_096
"""Questions that wait in a server, of one user that is alone. Further ones are answered with an error at once."""

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
        self._untaken: dict[int, Question] = {}  # read, and neither taken with a word nor answered yet; by id
        self._answers: list[tuple[bytes, bytes]] = []  # to be sent together
        self._running = 0
        self._slow = True  # until the first answer shows otherwise

    def runners(self) -> list[Coroutine[Any, Any, None]]:
        """What is to run side by side until the mailbox is closed."""
        return [self._run() for _ in range(self._workers + 1)]

    def _may_work(self) -> bool:
        return bool(self._jobs) and self._running < self._workers

    def _has_work(self) -> bool:
        return self._mailbox.is_ready() or bool(self._untaken) or self._may_work()

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
            elif self._untaken:
                # Another runner is in the function, and this one has its turn meanwhile: so the function takes long.
                await self._party.wait_until(self._mailbox.is_ready, SLOW)
                await self._read()
                await self._say_taken()
                await self._send()

    async def _read(self) -> None:
        now = self._clock()
        refused = False
        while (message := self._mailbox.take()) is not None:
            question = parse_question(message, now, self._namespace)
            if question is None:
                continue
            self._untaken[id(question)] = question  # before another thread answers it
            if not self._jobs.put(self._user_of(question.sender), question, len(question.payload)):
                del self._untaken[id(question)]
                busy = encode_answer(FAILED, question.number, b"the server is busy: too many questions wait")
                self._answers.append((question.reply_to, busy))
                refused = True
        if refused:
            await self._send()

    async def _send(self) -> None:
        answers, self._answers = self._answers, []
        if answers:
            with suppress(TimeoutError):  # the hub is away for long: the callers have given up
                await self._party.publish_many(answers)

    async def _say_taken(self) -> None:
        """Say that questions are taken: one word for many of the same caller."""
        untaken, self._untaken = self._untaken, {}
        numbers: dict[bytes, list[int]] = {}
        for question in list(untaken.values()):
            numbers.setdefault(question.reply_to, []).append(question.number)
        words = [
            (reply_to, encode_answer(TAKEN, first, b"".join(map(NUMBER.pack, rest))))
            for reply_to, all_numbers in numbers.items()
            for at in range(0, len(all_numbers), MOST_NUMBERS)
            for first, *rest in [all_numbers[at : at + MOST_NUMBERS]]
        ]
        if words:
            with suppress(TimeoutError):  # as above
                await self._party.publish_many(words)

    async def _work(self) -> None:
        """Answer what waits.

        An answer waits for others only while the next question is not taken yet: then there is a runner that looks
        whether that one takes long.
        """
        self._running += 1
        since = self._clock()
        try:
            if self._slow:
                await self._say_taken()
            while (question := self._jobs.take()) is not None:
                if id(question) not in self._untaken:
                    await self._send()
                started = self._clock()
                if question.until is None or started < question.until:
                    answer = await self._answer(question)
                    self._answers.append((question.reply_to, answer))  # another list by now, if some were sent
                self._untaken.pop(id(question), None)
                now = self._clock()
                self._slow = now - started > SLOW
                if len(self._answers) >= TOGETHER or now - since > TOGETHER_SECONDS:
                    await self._send()
                    since = now
            await self._send()
        finally:
            self._running -= 1

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
            # Its text is the server's own: it may name what a caller is not to know.
            logger.exception("a question under %s failed", printable(question.key))
            return encode_answer(FAILED, question.number, type(error).__name__.encode())
        return encode_answer(REPLY, question.number, result)
