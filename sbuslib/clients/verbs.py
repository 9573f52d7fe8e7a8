"""The verbs of a client, as coroutines: :mod:`sbuslib.aio` hands them out, the other clients carry them out."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutinefunction
from time import monotonic
from typing import Any, TypeAlias

from ..doors.copying import Source
from ..doors.transfers import Sent
from ..errors import StateError, UsageError
from ..recipes.last import fetch, subscribe
from ..recipes.mailbox import Mailbox
from ..recipes.queue import Job, Work, submit
from ..recipes.request import Answer, Asking, Question, request, request_many
from ..recipes.server import Server
from ..secrets import Namespace, stranger
from ..statistics import ClientStatistics, HubStatistics, LinkStatistics, decode_statistics
from ..wire import control
from ..wire.modes import Hard, Order, Soft, mode_keys
from ..wire.packets import Key, Message, as_key
from .basics import Basics
from .channel import Channel
from .handed import MOST_BYTES, AioDescriptors, AioFiles, AioFrames
from .handing import publish_descriptor, publish_frame, send_file
from .objects import AioService, AioSubscription, AioWorker
from .questions import all_clients, all_links, reloaded

__all__ = ["Handler", "Verbs"]

Handler: TypeAlias = Callable[[Message], object]
"""Is called with each message; with asyncio it may be a coroutine function."""


class Verbs(Basics):
    """The verbs of one client."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self._askings: dict[bool, Asking] = {}  # questions in flight, by whether answers are secret

    # -- subscribing --------------------------------------------------------------------------------

    async def subscribe(self, *patterns: Key, on_message: Handler | None = None, last: bool = False) -> AioSubscription:
        """Subscribe, and return once the hub has it in force: what is published from then on comes.

        Receive from the object that this returns, which has a queue of its own from its first use on; an object that
        is not used leaves its messages to :meth:`receive` of the client. With ``on_message``, that is called with each
        message in the background, one after another; an error of it is logged, with the key. With ``last``, the newest
        messages that a service keeps come first, then a :class:`~sbuslib.CaughtUp` for each pattern.

        Raises :exc:`~sbuslib.errors.RefusedError` for what is not this client's, whose other subscriptions stay;
        :exc:`~sbuslib.errors.KeyFormatError`, :exc:`TimeoutError`, :exc:`~sbuslib.errors.DisconnectedError`, and
        with ``last`` :exc:`~sbuslib.errors.NoServerError` without such a service.
        """
        if on_message is not None:
            self._check_function(on_message, "message")
        mailbox = _mailbox(patterns)
        subscription = AioSubscription(self, mailbox)
        if last:
            await subscribe(self, mailbox, self._ask_for_last, self.channel.separator, lambda: self.channel.epoch)
        elif on_message is not None:
            await subscription.open()
        else:
            await self._subscribe(mailbox.patterns)
            self._session.named.add(mailbox)
            return subscription
        subscription.start(on_message)
        return subscription

    async def flood_control(
        self, *, soft: Soft | None = None, hard: Hard | None = None, order: Order | None = None
    ) -> None:
        """Choose what the hub does with messages that this client does not read in time.

        ``soft`` while its queue has room: ``"queue"`` (the default), ``"discard"``, ``"block"`` or ``"error"``;
        ``hard`` when it is full: ``"discard"`` (the default), ``"block"`` or ``"error"``; ``order`` of what waits:
        ``"queue"`` (the default), ``"stack"`` or ``"random"``. ``None`` leaves a choice as it is. See
        ``docs/flood-control.md``.
        Raises :exc:`~sbuslib.errors.UsageError`.
        """
        await self._choose(*mode_keys(soft, hard, order))

    # -- questions to the hub -----------------------------------------------------------------------

    async def statistics(self) -> HubStatistics:
        """The hub's statistics.

        Raises :exc:`~sbuslib.errors.StateError` when the hub has none or does not trust this user with them,
        :exc:`TimeoutError` and :exc:`~sbuslib.errors.DisconnectedError`.
        """
        return decode_statistics(await self.answer_to(control.STATISTICS, "give statistics"), self.channel.address)

    async def client_statistics(self) -> list[ClientStatistics]:
        """What the hub tells of each of its clients, however many there are. Raises as :meth:`statistics`."""
        return await all_clients(self.answer_to, self.channel.address)

    async def link_statistics(self, key: Key | None = None, *, most: int | None = None) -> list[LinkStatistics]:
        """What the hub tells of each of its links, or of the first ``most``, and which of them carry ``key``.

        Raises as :meth:`statistics`, and :exc:`~sbuslib.errors.KeyFormatError`.
        """
        if key is not None:
            key = as_key(key)
            self._session.check_publishable(key)
        return await all_links(self.answer_to, self.channel.address, key, most)

    async def reload(self) -> str:
        """Have the hub read its configuration file again, and wait until it has taken it up. Returns what it says.

        Raises :exc:`~sbuslib.errors.StateError` if the hub does not trust us, has no such file, or finds an error.
        """
        answer = await self.answer_to(control.RELOAD, "read its configuration again")
        return reloaded(answer, self.channel.address)

    # -- questions and answers ----------------------------------------------------------------------

    async def request(
        self, key: Key, payload: bytes = b"", *, timeout: float | None = 10.0, secret: bool = True
    ) -> bytes:
        """Ask who serves ``key``, and wait for the answer, of the first that takes the question.

        The answer comes under a secret key, which nobody else can read. The C daemon has none: there
        :exc:`~sbuslib.errors.StateError` is raised, unless ``secret`` is false. Raises
        :exc:`~sbuslib.errors.NoServerError` when nobody serves the key, :exc:`TimeoutError` without an answer in time,
        :exc:`~sbuslib.errors.AnswerError` with what the server says that went wrong, and as ``publish``.
        """
        return await request(self, self._asking(secret), as_key(key), payload, timeout)

    async def request_many(
        self, key: Key, payload: bytes = b"", *, wait: float = 1.0, most: int | None = None, secret: bool = True
    ) -> list[Answer]:
        """Ask all who serve ``key``. The answers that come within ``wait`` seconds, or the first ``most``.

        The ``payload`` of an answer raises :exc:`~sbuslib.errors.AnswerError` where a server says that it failed.
        """
        return await request_many(self, self._asking(secret), as_key(key), payload, wait, most)

    def _asking(self, secret: bool) -> Asking:
        """The questions of this client whose answers come under a secret key, or under one that others could read.

        Raises :exc:`~sbuslib.errors.StateError` where a hub has no secret keys.
        """
        if (asking := self._askings.get(secret)) is None:
            session = self._session
            if secret and session.features is None:
                raise StateError(
                    f"{self.channel.address}: this daemon lets nobody subscribe to secret keys, so others could read "
                    "the answers: say secret=False where that is no matter"
                )
            who = session.credentials if secret else session.separator.join((b"!", b"cred", b"", b"", b""))
            reply_to = session.separator.join((who, b"reply", os.urandom(16).hex().encode()))
            asking = self._askings.setdefault(secret, Asking(reply_to, monotonic))
        return asking

    async def serve(
        self, pattern: Key, function: Callable[[Question], bytes | Awaitable[bytes]], *, workers: int | None = None
    ) -> AioService:
        """Answer questions under keys that match ``pattern``, in the background, from now on.

        ``function`` is given each :class:`~sbuslib.Question` and returns the answer. If it raises, that is logged, and
        whoever asked is told the type of the error; the text too, if it is an :exc:`~sbuslib.errors.AnswerError`. So
        many ``workers`` call it at a time: 16 with asyncio unless told, else one. ``stop`` of what
        this returns, and the end of its ``with``, take no more questions, and wait until those that were taken are
        answered. Raises as ``subscribe``.
        """
        self._check_function(function, "question")
        client, mailbox = self.channel, Mailbox(as_key(pattern, "pattern"))
        count = client._WORKERS if workers is None else workers

        def user_of(sender: bytes | None) -> int | None:
            return None if sender is None else stranger(sender, client.credentials, client.separator)

        server = Server(self, mailbox, function, count, Namespace(client.separator), monotonic, user_of)
        service = AioService(self, mailbox, server.runners)
        await service.start()
        return service

    # -- last values, large messages, queues --------------------------------------------------------

    async def last(self, *patterns: Key) -> list[Message]:
        """The newest message of each key that matches, as a service keeps them (``sbus retain``), in order of keys.

        Raises :exc:`~sbuslib.errors.NoServerError` without such a service, :exc:`~sbuslib.errors.AnswerError`,
        :exc:`~sbuslib.errors.PeerError` and :exc:`TimeoutError`.
        """
        keys = [as_key(pattern, "pattern") for pattern in patterns]
        kept = await fetch(self._ask_for_last, keys, self.channel.separator)
        return [Message(key, payload) for key, payload in kept.items()]

    async def _ask_for_last(self, key: bytes, payload: bytes) -> bytes:
        """Ask a service that keeps last values. What it tells anybody may know, where a hub has no secret keys."""
        asking = self._asking(self._session.features is not None)
        return await request(self, asking, key, payload, self.channel.timeout)

    # -- doors --------------------------------------------------------------------------------------

    async def publish_frame(self, key: Key, frame: Any, *, meta: bytes = b"") -> None:
        """Publish a frame of any size: ``bytes``, an array of NumPy, a buffer of Arrow.

        What is longer than 96 KiB is copied once, into memory that receivers map. That is handed out for
        ``ClientLimits.offered_seconds``, and for a second at most once this client is closed or the program ends; who
        asks for it later has lost it.

        :param meta: what receivers have to know of it, such as a shape: up to 4,096 bytes.

        Raises :exc:`~sbuslib.errors.UsageError` for what is no buffer in one piece,
        :exc:`~sbuslib.errors.PayloadError` for more than ``ClientLimits.offered_bytes``, :exc:`OSError`, and as
        :meth:`publish`.
        """
        await publish_frame(self, as_key(key), frame, meta)

    async def subscribe_frames(self, *patterns: Key, most: int = MOST_BYTES) -> AioFrames:
        """Subscribe to frames. ``with client.subscribe_frames("camera/") as frames: frames.receive()``.

        A :class:`~sbuslib.Frame` is a read-only buffer. Any other message comes as the frame that is its payload.
        Each frame is taken from the door of its sender's user alone, so messages carry their senders from then on.
        Where the hub cannot tell senders, only frames of our own user are taken.

        :param most: bytes of the largest frame that is taken.

        Raises as :meth:`subscribe`.
        """
        await self.tell_senders()
        frames = AioFrames(self, _mailbox(patterns), most)
        await frames.open()
        return frames

    async def publish_descriptor(self, key: Key, descriptor: Any, *, meta: bytes = b"") -> None:
        """Publish a descriptor, or what has one: an open file, a pipe, a socket. Receivers get copies of it.

        It stays the caller's, who may close it. Raises as :meth:`publish_frame`.
        """
        await publish_descriptor(self, as_key(key), descriptor, meta)

    async def subscribe_descriptors(self, *patterns: Key, users: Iterable[int] = ()) -> AioDescriptors:
        """Subscribe to descriptors, each of which comes as a :class:`~sbuslib.Descriptor`.

        :param users: ids of users whose descriptors are taken besides those of our own. To read from a descriptor, or
            to close it, may take as long as its sender likes.

        Raises as :meth:`subscribe`.
        """
        await self.tell_senders()
        descriptors = AioDescriptors(self, _mailbox(patterns), {os.geteuid(), *users})
        await descriptors.open()
        return descriptors

    async def send_large(
        self, key: Key, source: Source, *, name: str | None = None, receivers: int = 1, timeout: float = 30.0
    ) -> Sent:
        """Hand out a file, or bytes, of any size under ``key``; wait until so many receivers have copied it.

        :param source: a path, an open file, or bytes.
        :param name: what receivers may call the file; without it, the name of ``source``.
        :param receivers: how many to wait for. Others may copy it meanwhile.
        :param timeout: seconds in which they have to come, and for which a receiver may say nothing.

        Raises :exc:`TimeoutError` when they do not come, :exc:`~sbuslib.errors.PeerError` when all that came refused,
        :exc:`OSError` when it cannot be opened, and :exc:`~sbuslib.errors.UsageError`.
        """
        return await send_file(self, as_key(key), source, name, receivers, timeout)

    async def receive_large(
        self,
        *patterns: Key,
        folder: str | os.PathLike[str] | None = None,
        most: int = MOST_BYTES,
        timeout: float = 30.0,
    ) -> AioFiles:
        """Receive what :meth:`send_large` sends: ``with client.receive_large(b"files/*") as files: files.receive()``.

        :param folder: where files appear, each once it is whole; without it, they are open temporary files. None is
            ever replaced, and a name that points elsewhere is not used.
        :param most: bytes of the largest file that is taken.
        :param timeout: seconds for which a copy may stand still.
        """
        await self.tell_senders()
        files = AioFiles(self, _mailbox(patterns), folder, most, timeout)
        await files.open()
        return files

    async def submit(self, name: Key, key: Key, payload: bytes = b"", *, timeout: float | None = 10.0) -> None:
        """Put a job into the queue ``name``, and wait until it is accepted. Raises as :meth:`submit_many`."""
        await self.submit_many(name, [(key, payload)], timeout=timeout)

    async def submit_many(self, name: Key, jobs: Iterable[tuple[Key, bytes]], *, timeout: float | None = 10.0) -> None:
        """Put jobs, pairs of key and payload, into the queue ``name``, and wait until all are accepted.

        ``timeout`` is for each packet full of them. Raises :exc:`~sbuslib.errors.AnswerError` when the queue refuses,
        which it does for a whole packet, and :exc:`~sbuslib.errors.PayloadError`. After :exc:`TimeoutError`,
        :exc:`~sbuslib.errors.NoServerError` and :exc:`~sbuslib.errors.DisconnectedError` jobs may be accepted.
        """
        asking = self._asking(secret=True)
        pairs = ((as_key(key), payload) for key, payload in jobs)
        await submit(self, asking, as_key(name, "name"), pairs, self.channel.separator, timeout)

    async def work(
        self,
        name: Key,
        function: Callable[[Job], object] | None = None,
        *,
        room: int = 8,
        at_once: int = 1,
        trusted: Iterable[int] = (),
    ) -> AioWorker:
        """Work on the jobs of the queue ``name`` from now on, see :mod:`sbuslib.recipes.queue`.

        With ``function``, that is called with each :class:`~sbuslib.Job` in the background: when it returns the job is
        done, when it raises that is logged and the job is given again. Else iterate over what this returns, and call
        ``done(job)`` or ``failed(job)``. ``stop``, and the end of its ``with``, give back what is not
        done.

        :param room: how many jobs the service may give before any is done. :param at_once: how many calls of
            ``function`` run at the same time. :param trusted: ids of users whose service is listened to, besides this
            one and root; only if the hub tells senders, which the client then asks it to.

        Raises :exc:`~sbuslib.errors.UsageError`.
        """
        if function is not None:
            self._check_function(function, "job")
        tag, client = os.urandom(8).hex().encode(), self.channel
        queue = as_key(name, "name")
        work = Work(self, client.credentials, client.separator, tag, queue, room, monotonic, trusted)
        worker = AioWorker(self, work, function, at_once)
        await worker.start()
        return worker

    def _check_function(self, function: Any, what: str) -> None:
        if not callable(function):
            raise UsageError(f"a function is called with each {what}: {function!r} cannot be called")
        if iscoroutinefunction(function) and not self.channel._AWAITS:
            raise UsageError(f"coroutine functions such as {function!r} are for sbuslib.aio.Client")

    # -- the end ------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """End all that serves or watches, finish what was taken, and close the client."""
        self.channel._check_caller()
        for begun in list(self.channel._begun):
            await begun.stop()
        self.channel.close()


def _mailbox(patterns: Iterable[Key]) -> Mailbox:
    return Mailbox(*(as_key(pattern, "pattern") for pattern in patterns))
