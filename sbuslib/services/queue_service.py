"""The service of shared queues: takes jobs in, gives each to one worker, and keeps those that are not acknowledged.

A client of a hub that works in turns. A turn takes all received messages, applies the rules (:mod:`.queue_rules`),
stores the changes, and only then answers and gives jobs: so a crash cannot undo anything that was answered. A turn
costs one sync of the disk. Messages that come meanwhile are for the next turn, so the busier the queues, the more jobs
share a sync.

One service has a queue, or all queues whose name begins in some way. A queue is there once it has a job or a worker.
Two services of one name would both give each job that is published. So services announce when they began, and the
younger ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from math import inf
from operator import attrgetter
from time import monotonic, time_ns
from typing import Final

from msgspec.structs import replace

from ..blocking import Client
from ..clients.recipes.queue import (
    FULL,
    JOB_BYTES,
    LONGEST_NAME,
    NOT_TRUSTED,
    PEEK,
    PEEKED,
    PEEKED_BYTES,
    PURGE,
    RETRY,
    Acknowledgement,
    Announcement,
    Job,
    Peeked,
    Presence,
    QueueState,
    Submission,
    check_name,
    decode,
    encode,
    in_parts,
    is_address,
    queue_key,
    services_key,
)
from ..clients.recipes.request import FAILED, REPLY, Request, encode_answer, parse_question
from ..errors import DisconnectedError, StateError, UsageError
from ..keys.covering import overlap
from ..matcher import matches
from ..secrets import Namespace
from ..shares import Served
from ..wire.packets import Message
from ..wire.text import printable
from .queue_access import QueueAccess
from .queue_entries import Entry, KnownWorker, Submits
from .queue_rules import Jobs, dead_name
from .queue_store import Store

logger = logging.getLogger("sbuslib.services")

_TICK: Final = 0.25
"""Seconds between two turns of a service without messages, whose workers hold no job."""
_LOOK: Final = 0.05
"""Seconds between two looks for the end of workers that hold jobs; a worker heard within as many is not asked about.
So a job of one that died is given again within twice that. A question takes some 0.1 ms of the service and its hub."""
_TURN_MESSAGES: Final = 8_192
"""Messages of one turn, about. They share one sync, and wait for each other."""
_PART_JOBS: Final = 256
"""Jobs in one message to a worker. More would save nothing."""
_PART_BYTES: Final = 65_536
"""Bytes of jobs after which one more message begins."""
_LONGEST_TURN: Final = 1.0
"""Longest time that a turn counts, in seconds. While this process is stopped, workers are not silent by fault."""
_JOB_EXTRA: Final = 48
"""Most bytes that MessagePack and the numbers add to a job."""
_DIGITS: Final = 20
"""Most digits of the number of a job."""
_LISTED: Final = 512
"""Queues in one answer that lists them: as many as fit a packet, with the longest names."""

_LOOKS: Final = 16
"""Workers about which the hub is asked in one look. Those with the newest heartbeats are left for later."""
REFUSALS_A_TURN: Final = 64
"""Workers that get a refusal in one turn. They announce themselves again."""


class QueueService:
    """The queue ``name``, or with ``*`` at its end all queues that begin so. Blocks the thread that runs it.

    :param patterns: messages under these are jobs of the queue; none with ``*``.
    :param store: keeps the jobs; without one they are lost when this process ends.
    :param trusted: users whose processes may work, besides this one and root.
    :param users: users whose jobs are taken, besides those; ``None``: everybody's.

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
        trusted: Iterable[int] = (),
        users: Iterable[int] | None = (),
    ) -> None:
        self.jobs = jobs
        #: Jobs, ever: stored, turned away, and acknowledged by a worker.
        self.accepted = self.refused = self.done = 0
        self._store = store
        #: Set by :meth:`stop`.
        self._stopping = False
        #: When the last turn was, by the monotonic clock.
        self._at = monotonic()
        #: The clock of workers. It stands still while this process is stopped, so that none seems silent then.
        self._now = 0.0
        self._refusals = 0  # in this turn
        self._served = Served()  # requests that it has had
        self._states: dict[bytes, QueueState] = {}  # of queues that were asked about in this turn
        self._connected = self._looked = 0.0  # when this connection began, and ends were looked for, on that clock
        self._gone: list[tuple[KnownWorker, float]] = []  # workers whose connection has ended, and when they were heard
        self._out: list[tuple[bytes, bytes]] = []
        #: Its own client, for no other use.
        self.client = client = Client(
            address,
            timeout=5.0,
            reconnect=True,
            senders=True,
            echo=False,
            hard="block",
            on_reconnect=lambda _: self._begin_again(),
        )
        try:
            self._separator = separator = jobs.separator = client.hub.separator
            self._namespace = Namespace(separator)
            self._patterns = tuple(patterns)
            self._name = name
            self._names = self._check(name)
            self._word = os.urandom(8).hex().encode()  # the end of secret keys under which workers acknowledge
            self._keys = {
                queue_key(each, separator, word): word for each in self._names for word in (b"work", b"submit")
            }
            self._services = services_key(separator)
            self.access = QueueAccess(client, separator, trusted, users)
            #: Id of this service: of two, the older one stays.
            self._me = Presence(time_ns(), os.urandom(8), [*self._names])
            if store is not None:
                jobs.load(store.load(), store.load_submits())
            client.subscribe(*map(self._address, self._names), self._services, *self._keys)
            self._jobs_in = client.subscribe(*self._patterns) if self._patterns else None  # published jobs
            client.sync("tree")
            self._say_here()
        except BaseException:
            client.close()
            raise

    def _check(self, name: bytes) -> tuple[bytes, ...]:
        """The names that this service has: a ``*`` at the end of one stands for anything."""
        separator = self._separator
        is_single = not name.endswith(b"*")
        check_name(name if is_single else name[:-1] or b"all", separator)
        if self._patterns and not is_single:
            raise UsageError("what is published is for one queue: a name with * takes no patterns")
        if any(map(self._namespace.uses_reserved, self._patterns)):
            raise UsageError("a queue takes no secrets")
        return tuple(dict.fromkeys((name, dead_name(name, separator)))) if is_single else (name,)

    def _address(self, name: bytes) -> bytes:
        """The secret key for workers of this queue to acknowledge. It changes with the credentials of this client."""
        return self._separator.join((self.client.credentials, queue_key(name, self._separator, self._word)))

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
                self._turn(self._pause())
            client.timeout = 1.0
            if self._jobs_in is not None:
                with suppress(TimeoutError, DisconnectedError):  # a hub that is gone sends no more
                    self._jobs_in.unsubscribe()
                    client.sync()
            self._turn(0)
            if self._store is not None:
                self._store.sync(inf)

    def _pause(self) -> float:
        """Seconds until the next turn, if nothing comes."""
        until = self.jobs.next_time()
        if self._store is not None and (sync := self._store.next_sync()) is not None:
            until = min(until, sync)
        if self._gone:
            return 0.0
        tick = _LOOK if any(worker.held for worker in self.jobs.workers.values()) else _TICK
        return max(0.0, min(tick, until - monotonic()))

    def _turn(self, timeout: float) -> None:
        # 1. All received messages, and the time.
        messages: list[Message] = []
        with suppress(TimeoutError):
            messages += self.client.receive_many(timeout=timeout)
            while len(messages) < _TURN_MESSAGES and (more := self.client.receive_many(timeout=0)):
                messages += more
        at = monotonic()
        self._now += min(at - self._at, _LONGEST_TURN)
        self._at = at
        self._refusals = 0
        self._states.clear()

        # 2. Apply the rules.
        self._take_in(messages)
        if len(messages) < _TURN_MESSAGES:  # no message of a worker is still unread
            self._let_go()
            self.jobs.expire(self._now)
        turn = self.jobs.turn(self._now, at)

        # 3. Store the changes, and only then answer.
        if self._store is not None:
            self._store.commit(turn)
            self._store.sync(at)
        self._send_jobs(turn.given)
        if self._now - self._looked >= _LOOK:
            self._looked = self._now
            self._look_for_ends()

    def _take_in(self, messages: list[Message]) -> None:
        published: list[Message] = []
        ending = self._separator + self._word
        for message in messages:
            if message.key.endswith(ending) and self._namespace.uses_reserved(message.key):
                self._acknowledged(message)
            elif message.key == self._services:
                self._met_or_asked(message)
            elif (about := self._about(message.key)) is None:
                published.append(message)
            elif about[1] == b"work":
                self._announced(message, about[0])
            else:
                self._submitted(message, about[0])

        for sender, run in groupby(published, attrgetter("sender")):
            self._published(sender, [(message.key, message.payload) for message in run])

    def _about(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the name of the queue and ``work`` or ``submit``, if the key has this form."""
        word = self._keys.get(key)
        if word is None:
            word = next((self._keys[each] for each in self._keys if matches(each, key, self._separator)), None)
        if word is None:
            return None
        name = key.split(self._separator)[1]
        return None if b"*" in name or not 0 < len(name) <= LONGEST_NAME else (name, word)

    # -- jobs ---------------------------------------------------------------------------------------

    def _published(self, sender: bytes | None, pairs: list[tuple[bytes, bytes]]) -> None:
        """Take in what a client published: all of it, or as much as there is room for."""
        if self._accept(self._name, Submission(pairs), sender) is not None:
            for pair in pairs:
                if self._accept(self._name, Submission([pair]), sender) is not None:
                    if not self.refused:
                        logger.warning("%s: the queue refuses jobs from now on", self.client.address)
                    self.refused += 1

    def _accept(self, name: bytes, word: Submission, sender: bytes | None) -> str | None:
        """Take all of these jobs in. Returns the reason if they are refused."""
        # 1. Whether its user may put jobs in.
        if (why := self.access.why_no_job(name, sender)) is not None:
            return why

        # 2. A repeated submit gets the same answer as the first time.
        owner = self.access.stranger(sender)
        digest = Submits.digest(name, owner, word.id) if word.id else None
        if digest in self.jobs.submits:
            return None

        # 3. Whether there is room.
        if any(len(key) + len(payload) > JOB_BYTES for key, payload in word.jobs):
            return "a job is too large"
        if not self.jobs.accept(
            *(name, word.jobs, owner, self._at),
            sender=sender,
            delay=word.delay,
            expires=word.expires,
            priority=word.priority,
        ):
            return FULL
        self.accepted += len(word.jobs)
        if digest is not None:
            self.jobs.submits.add(digest, is_trusted=owner is None)
        return None

    def _submitted(self, message: Message, name: bytes) -> None:
        """Take in jobs whose sender waits for acceptance. The answer is sent after the turn is stored."""
        question = self._question(message)
        if question is None:
            return
        word = decode(Submission, question.payload)
        if word is None or not all(map(self._is_plain, {key for key, _ in word.jobs})):
            why: str | None = "the queue takes no jobs of such keys"
        else:
            why = self._accept(name, word, message.sender)
        self._answer(question, b"" if why is None else why.encode(), is_refused=why is not None)

    def _question(self, message: Message) -> Request | None:
        """The request in a message; ``None`` if it is none, or was had before: after an outage it may come again."""
        question = parse_question(message, self._at, self._namespace)
        user = self.access.stranger(message.sender)
        is_new = question is not None and self._served.is_new(user, message.sender, question.number)
        return question if is_new else None

    def _is_plain(self, key: bytes) -> bool:
        """Return whether a key could have been published under, and is no secret."""
        return b"\0" not in key and not self._namespace.uses_reserved(key)

    def _answer(self, question: Request, text: bytes, *, is_refused: bool = False) -> None:
        """Answer at the end of this turn."""
        kind = FAILED if is_refused else REPLY
        self._out.append((question.reply_to, encode_answer(kind, question.number, text)))

    # -- workers ------------------------------------------------------------------------------------

    def _announced(self, message: Message, name: bytes) -> None:
        # 1. Refuse workers of untrusted users. Any user may ask for the state of the queue.
        sender = message.sender
        user = self.access.stranger(sender)
        if (question := self._question(message)) is not None:
            self._asked(question, name, user)
            return
        word = decode(Announcement, message.payload)
        if word is None or not is_address(word.key, sender, name, self._namespace):
            return
        if user is not None:
            self._refuse(word, name, user)
            return

        # 2. A worker.
        worker = self.jobs.announce(name, word.key, sender, os.urandom(16), word.room, word.held, self._now)
        if worker is not None:
            self._out.append((worker.key, encode((self._address(name), worker.token, []))))

    def _refuse(self, word: Announcement, name: bytes, user: int) -> None:
        """Refuse a worker of an untrusted user, and log each user once."""
        self.access.note_worker(name, user)
        if self._refusals < REFUSALS_A_TURN:
            self._refusals += 1
            why = f"the service, process {printable(self.client.credentials)}, does not trust user {user}"
            self._out.append((word.key, encode((self._address(name), f"{why}: start it with --trusted {user}"))))

    def _acknowledged(self, message: Message) -> None:
        word = decode(Acknowledgement, message.payload)
        worker = self.jobs.workers.get(word.key) if word is not None else None
        if word is None or worker is None or (worker.token, worker.sender) != (word.token, message.sender):
            return
        self.done += self.jobs.finish(worker, word.done, word.failed, self._now, word.returned, word.rejected)
        if word.leaving:
            self.jobs.leave(worker)

    def _look_for_ends(self) -> None:
        """Ask the hub about workers that hold jobs: a key without a receiver has no worker any more.

        That is so for clients of the same hub that sent an announcement on this connection. Silence shows the end of
        others.
        """
        here = self._namespace.prefix_of(self.client.credentials)
        heard = [worker for worker in self.jobs.workers.values() if worker.held and worker.seen >= self._connected]
        asked = [each for each in heard if each.sender is not None and self._namespace.prefix_of(each.sender) == here]
        asked.sort(key=attrgetter("seen"))
        with suppress(TimeoutError, DisconnectedError):
            for worker in asked[:_LOOKS]:
                if self._now - worker.seen < _LOOK or (answer := self.client.hub.is_wanted(worker.key)) is None:
                    break
                if not answer:
                    self._gone.append((worker, worker.seen))

    def _let_go(self) -> None:
        """Give the jobs of workers that have ended to others. All their earlier messages have been read by now."""
        for worker, seen in self._gone:
            # A new hub may have been asked, and before the worker had reached it.
            is_known = self.jobs.workers.get(worker.key) is worker and worker.seen == seen
            if is_known and seen >= self._connected:
                self.jobs.leave(worker)
        self._gone.clear()

    # -- questions, and other services --------------------------------------------------------------

    def _asked(self, question: Request, name: bytes, user: int | None) -> None:
        """Answer for a queue or its jobs, empty it, or put its dead jobs back. An untrusted user sees only itself."""
        # 1. Requests of trusted users only.
        word, _, number = question.payload.partition(b" ")
        if word in (PURGE, PEEK, RETRY) and user is not None:
            self._answer(question, f"user {user} {NOT_TRUSTED} this queue".encode(), is_refused=True)
            return
        if word == PURGE and (not number or (number.isdigit() and len(number) <= _DIGITS)):
            self._answer(question, encode(self.jobs.purge(name, int(number) if number else None)))
            return
        if question.payload == RETRY:
            self._answer(question, encode(self.jobs.retry(name)))
            return
        if question.payload == PEEK:
            jobs = self.jobs.queues[name].jobs.values() if name in self.jobs.queues else ()
            part = next(in_parts(jobs, _bytes_of, PEEKED, PEEKED_BYTES), [])
            self._answer(question, encode(Peeked([*map(_public_form, part)])))
            return

        # 2. Requests of any user.
        state = replace(self._state(name), refused=self.access.refused_for(user))
        self._answer(question, encode(state))

    def _state(self, name: bytes) -> QueueState:
        """State of a queue in this turn, computed once for all requests."""
        state = self._states.get(name)
        if state is None:
            queue = self.jobs.queues.get(name)
            state = queue.state(self._at, self._me.word.hex().encode()) if queue is not None else QueueState()
            if queue is not None:
                self._states[name] = state
        return state

    def _met_or_asked(self, message: Message) -> None:
        """Take an announcement of another service, or a request for the list of queues."""
        question, user = self._question(message), self.access.stranger(message.sender)
        if question is not None and user is not None:
            self._answer(question, f"user {user} {NOT_TRUSTED} these queues".encode(), is_refused=True)
        elif question is not None:
            names = sorted(name for name in self.jobs.queues if name > question.payload)
            self._answer(
                question, encode((len(names) > _LISTED, [(name, self._state(name)) for name in names[:_LISTED]]))
            )
        elif user is None and (other := decode(Presence, message.payload)) is not None:
            self._met(other, message.sender)

    def _begin_again(self) -> None:
        """Handle a new connection: workers may be late to have one."""
        self._connected = self._now + _LONGEST_TURN
        self._say_here()

    def _say_here(self) -> None:
        """Announce this service to others, at the end of the next turn."""
        self._out.append((self._services, encode(self._me)))

    def _met(self, other: Presence, sender: bytes | None) -> None:
        """Handle the announcement of another service. Of two with a name in common the younger ends."""
        both = next((mine for mine in self._names for its in other.names if overlap(mine, its, self._separator)), None)
        mine, its = (self._me.since, self._me.word), (other.since, other.word)
        if both is not None and its < mine:
            who = f", process {printable(sender)}," if sender is not None else ""
            raise StateError(f"another service{who} has the queue {printable(both)} already")
        if both is not None and its > mine and not self._stopping:
            self._say_here()

    # -- sending ------------------------------------------------------------------------------------

    def _send_jobs(self, given: dict[KnownWorker, list[Entry]]) -> None:
        out, self._out = self._out, []
        for worker, jobs in given.items():
            for part in in_parts(jobs, _bytes_of, _PART_JOBS, _PART_BYTES):
                out.append(
                    (worker.key, encode((self._address(worker.queue.name), worker.token, [*map(_public_form, part)])))
                )
        if out:
            # Messages lost with an outage of the hub are requested or given again: workers name the jobs they hold.
            with suppress(TimeoutError, DisconnectedError):
                self.client.publish_many(out)


def _public_form(job: Entry) -> Job:
    """Convert a job to its public form."""
    return Job(job.number, job.attempts, job.key, job.payload, job.sender)


def _bytes_of(job: Entry) -> int:
    return len(job.key) + len(job.payload) + len(job.sender or b"") + _JOB_EXTRA
