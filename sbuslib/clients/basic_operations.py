"""The verbs that all others are built on, and recipes, and what verbs begin: publish, subscribe, receive, sync, wait.

As coroutines, for :class:`sbuslib.clients.recipes.mailbox.ClientPort`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from inspect import iscoroutinefunction
from itertools import repeat, starmap
from socket import MSG_DONTWAIT, MSG_PEEK
from threading import Lock
from typing import Any, Final

from ..errors import DisconnectedError, RefusedError, SbusError, UsageError
from ..kernel.vectors import ONE_PACKET_FLAGS
from ..limits import check_count
from ..wire import control
from ..wire.columns import Columns
from ..wire.packets import Key, Message, as_key
from .background_reader import BackgroundReader
from .batch import Pair, encode_many, in_parts
from .connection import ClientConnection
from .fds.descriptor_client import DescriptorClient
from .fds.descriptor_store import DescriptorStore
from .hub_requests import HubQuestion, PatternRequest, SyncScope
from .leadership import earliest, time_left
from .recipes.mailbox import Mailbox, Posted
from .watching import InterestWatch, Watch

MOST_POSTED: Final = 64
"""Messages that wait for others, to go in one packet."""


class BasicOperations:
    """The basic operations of a client, on which all others are built. ``connection`` is its connection."""

    def __init__(self, connection: ClientConnection, descriptor_folder: str | None = None) -> None:
        self.connection = connection  # its connection
        self.reader = BackgroundReader(connection)  # for presences and watches
        self._descriptor_folder = descriptor_folder  # see DescriptorStore
        self._session = connection.session  # the connection's
        self._posted: list[Pair] = []  # to be sent together
        self._posting = Posted()  # of all of these

    # -- descriptor stores --------------------------------------------------------------------------------------

    @cached_property
    def descriptor_store(self) -> DescriptorStore:
        """Where this client hands out."""
        descriptor_store = DescriptorStore(self._descriptor_folder, self.connection.limits)
        self.connection.close_with(descriptor_store)
        return descriptor_store

    @cached_property
    def descriptor_client(self) -> DescriptorClient:
        """Asks at the descriptor stores of others."""
        runtime = self.connection.runtime
        descriptor_client = DescriptorClient(runtime.wait_readable, runtime.sleep, self._descriptor_folder)
        self.connection.close_with(descriptor_client)
        return descriptor_client

    # -- publishing ---------------------------------------------------------------------------------

    async def publish(self, key: Key, payload: bytes = b"", *, flags: int = 0) -> None:
        """Publish one message; waits while the hub has no room for it. When it returns, the kernel has the message.

        ``flags`` are those of send(2). Raises :exc:`~sbuslib.errors.KeyFormatError`,
        :exc:`~sbuslib.errors.PayloadError`, :exc:`~sbuslib.errors.DisconnectedError`, :exc:`TimeoutError`,
        and :exc:`BlockingIOError` with ``MSG_DONTWAIT``.
        """
        await self._send(self._session.encode(key, payload), flags)

    async def _send(self, packet: bytes, flags: int = 0, until: float | None = None) -> None:
        self.connection.check_caller()
        try:
            self.connection.socket.send(packet, ONE_PACKET_FLAGS | flags)
        except OSError:  # there is no room now, or no connection
            await self.connection.send([packet], flags, until=until)

    async def publish_many(self, messages: Iterable[tuple[Key, bytes]] | Columns) -> int:
        """Publish pairs of key and payload in order, many at once; how many there were.

        Many go in one packet to a hub that takes such, else many with each system call. They are sent whenever there
        are ``ClientLimits.batch_messages``, and at the end. Raises as :meth:`publish`; what came before the pair at
        fault was published. Messages that lie as columns, as a journal has them, are not checked.
        """
        count, limits = 0, self.connection.limits
        if isinstance(messages, Columns):
            for packet, _ in messages.pack(limits.batch_messages, limits.batch_bytes):
                await self.connection.send([packet])
            return len(messages)
        for part in in_parts(messages, limits.batch_messages):
            await self.publish_some(part)
            count += len(part)
        return count

    async def publish_some(self, pairs: list[Pair]) -> None:
        """Publish as many messages as one batch may have. Messages before a wrong pair are published."""
        packets: list[bytes] = []
        try:
            packets.extend(encode_many(self._session, pairs, self.connection.limits.batch_bytes))
        finally:
            await self.connection.send(packets)

    # -- subscribing --------------------------------------------------------------------------------

    async def _subscribe(
        self, patterns: list[bytes], mailbox: Mailbox | None = None, until: float | None = None
    ) -> None:
        """Subscribe, with messages into the inbox or a mailbox."""
        client, session = self.connection, self._session
        request, deadline = PatternRequest(patterns, session.separator, mailbox), client.limit(until)
        try:
            await client.change(lambda: session.subscribe(request), deadline)
            await self.confirm("local", deadline)
        except BaseException as error:
            if request in session.unconfirmed:  # nobody has what would take it back
                client.change_now(lambda: session.unsubscribe(patterns))
                raise
            if not isinstance(error, DisconnectedError):
                raise
        finally:
            session.confirm(request)

        if request.refused is not None:
            text = f"{client.address}: the hub refused the subscription: {request.refused}"
            raise RefusedError(text, request.refused)

    async def unsubscribe(self, patterns: Iterable[bytes], deadline: float | None) -> bool:
        """End one subscription to each pattern. Returns whether there is a hub, to which that was sent."""
        keys = [*patterns]
        return await self.connection.change(lambda: self._session.unsubscribe(keys), deadline)

    # -- receiving ----------------------------------------------------------------------------------

    async def receive(self, *, timeout: float | None = None, flags: int = 0) -> Message:
        """The next message that no subscription has taken for its own queue.

        Of the ``flags`` of recv(2), ``MSG_PEEK`` leaves the message where it is, and ``MSG_DONTWAIT`` raises
        :exc:`BlockingIOError` in place of waiting. Raises :exc:`TimeoutError` after ``timeout`` seconds, and
        :exc:`~sbuslib.errors.DisconnectedError`.
        """
        client, inbox = self.connection, self._session.inbox
        deadline = client.deadline(0 if flags & MSG_DONTWAIT else timeout)
        while True:
            try:
                await client.until(lambda: bool(inbox), deadline, f"no message within {timeout} s")
            except TimeoutError:
                if flags & MSG_DONTWAIT:
                    raise BlockingIOError(errno.EAGAIN, "no message is here") from None
                raise
            with suppress(IndexError):  # another caller has taken it meanwhile
                return inbox[0] if flags & MSG_PEEK else inbox.popleft()

    async def next(self) -> Message | None:
        """The next message; ``None`` when this client was closed instead."""
        try:
            return await self.receive()
        except DisconnectedError:
            if self.connection.is_closed:
                return None
            raise

    async def receive_many(self, *, most: int | None = None, timeout: float | None = None) -> list[Message]:
        """At least one message, and all others that are here, up to ``most``. Raises as :meth:`receive`.

        With ``timeout=0``, all that are here, which may be none.
        """
        check_count(most, "most")
        client, inbox = self.connection, self._session.inbox
        deadline = client.deadline(timeout)
        while True:
            try:
                await client.until(lambda: bool(inbox), deadline, f"no message within {timeout} s")
            except TimeoutError:
                if timeout == 0:
                    return []
                raise
            messages: list[Message] = []
            try:
                with client.leadership.lock:
                    count = len(inbox) if most is None else min(most, len(inbox))
                    # One by one, since another thread may be adding messages; in C, since there may be thousands.
                    messages.extend(starmap(inbox.popleft, repeat((), count)))
                if messages:
                    return messages
            except BaseException:  # of a signal handler
                inbox.extendleft(reversed(messages))
                raise

    # -- questions to the hub -----------------------------------------------------------------------

    async def sync(self, scope: str = "local") -> SyncScope:
        """Wait until everything that this client sent is in force. Returns how far: ``local``, ``tree`` or ``partial``.

        With ``tree``, children of users that are not trusted are not waited for: ``trusted_only`` of the answer is
        true if there are any.

        Raises :exc:`TimeoutError` and :exc:`~sbuslib.errors.DisconnectedError`.
        """
        if scope not in ("local", "tree"):
            raise UsageError(f"a scope is 'local' or 'tree', not {scope!r}")
        return await self.confirm(scope, self.connection.limit())

    async def confirm(self, scope: str, deadline: float | None, *, lasts: bool = True) -> SyncScope:
        """As :meth:`sync`, until the deadline. Unless the question ``lasts``, raises
        :exc:`~sbuslib.errors.DisconnectedError` when this connection has ended."""
        session, question = self._session, HubQuestion(b"")
        rest = b"" if scope == "local" else b"\0" + scope.encode()

        def ask() -> HubQuestion:
            nonlocal question
            has_sync = session.can(control.SYNC)  # else whatever it answers shows that it has acted on what came before
            question = session.ask_by_token(control.SYNC, rest) if has_sync else session.ask(control.WHOAMI)
            return question

        answer = await self.connection.ask(ask, deadline, lasts=lasts)
        return SyncScope.of(answer if question.key is None else b"local")

    async def whoami(self) -> bytes:
        """Ask the hub for this client's credential key."""
        client = self.connection
        return await client.ask(lambda: self._session.ask(control.WHOAMI), client.limit())

    async def is_wanted(self, key: Key, *, timeout: float | None = None, until: float | None = None) -> bool | None:
        """As :meth:`.hub_view.AioHubView.is_wanted`."""
        key, client, session = as_key(key), self.connection, self._session
        client.check_caller()
        session.check_publishable(key)

        def ask() -> HubQuestion:
            can = session.can(control.WANTED)  # else whatever it answers is no answer to this
            return session.ask_by_token(control.WANTED, b"\0" + key) if can else session.ask(control.WHOAMI)

        deadline = client.limit(until) if timeout is None else earliest(client.deadline(timeout), until)
        with suppress(TimeoutError):
            return {b"yes": True, b"no": False}.get(await client.ask(ask, deadline))
        return None

    # -- what recipes are built on: ClientPort -----------------------------------------------------------

    @property
    def epoch(self) -> int:
        """As :class:`~sbuslib.clients.recipes.mailbox.ClientPort` says."""
        return self.connection.epoch

    def deadline(self, timeout: float | None) -> float | None:
        """As :class:`~sbuslib.clients.recipes.mailbox.ClientPort` says."""
        return self.connection.deadline(timeout)

    def remaining(self, until: float | None, most: float | None = None) -> float | None:
        """As :class:`~sbuslib.clients.recipes.mailbox.ClientPort` says."""
        return earliest(time_left(until), most)

    def limit(self, until: float | None = None) -> float | None:
        """As :class:`~sbuslib.clients.recipes.mailbox.ClientPort` says."""
        return self.connection.limit(until)

    def begin_watch(self, key: bytes) -> InterestWatch:
        """As :class:`~sbuslib.clients.recipes.mailbox.ClientPort` says. On a hub without watches the state stays
        unknown.
        """
        watch = InterestWatch(key)
        self.watch(watch)
        return watch

    def watch(self, watch: Watch[Any]) -> None:
        """Watch something from now on, also over the connections that follow."""
        self.connection.change_now(lambda: self._session.watch(watch))

    def end_watch(self, watch: Watch[Any]) -> None:
        """Watch it no more."""
        if not watch.closed and not self.connection.is_closed:
            self.connection.change_now(lambda: self._session.unwatch(watch))

    async def post(self, key: bytes, payload: bytes, *, together: bool, until: float | None = None) -> Posted:
        """As :class:`~sbuslib.clients.recipes.mailbox.ClientPort` says."""
        client, posted = self.connection, self._posted
        if not client.runtime.SHARES_TURNS or not (together or posted):
            await self._send(self._session.encode(key, payload), until=until)
            sent = Posted()
            sent.epoch = client.epoch
            return sent
        client.check_caller()
        self._session.encode(key, payload)  # errors go to the caller, not to the task that sends
        posted.append((key, payload))
        posting = self._posting
        if len(posted) == 1:
            client.runtime.start(self._send_posted())  # which has its turn when this one waits
        elif not together or len(posted) >= MOST_POSTED:
            # Those of others are in it: they are sent even if this caller gives up meanwhile.
            await client.runtime.join(client.runtime.start(self._send_posted()), self.remaining(until))
        return posting

    def tell(self, key: bytes, payload: bytes) -> None:
        """As :class:`~sbuslib.clients.recipes.mailbox.ClientPort` says."""
        if self._posted:
            self._posted.append((key, payload))
            return
        with suppress(OSError, SbusError):  # there is no room now, or no connection
            self.connection.here().send(self._session.encode(key, payload), ONE_PACKET_FLAGS)

    async def _send_posted(self) -> None:
        pairs, self._posted = self._posted, []
        posting, self._posting = self._posting, Posted()
        with suppress(OSError, SbusError):  # who waits for an answer finds out that there is no connection
            await self.publish_some(pairs)
            posting.epoch = self.connection.epoch

    async def in_time(self, function: Callable[[Any], Any], argument: Any, until: float | None) -> Any:
        """As :class:`~sbuslib.clients.recipes.mailbox.ClientPort` says."""
        return await self.connection.runtime.in_time(function, argument, until)

    def ask_for_senders(self) -> None:
        """Have the hub send messages with their senders from now on, if it can."""
        if control.SENDERS_ON not in self._session.choices.values():
            self.choose(control.SENDERS_ON)

    def choose(self, *keys: bytes) -> None:
        """Choose by control messages, which come before what this client asks the hub for later."""
        self.connection.change_now(lambda: self._session.choose(*keys))

    def check_function(self, function: Any, what: str) -> None:
        """Raise :exc:`~sbuslib.errors.UsageError` for what this client cannot call with each ``what``."""
        if not callable(function):
            raise UsageError(f"a function is called with each {what}: {function!r} cannot be called")
        if iscoroutinefunction(function) and not self.connection.runtime.AWAITS:
            raise UsageError(f"coroutine functions such as {function!r} are for sbuslib.aio.Client")

    async def open_mailbox(self, mailbox: Mailbox, *, until: float | None = None) -> None:
        """Subscribe for a mailbox. Raises as ``subscribe`` does."""
        try:
            await self._subscribe(mailbox.patterns, mailbox, until)
        except BaseException:
            self._shut(mailbox, is_over=False)
            raise

    async def divert(self, mailbox: Mailbox, deadline: float | None) -> None:
        """Take nothing more from a mailbox, whose patterns stay subscribed to until :meth:`close_mailbox`."""
        mailbox.closed = True
        with suppress(DisconnectedError):  # a waiter may be the reading caller; the sync answer wakes it
            await self.confirm("local", deadline, lasts=False)

    async def close_mailbox(self, mailbox: Mailbox, *, until: float | None = None) -> None:
        """Unsubscribe the patterns of a mailbox. Messages on their way to it do not come into the inbox."""
        mailbox.closed = True  # a waiter may be the reading caller; the sync answer wakes it
        is_over, deadline = False, self.connection.limit(until)
        try:
            with suppress(DisconnectedError):
                if await self.unsubscribe(mailbox.patterns, deadline):
                    await self.confirm("local", deadline, lasts=False)  # nothing is on its way where the hub has gone
            is_over = True
        finally:
            self._shut(mailbox, is_over=is_over)

    async def add_to(self, mailbox: Mailbox, patterns: list[bytes]) -> None:
        """Subscribe to more for a mailbox, or for an object that leaves its messages to the inbox. Raises as that."""
        session = self._session
        mailbox.add(patterns, session.separator)  # before the first message comes
        try:
            await self._subscribe(patterns)
        except BaseException:
            mailbox.remove(patterns, session.separator)
            session.forget_places()
            raise

    async def remove_from(self, mailbox: Mailbox, patterns: list[bytes]) -> None:
        """Unsubscribe some patterns of a mailbox. Messages on their way still come there."""
        session, deadline = self._session, self.connection.limit()
        try:
            with suppress(DisconnectedError):
                if await self.unsubscribe(patterns, deadline):
                    await self.confirm("local", deadline, lasts=False)
        finally:
            mailbox.remove(patterns, session.separator)
            session.forget_places()

    def take_over(self, mailbox: Mailbox) -> None:
        """From now on, messages go into a mailbox for whose patterns the client has subscribed already."""
        with self.connection.leadership.lock:
            self._session.take_over(mailbox)

    def _shut(self, mailbox: Mailbox, *, is_over: bool) -> None:
        with self.connection.leadership.lock:
            self._session.shut(mailbox, is_over=is_over)
            self.connection.leadership.wake_all()

    async def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Receive until ``ready()`` holds; ``False`` after ``timeout`` seconds."""
        try:
            await self.connection.until(ready, self.connection.deadline(timeout and max(0.0, timeout)), "")
        except TimeoutError:
            return ready()
        return True


def mailbox_of(patterns: Iterable[Key]) -> Mailbox:
    """A mailbox for what an application subscribes to."""
    return Mailbox(*(as_key(pattern, "pattern") for pattern in patterns), lock=Lock())
