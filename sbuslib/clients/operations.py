"""The verbs of a client, as coroutines: :mod:`sbuslib.aio` returns them, the other clients run them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from threading import Lock
from time import monotonic
from typing import TypeAlias

from ..errors import StateError, UsageError
from ..kernel.users import resolve_users
from ..secrets import Namespace, stranger
from ..wire import control
from ..wire.packets import Key, Message, as_key
from .basic_operations import BasicOperations, mailbox_of
from .connection import ClientConnection
from .handles import AioService, AioSubscription, starting
from .job_queue import AioJobQueue
from .present import AioPresence, AioPresent, be_present, watch_presences
from .recipes.last import fetch, subscribe
from .recipes.mailbox import GuardedMailbox, Mailbox
from .recipes.request import FindRequester, Reply, Request, Requester, request, request_many
from .recipes.server import Server

Handler: TypeAlias = Callable[[Message], object]
"""A function called with each message; with asyncio it may be a coroutine function."""


class Operations(BasicOperations):
    """The verbs of one client."""

    def __init__(self, connection: ClientConnection, descriptor_folder: str | None = None) -> None:
        super().__init__(connection, descriptor_folder)
        self._requesters: dict[bool, Requester] = {}  # requests in flight, by whether replies are secret

    # -- subscribing --------------------------------------------------------------------------------

    @starting
    async def subscribe(
        self,
        *patterns: Key,
        on_message: Handler | None = None,
        last: bool = False,
        users: Iterable[int | str] | None = None,
    ) -> AioSubscription:
        """Subscribe, and return once the hub has it in force: later messages all come.

        Receive from the object that this returns, which has a queue of its own from its first use on. Messages of a
        subscription that is never read go to :meth:`receive` of the client. With ``on_message``, that is called with
        each message in the background, one after another; an error of it is logged, with the key. With ``last``, the
        newest messages that a service keeps come first, then a :class:`~sbuslib.CaughtUp` for each pattern.

        With ``users``, names or ids, only their messages come, and those of our own user and of root. Others are
        dropped, and counted in ``lost`` of the subscription, which then has its queue at once. The kernel proves the
        user of each message; a message that comes over a hub of another user counts as that user's. Raises
        :exc:`~sbuslib.errors.StateError` where the hub names no senders, as the C daemon.

        Raises :exc:`~sbuslib.errors.RefusedError` for patterns that this client may not subscribe to; its other
        subscriptions stay; :exc:`~sbuslib.errors.KeyFormatError`, :exc:`TimeoutError`,
        :exc:`~sbuslib.errors.DisconnectedError`, and with ``last`` :exc:`~sbuslib.errors.NoServerError` where no
        service keeps them.
        """
        if on_message is not None:
            self.check_function(on_message, "message")
        mailbox, deadline = mailbox_of(patterns), self.limit()
        if users is not None:
            if last:
                raise UsageError("last values have no senders: users= cannot tell whose they are")
            mailbox = await self._guard(mailbox, frozenset(resolve_users("users", users)), deadline)
        subscription = AioSubscription(self, mailbox)
        if last:
            await self.connection.reach(deadline)
            await subscribe(self, mailbox, self._ask_for_last, self._session.separator, deadline)
        elif on_message is not None or users is not None:
            await subscription.open(deadline)
        else:
            self._session.named.add(mailbox)  # its patterns are kept true from here on
            await self._subscribe(mailbox.patterns, until=deadline)
            return subscription
        subscription.start(on_message)
        return subscription

    async def _guard(self, mailbox: Mailbox, users: frozenset[int], deadline: float | None) -> Mailbox:
        """Make a mailbox of these patterns for the messages of these users, of our own and of root."""
        self.ask_for_senders()
        client, session = self.connection, self._session
        await client.reach(deadline)
        client.require(control.SENDERS_ON, "this hub names no senders, so messages of users= cannot be told apart")

        def admits(message: Message) -> bool:
            sender = message.sender  # None: from a later hub, which names no senders
            return sender is not None and stranger(sender, session.credentials, session.separator, users) is None

        return GuardedMailbox(admits, *mailbox.patterns, lock=Lock())

    # -- requests and replies -----------------------------------------------------------------------

    async def request(
        self, key: Key, payload: bytes = b"", *, timeout: float | None = 10.0, secret: bool = True
    ) -> bytes:
        """Send a request to the servers of ``key``, and wait for the first reply.

        The reply comes under a secret key, which no other process can read. The C daemon has no secret keys: there
        :exc:`~sbuslib.errors.StateError` is raised, unless ``secret`` is false. Raises
        :exc:`~sbuslib.errors.NoServerError` when nobody serves the key, :exc:`TimeoutError` without a reply in time,
        :exc:`~sbuslib.errors.ReplyError` with the server's reason when it failed, and as ``publish``.
        """
        return await request(self, self._finder(secret), as_key(key), payload, timeout)

    async def request_many(
        self, key: Key, payload: bytes = b"", *, wait: float = 1.0, most: int | None = None, secret: bool = True
    ) -> list[Reply]:
        """Send a request to all servers of ``key``. Returns the replies that come within ``wait`` seconds, or the first
        ``most``.

        The ``payload`` of a reply raises :exc:`~sbuslib.errors.ReplyError` if its server failed.
        """
        return await request_many(self, self._finder(secret), as_key(key), payload, wait, most)

    def _finder(self, secret: bool) -> FindRequester:
        return lambda until: self._requester(secret, until)

    async def _requester(self, secret: bool, until: float | None) -> Requester:
        """Return the requests of this client whose replies come under a secret key, or under one that others could
        read.

        Raises :exc:`~sbuslib.errors.StateError` where a hub has no secret keys.
        """
        session = self._session
        if secret and session.features is None:
            await self.connection.reach(self.limit(until))
            if session.features is None:
                raise StateError(
                    f"{self.connection.address}: this daemon lets nobody subscribe to secret keys, so others could "
                    "read the answers: say secret=False where that is no matter"
                )

        requester = self._requesters.get(secret)
        if requester is None or requester.was_refused:
            self.connection.check_caller()
            # A client that has not read for long does not know who it is now: the hub would refuse its reply key.
            if secret:
                await self.connection.ask(lambda: session.ask(control.WHOAMI), self.limit(until))
            who = session.credentials if secret else Namespace(session.separator).anybody
            reply_to = session.separator.join((who, b"reply", os.urandom(16).hex().encode()))
            if self._requesters.get(secret) is requester:
                self._requesters[secret] = Requester(reply_to, Lock)
            requester = self._requesters[secret]
        return requester

    @starting
    async def serve(
        self, pattern: Key, function: Callable[[Request], bytes | Awaitable[bytes]], *, workers: int | None = None
    ) -> AioService:
        """Answer requests under keys that match ``pattern``, in the background, from now on.

        ``function`` is given each :class:`~sbuslib.Request` and returns the reply. If it raises, the error is logged,
        and its type is sent to the caller; the text too, if it is an :exc:`~sbuslib.errors.ReplyError`. So many
        ``workers`` call it at a time: by default 16 with asyncio, else one. ``stop`` of the returned object, and the
        end of its ``with``, take no more requests, and wait until those that were taken are answered. Raises as
        ``subscribe``.
        """
        self.check_function(function, "question")
        client, mailbox = self.connection, Mailbox(as_key(pattern, "pattern"))
        count = client.runtime.WORKERS if workers is None else workers

        def user_of(sender: bytes | None) -> int | None:
            return None if sender is None else stranger(sender, client.session.credentials, self._session.separator)

        server = Server(self, mailbox, function, count, Namespace(self._session.separator), monotonic, user_of)
        service = AioService(self, mailbox, server.runners)
        await service.start()
        return service

    # -- last values --------------------------------------------------------------------------------

    async def last(self, *patterns: Key) -> list[Message]:
        """Return the newest message of each matching key, as a service keeps them (``sbus retain``), in order of keys.

        Raises :exc:`~sbuslib.errors.NoServerError` where no service keeps them, :exc:`~sbuslib.errors.ReplyError`,
        :exc:`~sbuslib.errors.PeerError` and :exc:`TimeoutError`.
        """
        keys = [as_key(pattern, "pattern") for pattern in patterns]
        until = self.limit()
        await self.connection.reach(until)
        kept = await fetch(self._ask_for_last, keys, self._session.separator, until)
        return [Message(key, payload) for key, payload in kept.items()]

    async def _ask_for_last(self, key: bytes, payload: bytes, until: float | None) -> bytes:
        """Send a request to a service of last values. Where a hub has no secret keys, its reply is not secret."""
        await self.connection.reach(until)
        find = self._finder(self._session.features is not None)
        return await request(self, find, key, payload, self.remaining(until))

    # -- presence -----------------------------------------------------------------------------------

    @starting
    async def presence(self, key: Key, *, info: bytes = b"") -> AioPresence:
        """Be present under ``key``, for others to see, until ``leave`` or the end of ``with``, or of the connection.

        The hub reports to others when the process ends, for any cause. ``info`` is shown to them besides the
        credentials: at most 1,024 bytes. Raises :exc:`~sbuslib.errors.RefusedError` for a key to which this client may
        not publish, :exc:`~sbuslib.errors.KeyFormatError`, :exc:`~sbuslib.errors.StateError` for a hub that knows no
        presence, :exc:`TimeoutError` and :exc:`~sbuslib.errors.DisconnectedError`.
        """
        return await be_present(self, key, info)

    @starting
    async def present(self, pattern: Key) -> AioPresent:
        """Watch the presences under keys that match ``pattern``, in the whole tree: ``members``, then events.

        Raises as ``subscribe``, and :exc:`~sbuslib.errors.StateError` for a hub that knows no presence.
        """
        return await watch_presences(self, pattern)

    def queue(self, name: Key) -> AioJobQueue:
        """Return the shared queue of this name, which ``sbus queue`` keeps: ``submit`` jobs, or ``work`` on them."""
        return AioJobQueue(self, name, self._finder(secret=True))

    # -- the end ------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Stop all services and watches, finish the work that was taken, and close the client."""
        self.connection.check_caller()
        for stop in list(self.connection.begun.values()):
            await stop()
        self.connection.close()
