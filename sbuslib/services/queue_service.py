"""The service of a shared queue: takes jobs in, gives each to one worker, and keeps those that are not acknowledged.

A client of a hub that works in turns. A turn takes what has come, applies the rules (:mod:`.queue_rules`), stores what
has changed, and only then answers and gives jobs: so nobody is told of anything that a crash could undo. A turn costs
one sync of the disk, and the busier the queue, the more jobs share it.

Two services of one name would both give each job that is published. So a service tells others since when it serves, and
the younger ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from time import monotonic, time_ns
from typing import Final

from ..blocking import Client
from ..errors import DisconnectedError, StateError, UsageError
from ..kernel.users import name_of_user
from ..limits import check_users
from ..matcher import matches
from ..recipes.queue import (
    JOB_BYTES,
    MOST_STRANGERS,
    Acknowledgement,
    Announcement,
    Presence,
    Submission,
    check_name,
    decode,
    encode,
    in_parts,
    is_address,
    queue_key,
)
from ..recipes.request import FAILED, REPLY, Question, encode_answer, parse_question
from ..secrets import Namespace, stranger
from ..wire.packets import Message
from ..wire.text import printable
from .queue_rules import Entry, Jobs, Turn
from .queue_store import Store

__all__ = ["QueueService"]

logger = logging.getLogger("sbuslib.services")

_TICK: Final = 0.25
"""Seconds between two turns of a queue that hears nothing."""
_TURN_MESSAGES: Final = 8_192
"""Messages of one turn, about. They share one sync, and wait for each other."""
_PART_JOBS: Final = 256
"""Jobs in one message to a worker. More would save nothing."""
_PART_BYTES: Final = 65_536
"""Bytes of jobs after which one more message begins."""
_LONGEST_TURN: Final = 1.0
"""What a turn counts at most, in seconds. While this process stands still, workers are not to blame for silence."""


REFUSALS_A_TURN: Final = 64
"""Workers that are told in one turn that they are refused. They announce themselves again."""


class QueueService:
    """The queue ``name`` for jobs that are published under ``patterns``. Blocks the thread that runs it.

    :param store: where jobs are kept; without one they are lost when this process ends.
    :param dead: the key above that of a job that is dead; ``queue/NAME/dead`` unless given.
    :param trusted: users whose processes may work, besides this one and root.

    Raises as :class:`sbuslib.blocking.Client`, and :exc:`~sbuslib.errors.UsageError`.
    """

    def __init__(
        self,
        address: str | os.PathLike[str] | None,
        name: bytes,
        patterns: Iterable[bytes],
        jobs: Jobs,
        store: Store | None = None,
        *,
        dead: bytes | None = None,
        trusted: Iterable[int] = (),
    ) -> None:
        self.jobs = jobs
        #: Jobs, ever: stored, turned away, and acknowledged by a worker.
        self.accepted = self.refused = self.done = 0
        self._store = store
        #: Set by :meth:`stop`.
        self._stopping = False
        #: When the last turn was, by the monotonic clock.
        self._at = monotonic()
        #: The clock of the jobs. It stands still while this process is stopped, so that no job seems late then.
        self._now = 0.0
        self._dead: list[Entry] = []  # not published yet
        self._strangers: set[int] = set()  # users whose workers were refused
        self._refusals = 0  # in this turn
        self._out: list[tuple[bytes, bytes]] = []
        #: Which service this is: of two, the older one stays.
        self._me = Presence(time_ns(), os.urandom(8))
        #: Its own client: nobody else may use it.
        self.client = client = Client(
            address,
            timeout=5.0,
            reconnect=True,
            senders=True,
            echo=False,
            hard="block",
            on_reconnect=lambda _: self._say_here(),
        )
        try:
            self._separator = separator = client.hub.separator
            self._namespace = Namespace(separator)
            self._patterns = tuple(patterns)
            self._check(name)
            self._secret = separator + queue_key(name, separator, os.urandom(8).hex().encode())
            self._name = name
            self._work = queue_key(name, separator, b"work")
            self._submit = queue_key(name, separator, b"submit")
            self._dead_key = (dead if dead is not None else queue_key(name, separator, b"dead")) + separator
            self._trusted = check_users(trusted, "trusted")
            if store is not None:
                jobs.load(store.load())
            client.subscribe(self._address, self._work, self._submit)
            self._jobs_in = client.subscribe(*self._patterns)  # what is published
            client.sync("tree")
            self._say_here()
        except BaseException:
            client.close()
            raise

    def _check(self, name: bytes) -> None:
        check_name(name, self._separator)
        if not self._patterns or any(map(self._namespace.uses_reserved, self._patterns)):
            raise UsageError("a queue takes what is published under at least one pattern, and no secrets")

    @property
    def _address(self) -> bytes:
        """The secret key under which workers acknowledge. It changes with the credentials of this client."""
        return self.client.credentials + self._secret

    def stop(self) -> None:
        """Let :meth:`run` return. It may be called by a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Serve until :meth:`stop`.

        Raises ``sqlite3.Error`` when the disk is full or fails, and :exc:`~sbuslib.errors.StateError` when another
        service has this name already.
        """
        with self.client as client:
            while not self._stopping:
                self._turn(_TICK)
            client.timeout = 1.0
            with suppress(TimeoutError, DisconnectedError):  # a hub that is gone sends no more
                self._jobs_in.unsubscribe()
                client.sync()
            self._turn(0)

    def _turn(self, timeout: float) -> None:
        messages: list[Message] = []
        with suppress(TimeoutError):
            messages += self.client.receive_many(timeout=timeout)
            while len(messages) < _TURN_MESSAGES:
                messages += self.client.receive_many(timeout=0)
        at = monotonic()
        self._now += min(at - self._at, _LONGEST_TURN)
        self._at = at
        self._refusals = 0
        address = self._address
        published = []
        for message in messages:
            if message.key == address:
                self._acknowledged(message)
            elif message.key == self._work:
                self._announced(message)
            elif message.key == self._submit:
                self._submitted(message)
            else:
                published.append(message)
        for sender, some in groupby(published, attrgetter("sender")):
            self._published(sender, [(message.key, message.payload) for message in some])
        if len(messages) < _TURN_MESSAGES:  # nothing that a worker said is still to be read
            self.jobs.expire(self._now)
        turn = self.jobs.turn(self._now)
        if self._store is not None:
            self._store.commit(turn)
        self.done += len(turn.finished)
        self._tell(turn, address)

    def _stranger(self, sender: bytes | None) -> int | None:
        """The user who is charged for what a sender says, and who may not work; ``None`` for those who are trusted."""
        return stranger(sender, self.client.credentials, self._separator, self._trusted)

    # -- what comes in ------------------------------------------------------------------------------

    def _published(self, sender: bytes | None, pairs: list[tuple[bytes, bytes]]) -> None:
        """Take in what a client published: all of it, or as much as there is room for."""
        if self._accept(pairs, sender) is not None:
            for pair in pairs:
                if self._accept([pair], sender) is not None:
                    if not self.refused:
                        logger.warning("%s: the queue refuses jobs from now on", self.client.address)
                    self.refused += 1

    def _accept(self, pairs: list[tuple[bytes, bytes]], sender: bytes | None) -> str | None:
        """Take all of these jobs in; why not, if they are refused."""
        if any(len(key) + len(payload) > JOB_BYTES for key, payload in pairs):
            return "a job is too large"
        if not self.jobs.accept(pairs, self._stranger(sender)):
            return "the queue is full"
        self.accepted += len(pairs)
        return None

    def _submitted(self, message: Message) -> None:
        """Take in what a caller wants to know to be accepted. It is told after the turn is stored."""
        question = parse_question(message, self._at, self._namespace)
        if question is None:
            return
        word = decode(Submission, question.payload)
        if word is None or not all(map(self._is_for_us, {key for key, _ in word.jobs})):
            why: str | None = "the queue takes no jobs of such keys"
        else:
            why = self._accept(word.jobs, message.sender)
        kind, text = (REPLY, "") if why is None else (FAILED, why)
        self._out.append((question.reply_to, encode_answer(kind, question.number, text.encode())))

    def _is_for_us(self, key: bytes) -> bool:
        """Whether a key could have come as published: it matches our patterns, and is no secret."""
        if b"\0" in key or self._namespace.uses_reserved(key):
            return False
        return any(matches(pattern, key, self._separator) for pattern in self._patterns)

    def _announced(self, message: Message) -> None:
        # 1. Whoever may not work is told so; how the queue stands, anybody may ask.
        sender = message.sender
        user = self._stranger(sender)
        if (question := parse_question(message, self._at, self._namespace)) is not None:
            self._asked(question, user)
            return
        if user is not None:
            self._refuse(decode(Announcement, message.payload), sender, user)
            return

        # 2. Another service of this name, or a worker.
        service = decode(Presence, message.payload)
        if service is not None:
            self._met(service, sender)
            return
        word = decode(Announcement, message.payload)
        if word is None or not is_address(word.key, sender, self._name, self._namespace):
            return
        worker = self.jobs.announce(word.key, sender, os.urandom(16), word.room, word.held, self._now)
        if worker is not None:
            self._out.append((worker.key, encode((self._address, worker.token, []))))

    def _refuse(self, word: Announcement | None, sender: bytes | None, user: int) -> None:
        """A worker is of a user who is not trusted: it is told, and the log once of each user."""
        if word is None or not is_address(word.key, sender, self._name, self._namespace):
            return
        if user not in self._strangers and len(self._strangers) < MOST_STRANGERS:
            self._strangers.add(user)
            text = "queue %s: workers of user %s get no jobs: start it with --trusted %s if they may work"
            logger.warning(text, printable(self._name), name_of_user(user), name_of_user(user))
        if self._refusals < REFUSALS_A_TURN:
            self._refusals += 1
            why = f"the service, process {printable(self.client.credentials)}, does not trust user {user}"
            self._out.append((word.key, encode((self._address, f"{why}: start it with --trusted {user}"))))

    def _asked(self, question: Question, user: int | None) -> None:
        """How the queue stands, as ``sbus doctor`` asks. A stranger is told of no others that are refused."""
        refused = [one for one in self._strangers if user in (None, one)]
        state = encode((len(self.jobs.jobs), len(self.jobs.workers), refused))
        self._out.append((question.reply_to, encode_answer(REPLY, question.number, state)))

    def _say_here(self) -> None:
        """Tell other services of this name of this one, at the end of the next turn."""
        self._out.append((self._work, encode(self._me)))

    def _met(self, other: Presence, sender: bytes | None) -> None:
        """There is another service of this name: the younger ends, and hears of the elder."""
        mine, its = (self._me.since, self._me.word), (other.since, other.word)
        if its < mine:
            who = f", process {printable(sender)}," if sender is not None else ""
            raise StateError(f"another service{who} has the queue {printable(self._name)} already")
        if its > mine and not self._stopping:
            self._say_here()

    def _acknowledged(self, message: Message) -> None:
        word = decode(Acknowledgement, message.payload)
        worker = self.jobs.workers.get(word.key) if word is not None else None
        if word is None or worker is None or (worker.token, worker.sender) != (word.token, message.sender):
            return
        self.jobs.finish(worker, word.done, word.failed, self._now)
        if word.leaving:
            self.jobs.leave(worker)

    # -- what goes out ------------------------------------------------------------------------------

    def _tell(self, turn: Turn, address: bytes) -> None:
        out, self._out = self._out, []
        for worker, jobs in turn.given.items():
            for part in in_parts(jobs, attrgetter("size"), _PART_JOBS, _PART_BYTES):
                told = [(job.number, job.attempts, job.key, job.payload) for job in part]
                out.append((worker.key, encode((address, worker.token, told))))
        self._dead += turn.dead
        out += ((self._dead_key + job.key, job.payload) for job in self._dead)
        if out:
            # What a hub that is away does not get is asked for or given again: workers name what they hold.
            with suppress(TimeoutError, DisconnectedError):
                self.client.publish_many(out)
                self.jobs.bury(self._dead)
                self._dead.clear()
