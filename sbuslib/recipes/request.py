"""Request and reply: a question is published under a plain key, and answered under a secret key of the caller.

A server that answers quickly just answers. A slower one first says with a word that it has taken the question. So
"nobody serves this" and "it takes long" are two errors, the first after a short time. Answers carry the number of their
question, so any number of questions may be in flight.

Questions that wait in a server are shared out among users, who take turns (:mod:`sbuslib.shares`): one that asks more
than is answered delays itself. So a server asks its hub to tell senders.

A server answers under no other keys than those that callers make for answers: or a stranger could have it publish, with
its rights and under its name, where others trust it. Where the hub tells senders, an answer is only taken from the
process that took the question. ``docs/patterns.md`` has the bytes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import lru_cache
from secrets import randbits
from struct import Struct
from typing import Any, Final

import msgspec

from ..errors import AnswerError, NoServerError, PacketError, UsageError
from ..limits import PACKET_BYTES
from ..secrets import Namespace
from ..shares import Turns
from ..wire.packets import Message, check_payload
from ..wire.text import printable
from .mailbox import MAILBOX_BYTES, Mailbox, Party, called

__all__ = ["Answer", "Asking", "Question", "Server", "request", "request_many"]

TAKEN_WITHIN: Final = 2.0
"""Seconds within which a server takes a question, also on a busy machine; after that nobody serves it."""
ANSWERED_WITHIN: Final = 0.05
"""Seconds after which a caller without an answer asks the hub whether anybody receives such questions."""
SLOW: Final = 0.01
"""Seconds after which an answer counts as slow. Then the server says before the next one that it has taken it."""
TOGETHER: Final = 64
"""Answers that are sent together at most."""
TOGETHER_SECONDS: Final = 0.001
"""Seconds that an answer waits for others at most."""
MOST_QUESTIONS: Final = 4_096
"""Questions that wait in a server, of one user that is alone. Further ones are answered with an error at once."""
MOST_ANSWERS: Final = 4_096
"""Answers to one question."""
MOST_NUMBERS: Final = 512
"""Questions that one word takes."""
MOST_MILLISECONDS: Final = 2**32 - 1

logger = logging.getLogger("sbuslib.recipes")

_QUESTION = Struct("<4sQIH")
_ANSWER = Struct("<4sBQ")
_NUMBER = Struct("<Q")
ASKED, ANSWERED = b"REQ1", b"REP1"
TAKEN, REPLY, FAILED = 1, 2, 3
_LONGEST_TEXT: Final = 4_096
_OF_A_CALLER = re.compile(rb"[^0-9A-Za-z]reply[^0-9A-Za-z][0-9a-f]{32}")
"""How each key for answers ends."""
_LONGEST_KEY: Final = 4_096


class Question(Message, frozen=True, gc=False, kw_only=True):
    """What a server is asked: a message with ``key``, ``payload`` and ``sender``, if the server asks for senders."""

    until: float | None
    """When the caller gives up, by ``time.monotonic`` here; ``None`` for never."""
    number: int
    reply_to: bytes


class Answer(msgspec.Struct, frozen=True, gc=False):
    """One answer: its ``payload``, or what went wrong in ``error``; and who gave it, if the hub tells."""

    value: bytes
    sender: bytes | None = None
    error: str | None = None

    @property
    def payload(self) -> bytes:
        """The answer. Raises :exc:`~sbuslib.errors.AnswerError` if the server failed."""
        if self.error is not None:
            raise AnswerError(self.error)
        return self.value


def encode_question(number: int, timeout: float | None, reply_to: bytes, payload: bytes) -> bytes:
    """The payload of a question. A caller that waits for less than a millisecond says one."""
    check_payload(payload)
    left = 0 if timeout is None else min(max(1, round(timeout * 1000)), MOST_MILLISECONDS)
    return _QUESTION.pack(ASKED, number, left, len(reply_to)) + reply_to + payload


@lru_cache(256)  # a caller has the same key for all its questions
def _is_of_a_caller(key: bytes, namespace: Namespace) -> bool:
    """Whether a key is one that callers make for answers."""
    try:
        return _OF_A_CALLER.fullmatch(key[-39:]) is not None and b"\0" not in key and namespace.check_key(key)
    except PacketError:
        return False


def parse_question(message: Message, now: float, namespace: Namespace) -> Question | None:
    """The question in a message; ``None`` for what is none, or has no key of a caller to answer under."""
    payload = message.payload
    if len(payload) < _QUESTION.size:
        return None
    asked, number, left, length = _QUESTION.unpack_from(payload)
    start = _QUESTION.size + length
    if asked != ASKED or length > _LONGEST_KEY or start > len(payload):
        return None
    reply_to = payload[_QUESTION.size : start]
    if not _is_of_a_caller(reply_to, namespace):
        return None
    return Question(
        message.key,
        payload[start:],
        message.sender,
        until=now + left / 1000 if left else None,
        number=number,
        reply_to=reply_to,
    )


def encode_answer(kind: int, number: int, rest: bytes = b"") -> bytes:
    return _ANSWER.pack(ANSWERED, kind, number) + rest


# -- asking -------------------------------------------------------------------------------------------------


class _Pending:
    """One question in flight."""

    __slots__ = ("answers", "most", "room", "takers")

    def __init__(self, most: int) -> None:
        self.most = most
        self.room = MAILBOX_BYTES
        self.takers: list[bytes | None] = []
        self.answers: list[Answer] = []

    def is_from_a_taker(self, sender: bytes | None) -> bool:
        """Whether a sender has taken the question, as it does now if there is room for one more."""
        if sender in self.takers:
            return True
        if len(self.takers) >= self.most:
            return False
        self.takers.append(sender)
        return True

    def is_taken(self) -> bool:
        return bool(self.takers)

    def is_answered(self) -> bool:
        return len(self.answers) >= self.most


class Asking(Mailbox):
    """The questions that one client has in flight, and the mailbox for their answers.

    :param reply_to: the key for answers, which nobody can guess.
    """

    def __init__(self, reply_to: bytes, clock: Callable[[], float]) -> None:
        super().__init__(reply_to)
        self.clock = clock
        self._pending: dict[int, _Pending] = {}
        self._opener: dict[str, object] = {}
        self._opened = False

    async def open(self, party: Party) -> None:
        """Open the mailbox, unless it is open. Of several callers one does, and the others wait for it."""
        me = object()
        while not self._opened:
            if self._opener.setdefault("opener", me) is not me:
                await party.wait_until(lambda: self._opened or not self._opener, None)
                continue
            try:
                await party.tell_senders()
                await party.open_mailbox(self)
                self._opened = True
            finally:
                self._opener.clear()

    def put(self, message: Message) -> None:
        """An answer has come. What is none, or to no question in flight, is dropped."""
        payload = message.payload
        if len(payload) < _ANSWER.size:
            return
        answered, kind, number = _ANSWER.unpack_from(payload)
        if answered != ANSWERED:
            return
        pending = self._pending.get(number)
        if kind == TAKEN:
            if pending is not None:
                pending.is_from_a_taker(message.sender)
            for (other,) in _NUMBER.iter_unpack(payload[13 : 13 + 8 * (min(len(payload) - 13, 8 * MOST_NUMBERS) // 8)]):
                if (pending := self._pending.get(other)) is not None:
                    pending.is_from_a_taker(message.sender)
        elif kind in (REPLY, FAILED) and pending is not None and pending.is_from_a_taker(message.sender):
            pending.room -= len(payload)
            if pending.is_answered() or pending.room < 0:
                return
            rest = payload[13:]
            if kind == REPLY:
                pending.answers.append(Answer(rest, message.sender))
            else:
                text = rest[:_LONGEST_TEXT].decode("utf-8", "replace")
                pending.answers.append(Answer(b"", message.sender, text))

    def ask(self, most: int) -> tuple[int, _Pending]:
        """A new question: its number, and what becomes of it."""
        number, pending = randbits(64), _Pending(most)  # who has seen one question cannot answer another
        self._pending[number] = pending
        return number, pending

    def forget(self, number: int) -> None:
        """Take no more answers to a question."""
        del self._pending[number]


def _check_timeout(timeout: float | None, name: str) -> None:
    if timeout is not None and not timeout >= 0:
        raise UsageError(f"{name} is seconds from 0 on, or None, not {timeout!r}")


async def request(party: Party, asking: Asking, key: bytes, payload: bytes, timeout: float | None) -> bytes:
    """Ask, and wait for the answer of the first server that takes the question."""
    _check_timeout(timeout, "timeout")
    if not asking._opened:
        await asking.open(party)
    started = asking.clock()
    number, pending = asking.ask(1)
    try:
        await party.post(key, encode_question(number, timeout, asking.patterns[0], payload))
        short = TAKEN_WITHIN if timeout is None else min(timeout, TAKEN_WITHIN)
        taken = await _is_taken(party, key, pending, short)
        if not taken and short < TAKEN_WITHIN:
            raise TimeoutError(f"{printable(key)}: no answer within {timeout:g} s, and no server took the question")
        if not taken:
            raise NoServerError(f"nobody serves {printable(key)}: no server took the question within {short:g} s")
        if not pending.answers:
            left = None if timeout is None else max(0.0, timeout + started - asking.clock())
            answered: bool = await party.wait_until(pending.is_answered, left)
            if not answered:
                raise TimeoutError(f"{printable(key)}: a server took the question and did not answer in {timeout:g} s")
    finally:
        asking.forget(number)
    return pending.answers[0].payload


async def _is_taken(party: Party, key: bytes, pending: _Pending, timeout: float) -> bool:
    """Whether a server takes a question. Raises :exc:`~sbuslib.errors.NoServerError` when the hub knows of none.

    The hub acts on what it is sent in order. So where it says that nobody receives the key, nobody has got the
    question, but for one that has just left.
    """
    quick = min(timeout, ANSWERED_WITHIN)
    if await party.wait_until(pending.is_taken, quick):
        return True
    if timeout > quick and await party.is_wanted(key, timeout=timeout) is False and not pending.is_taken():
        raise NoServerError(f"nobody serves {printable(key)}: no client of this bus receives it")
    return await party.wait_until(pending.is_taken, timeout - quick)


async def request_many(
    party: Party, asking: Asking, key: bytes, payload: bytes, wait: float, most: int | None
) -> list[Answer]:
    """Ask all servers, and collect answers for ``wait`` seconds, or until there are ``most``."""
    _check_timeout(wait, "wait")
    if most is not None and not 1 <= most <= MOST_ANSWERS:
        raise UsageError(f"most is 1 to {MOST_ANSWERS:,}, not {most!r}")
    await asking.open(party)
    started = asking.clock()
    number, pending = asking.ask(most or MOST_ANSWERS)
    try:
        await party.post(key, encode_question(number, wait, asking.patterns[0], payload))
        with suppress(NoServerError):
            if await _is_taken(party, key, pending, wait):
                await party.wait_until(pending.is_answered, wait + started - asking.clock())
    finally:
        asking.forget(number)
    return pending.answers


# -- answering ----------------------------------------------------------------------------------------------


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
        if not isinstance(workers, int) or workers < 1:
            raise UsageError(f"workers is at least 1, not {workers!r}")
        self._party = party  # what it publishes and waits with
        self._mailbox = mailbox
        self._function = function
        self._workers = workers
        self._namespace = namespace
        self._clock = clock
        self._user_of = user_of
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
            (reply_to, encode_answer(TAKEN, first, b"".join(map(_NUMBER.pack, rest))))
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
            result = await called(self._function, question)
            if not isinstance(result, bytes):
                raise TypeError(f"the server's function returned {type(result).__name__}, not bytes")
            if len(result) + len(question.reply_to) + 18 > PACKET_BYTES:
                raise ValueError(f"the answer has {len(result):,} bytes, which do not fit a packet")
        except AnswerError as error:
            return encode_answer(FAILED, question.number, str(error).encode("utf-8", "replace")[:_LONGEST_TEXT])
        except (Exception, SystemExit) as error:  # the latter would end this thread alone
            # Its text is the server's own: it may name what a caller is not to know.
            logger.exception("a question under %s failed", printable(question.key))
            return encode_answer(FAILED, question.number, type(error).__name__.encode())
        return encode_answer(REPLY, question.number, result)
