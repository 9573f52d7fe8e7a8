"""The client for asyncio: the verbs of the other clients, awaited. Callbacks and flags are left to them."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import AsyncIterator, Iterable
from itertools import repeat, starmap
from threading import get_ident

from .clients.aio_patterns import AioPatterns
from .clients.batch import AioBatchPublisher, Pair, encode_many, in_parts
from .clients.questions import Scope, Sync, Whoami, all_clients, all_links, reloaded
from .clients.session import Subscribing, mode_keys
from .errors import DisconnectedError
from .kernel.vectors import ONE_PACKET_FLAGS
from .limits import PACKET_BYTES
from .patterns.last import subscribe
from .statistics import ClientStatistics, HubStatistics, LinkStatistics, decode_statistics
from .wire import control
from .wire.modes import Hard, Order, Soft
from .wire.packets import Message

__all__ = ["Client"]


class Client(AioPatterns):
    """A client of a hub for asyncio. Any number of tasks may share it, all of the event loop that connected it.

    ::

        async with Client("/tmp/bus") as client:      # or: client = await Client("/tmp/bus")
            await client.subscribe(b"room/")
            async for message in client: ...

    ``timeout`` bounds connecting, sending and questions to the hub; ``reconnect`` looks for the hub again when it goes
    away, and subscribes again; ``hub_user`` is the user that the hub must run as. These and the other parameters are
    those of :class:`sbuslib.Client`, and so are the errors; there is no ``on_error``. ``on_reconnect`` and
    ``on_disconnect`` are called, and awaited when they return an awaitable. A task that is cancelled in any of the
    methods leaves the client usable.
    """

    async def publish(self, key: bytes, payload: bytes = b"", *, flags: int = 0) -> None:
        """Publish one message; waits while the hub has no room for it."""
        sock = self._socket
        if type(payload) is bytes and not flags and sock is not None and get_ident() == self._thread:
            # Mostly there is room, and nothing to wait for. Here only the thread is checked: to ask for the event loop
            # takes six times as long, and is done where a task waits.
            try:
                packet = self._headers[key] + payload
                if len(packet) <= PACKET_BYTES:
                    sock.send(packet, ONE_PACKET_FLAGS)
                    return
            except (KeyError, TypeError, OSError):
                pass
        await self._send([self._session.encode(key, payload)], flags | ONE_PACKET_FLAGS)

    async def publish_many(self, messages: Iterable[tuple[bytes, bytes]]) -> int:
        """Publish pairs of key and payload in order, many at once; how many there were."""
        count = 0
        for part in in_parts(messages, self.limits.batch_messages):
            await self._publish_some(part)
            count += len(part)
        return count

    def batch(self) -> AioBatchPublisher:
        """Collect messages that are published one by one, and send many in one packet.

        ``async with client.batch() as batch: await batch.publish(key, payload)``; see :mod:`~sbuslib.clients.batch`.
        """
        return AioBatchPublisher(self._headers, self._session.encode, self._publish_some, self.limits)

    async def _publish_some(self, pairs: list[Pair]) -> None:
        packets: list[bytes] = []
        try:
            packets.extend(encode_many(self._session, pairs, self.limits.batch_bytes))
        finally:
            await self._send(packets)

    async def subscribe(self, *patterns: bytes, last: bool = False) -> None:
        """Subscribe, and return once the hub has it in force; with ``last``, what a service keeps comes first."""
        if last:
            await self.perform(subscribe(*self._seam(patterns)))
            return
        with Subscribing(self._session, patterns, self.address) as asked:
            await self._say(asked.ask)
            await self.sync()

    async def unsubscribe(self, *patterns: bytes) -> None:
        """Take one subscription to each pattern back."""
        await self._say(lambda: self._session.unsubscribe(patterns))

    async def sync(self, scope: str = "local") -> Scope:
        """Wait until all that this client said is in force. Returns how far: ``local``, ``tree`` or ``partial``.

        With ``tree``, hubs below of users that are not trusted are not waited for: ``trusted_only`` of the answer tells
        whether there are any.
        """
        with Sync(self._session, scope) as question:
            if not self._session.can(control.SYNC):
                await self.whoami()
                return Scope("local")
            await self._ask(question.ask, question.is_answered)
            return question.answer

    async def whoami(self) -> bytes:
        """Ask the hub for this client's credential key, ``!/cred/<gid>/<uid>/<pid>``."""
        question = Whoami(self._session)
        await self._ask(question.ask, question.is_answered)
        return self._session.credentials

    async def echo(self, on: bool = True) -> None:
        """Choose whether this client receives its own messages, where they match its patterns. It does by default."""
        await self._choose(control.ECHO_ON if on else control.ECHO_OFF)

    async def senders(self, on: bool = True) -> None:
        """Choose whether messages carry their sender. Raises :exc:`~sbuslib.errors.StateError` if the hub cannot."""
        if on:
            self._require(control.SENDERS_ON, "tell senders")
        await self._choose(control.SENDERS_ON if on else control.SENDERS_OFF)

    async def notices(self, on: bool = True) -> None:
        """Choose whether the hub tells of lost messages and why it kicks this client; at first it does, if it can."""
        if on:
            self._require(control.NOTICES_ON, "give notices")
        await self._choose(control.NOTICES_ON if on else control.NOTICES_OFF)

    async def flood_control(
        self, *, soft: Soft | None = None, hard: Hard | None = None, order: Order | None = None
    ) -> None:
        """Choose what the hub does with messages that this client does not read in time."""
        await self._choose(*mode_keys(soft, hard, order))

    async def _choose(self, *keys: bytes) -> None:
        await self._say(lambda: self._session.choose(*keys))

    async def statistics(self) -> HubStatistics:
        """The hub's statistics. Raises :exc:`~sbuslib.errors.StateError` when it does not give them to us."""
        return decode_statistics(await self._answer_to(control.STATISTICS, "give statistics"), self.address)

    async def client_statistics(self) -> list[ClientStatistics]:
        """What the hub tells of each of its clients, however many there are. Raises as :meth:`statistics`."""
        return await self.perform(all_clients(self.address))

    async def link_statistics(self, key: bytes | None = None, *, most: int | None = None) -> list[LinkStatistics]:
        """What the hub tells of each of its links, or of the first ``most``, and which of them carry ``key``.

        Raises as :meth:`statistics`, and :exc:`~sbuslib.errors.KeyFormatError`.
        """
        if key is not None:
            self._session.check_publishable(key)
        return await self.perform(all_links(self.address, key, most))

    async def reload(self) -> str:
        """Have the hub read its configuration file again, and wait until it has taken it up. Returns what it says.

        Raises :exc:`~sbuslib.errors.StateError` if the hub does not trust us, has no such file, or finds an error.
        """
        return reloaded(await self._answer_to(control.RELOAD, "read its configuration again"), self.address)

    async def _answer_to(self, key: bytes, what: str, payload: bytes = b"") -> bytes | None:
        """What the hub answers to a question."""
        self._require(key, what)
        answers = self._session.answers
        await self._ask(lambda: self._session.ask(key, payload), lambda: answers[key] is not None)
        return answers[key]

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message. Raises :exc:`TimeoutError` after ``timeout`` seconds."""
        inbox = self._session.inbox
        if not inbox or get_ident() != self._thread:
            await self._until(lambda: bool(inbox), timeout, f"no message within {timeout} s")
        return inbox.popleft()

    async def receive_many(self, most: int | None = None, timeout: float | None = None) -> list[Message]:
        """At least one message, and all others that are here, up to ``most``."""
        inbox: deque[Message] = self._session.inbox
        await self._until(lambda: bool(inbox), timeout, f"no message within {timeout} s")
        count = len(inbox) if most is None else min(most, len(inbox))
        return list(starmap(inbox.popleft, repeat((), count)))

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they come, until :meth:`close`."""
        inbox = self._session.inbox
        while True:
            try:
                await self._until(lambda: bool(inbox), None, "")
            except DisconnectedError:
                if self._closed:
                    return
                raise
            while inbox:
                yield inbox.popleft()

    @property
    def socket(self) -> socket.SocketType:
        """The connection's socket. Raises :exc:`~sbuslib.errors.DisconnectedError` without one."""
        return self._here()

    def fileno(self) -> int:
        """The descriptor of the connection's socket."""
        return self._here().fileno()
