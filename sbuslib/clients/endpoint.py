"""The verbs of a client, as the gevent and the blocking client share them."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from ..errors import DisconnectedError, UsageError
from ..kernel.descriptors import WITH_DESCRIPTORS
from ..kernel.vectors import ONE_PACKET_FLAGS
from ..limits import PACKET_BYTES, ClientLimits
from ..patterns.last import subscribe
from ..statistics import (
    ClientStatistics,
    HubStatistics,
    LinkStatistics,
    decode_statistics,
)
from ..wire import control
from ..wire.batches import coalesce
from ..wire.columns import Columns
from ..wire.modes import Hard, Order, Soft
from ..wire.packets import Message
from .base import Event
from .batch import BatchPublisher, Pair, encode_many, in_parts
from .callbacks import Callback, Callbacks
from .lead import time_left
from .patterns import Patterns
from .prepared import PreparedMessage
from .questions import Scope, Sync, Whoami, all_clients, all_links, reloaded
from .session import Subscribing, mode_keys

__all__ = ["Endpoint"]


class Endpoint(Patterns):
    """The verbs of :class:`sbuslib.Client`, which tells of the parameters, and :class:`sbuslib.blocking.Client`."""

    def __init__(
        self,
        address: str | os.PathLike[str] | None = None,
        *,
        timeout: float | None = 10.0,
        reconnect: bool = False,
        hub_user: int | str | None = None,
        on_reconnect: Callable[[Endpoint], object] | None = None,
        on_disconnect: Callable[[Endpoint, DisconnectedError], object] | None = None,
        on_error: Callable[[Exception, Message], object] | None = None,
        on_notice: Callable[[control.Notice], object] | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        super().__init__(
            address,
            timeout=timeout,
            reconnect=reconnect,
            hub_user=hub_user,
            on_reconnect=on_reconnect,
            on_disconnect=on_disconnect,
            on_notice=on_notice,
            limits=limits,
        )
        self._on_error = on_error
        self._open()
        self._callbacks = Callbacks(self._session.separator)

    def _after_reading(self, event: Event) -> None:
        self._call_back(event)
        if self._reconnect and self._up and self._session.has_to_renew:
            self._say(self._session.renew, self._deadline(self.timeout))
        while self._session.renamed:
            self._callbacks.rename(*self._session.renamed.pop())
        self._hand_out_notices()

    # -- publishing ---------------------------------------------------------------------------------

    def publish(self, key: bytes, payload: bytes = b"", *, flags: int = 0) -> None:
        """Publish one message; waits while the hub has no room for it.

        ``flags`` are those of send(2). Raises :exc:`~sbuslib.errors.KeyFormatError`,
        :exc:`~sbuslib.errors.PayloadError`, :exc:`~sbuslib.errors.DisconnectedError`, :exc:`TimeoutError`,
        and :exc:`BlockingIOError` with ``MSG_DONTWAIT``.
        """
        if type(payload) is bytes and not flags:
            # The quick way for keys that were used before: nothing is checked but the length.
            try:
                packet = self._headers[key] + payload
                if len(packet) <= PACKET_BYTES:
                    self._socket.send(packet, ONE_PACKET_FLAGS)
                    return
            except (KeyError, TypeError, OSError):
                pass
        self._send(self._session.encode(key, payload), flags)

    def publish_many(self, messages: Iterable[tuple[bytes, bytes]]) -> int:
        """Publish pairs of key and payload in order, many at once; how many there were.

        Many go in one packet to a hub that takes such, else many with each system call. They are sent whenever there
        are ``ClientLimits.batch_messages``, and at the end. Raises as :meth:`publish`; what came before the pair at
        fault was published.
        """
        count = 0
        for part in in_parts(messages, self.limits.batch_messages):
            self._publish_some(part)
            count += len(part)
        return count

    def batch(self) -> BatchPublisher:
        """Collect messages that are published one by one, and send many in one packet.

        ``with client.batch() as batch: batch.publish(key, payload)``; see :mod:`~sbuslib.clients.batch`.
        """
        return BatchPublisher(self._headers, self._session.encode, self._publish_some, self.limits)

    def _publish_some(self, pairs: list[Pair]) -> None:
        packets: list[bytes] = []
        try:
            packets.extend(encode_many(self._session, pairs, self.limits.batch_bytes))
        finally:
            self._send_in_order(packets)

    def send_columns(self, columns: Columns) -> None:
        """Send messages that lie as columns, as a journal has them, in order.

        As :meth:`send_packets`. Where the hub takes batches, this costs no work for each single message.
        """
        for packet, _ in columns.pack(self.limits.batch_messages, self.limits.batch_bytes):
            self._send_in_order([packet])

    def send_packets(self, packets: Sequence[bytes]) -> None:
        """Send packets that were encoded before, ``MSG <key>NUL<payload>`` each, in order, many at once.

        For services that carry the messages of others. Nothing is checked; a hub disconnects a client that sends
        something else. Raises :exc:`~sbuslib.errors.DisconnectedError` and :exc:`TimeoutError`.
        """
        most = self.limits.batch
        if self._session.batches and packets:
            apiece = -(-sum(map(len, packets)) // len(packets))
            most = max(most, min(self.limits.batch_messages, self.limits.batch_bytes // apiece))
        for start in range(0, len(packets), most):
            some = list(packets[start : start + most])
            batch = coalesce(some) if self._session.batches and len(some) > 1 else None
            self._send_in_order(some if batch is None else [batch.packet])

    def prepare_message(self, key: bytes) -> PreparedMessage:
        """A packet under ``key`` to write a payload straight into."""
        return PreparedMessage(key, self._send)

    # -- subscribing --------------------------------------------------------------------------------

    def subscribe(self, *patterns: bytes, callback: Callback | None = None, last: bool = False) -> None:
        """Subscribe, and return once the hub has it in force: what is published from then on comes.

        With ``callback``, :meth:`run` hands the matching messages to it. With ``last``, the newest messages that a
        service keeps come first, then a :class:`~sbuslib.patterns.last.CaughtUp` for each pattern. Raises
        :exc:`~sbuslib.errors.KeyFormatError`, :exc:`TimeoutError` and
        :exc:`~sbuslib.errors.DisconnectedError`: a hub closes the connection of a client that asks for what
        is not its own. With ``last``, raises :exc:`~sbuslib.errors.NoServerError` without such a service.
        """
        if last:
            self.perform(subscribe(*self._seam(patterns)))
            if callback is not None:
                for pattern in patterns:
                    self._callbacks.add(pattern, callback)
            return
        with Subscribing(self._session, patterns, self.address) as asked:
            self._say(asked.ask, self._deadline(self.timeout))
            try:
                if callback is not None:
                    for pattern in patterns:
                        self._callbacks.add(pattern, callback)
                self.sync()
            finally:
                if asked.refused is not None:
                    self._forget_callbacks(patterns)

    def unsubscribe(self, *patterns: bytes) -> None:
        """Take one subscription to each pattern back. With the last one to a pattern, its callbacks are forgotten."""
        self._say(lambda: self._session.unsubscribe(patterns), self._deadline(self.timeout))
        self._forget_callbacks(patterns)

    def _forget_callbacks(self, patterns: Iterable[bytes]) -> None:
        for pattern in patterns:
            if not self._session.held[pattern]:
                self._callbacks.remove(pattern)

    def sync(self, scope: str = "local") -> Scope:
        """Wait until all that this client said is in force. Returns how far: ``local``, ``tree`` or ``partial``.

        With ``tree``, hubs below of users that are not trusted are not waited for: ``trusted_only`` of the answer tells
        whether there are any.

        Raises :exc:`TimeoutError` and :exc:`~sbuslib.errors.DisconnectedError`.
        """
        with Sync(self._session, scope) as question:
            if not self._session.can(control.SYNC):
                self.whoami()
                return Scope("local")
            self._ask(question.ask, question.is_answered)
            return question.answer

    def whoami(self) -> bytes:
        """Ask the hub for this client's credential key, ``!/cred/<gid>/<uid>/<pid>``."""
        question = Whoami(self._session)
        self._ask(question.ask, question.is_answered)
        return self._session.credentials

    def echo(self, on: bool = True) -> None:
        """Choose whether this client receives its own messages, where they match its patterns. It does by default."""
        self._choose(control.ECHO_ON if on else control.ECHO_OFF)

    def senders(self, on: bool = True) -> None:
        """Choose whether messages carry their sender, as the hub vouches for it.

        Raises :exc:`~sbuslib.errors.StateError` when the hub cannot tell.
        """
        if on:
            self._require(control.SENDERS_ON, "tell senders")
        self._choose(control.SENDERS_ON if on else control.SENDERS_OFF)

    def notices(self, on: bool = True) -> None:
        """Choose whether the hub tells of lost messages (counted in :attr:`lost`) and why it kicks this client.

        It does from the start where it can. Raises :exc:`~sbuslib.errors.StateError` when the hub cannot.
        """
        if on:
            self._require(control.NOTICES_ON, "give notices")
        self._choose(control.NOTICES_ON if on else control.NOTICES_OFF)

    def flood_control(self, *, soft: Soft | None = None, hard: Hard | None = None, order: Order | None = None) -> None:
        """Choose what the hub does with messages that this client does not read in time.

        ``soft`` while its queue has room: ``"queue"`` (the default), ``"discard"``, ``"block"`` or ``"error"``;
        ``hard`` when it is full: ``"discard"`` (the default), ``"block"`` or ``"error"``; ``order`` of what waits:
        ``"queue"`` (the default), ``"stack"`` or ``"random"``. ``None`` leaves a choice as it is. See
        ``docs/flood-control.md``.
        Raises :exc:`~sbuslib.errors.UsageError`.
        """
        self._choose(*mode_keys(soft, hard, order))

    def _choose(self, *keys: bytes) -> None:
        self._say(lambda: self._session.choose(*keys), self._deadline(self.timeout))

    def statistics(self) -> HubStatistics:
        """The hub's statistics.

        Raises :exc:`~sbuslib.errors.StateError` when the hub has none or does not trust this user with them,
        :exc:`TimeoutError` and :exc:`~sbuslib.errors.DisconnectedError`.
        """
        return decode_statistics(self._answer_to(control.STATISTICS, "give statistics"), self.address)

    def client_statistics(self) -> list[ClientStatistics]:
        """What the hub tells of each of its clients, however many there are. Raises as :meth:`statistics`."""
        return self.perform(all_clients(self.address))

    def link_statistics(self, key: bytes | None = None, *, most: int | None = None) -> list[LinkStatistics]:
        """What the hub tells of each of its links, or of the first ``most``, and which of them carry ``key``.

        Raises as :meth:`statistics`, and :exc:`~sbuslib.errors.KeyFormatError`.
        """
        if key is not None:
            self._session.check_publishable(key)
        return self.perform(all_links(self.address, key, most))

    def reload(self) -> str:
        """Have the hub read its configuration file again, and wait until it has taken it up. Returns what it says.

        Raises :exc:`~sbuslib.errors.StateError` if the hub does not trust us, has no such file, or finds an error.
        """
        return reloaded(self._answer_to(control.RELOAD, "read its configuration again"), self.address)

    def _answer_to(self, key: bytes, what: str, payload: bytes = b"") -> bytes | None:
        """What the hub answers to a question."""
        self._require(key, what)
        answers = self._session.answers
        self._ask(lambda: self._session.ask(key, payload), lambda: answers[key] is not None)
        return answers[key]

    # -- receiving ----------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None, *, flags: int = 0) -> Message:
        """The next message.

        ``flags`` are those of recv(2), and concern one packet: ``MSG_PEEK`` leaves it where it is. Raises
        :exc:`TimeoutError` after ``timeout`` seconds, :exc:`BlockingIOError` with ``MSG_DONTWAIT``, and
        :exc:`~sbuslib.errors.DisconnectedError`.
        """
        if flags:
            return self._receive_flagged(timeout, flags)
        inbox, deadline = self._session.inbox, self._deadline(timeout)
        while True:
            self._until(lambda: bool(inbox), deadline, f"no message within {timeout} s")
            try:
                return inbox.popleft()
            except IndexError:  # another caller has taken it meanwhile
                continue

    def _receive_flagged(self, timeout: float | None, flags: int) -> Message:
        inbox = self._session.inbox
        peeked: list[Message] = []
        deadline = self._deadline(0 if flags & socket.MSG_DONTWAIT else timeout)
        what = f"no message within {timeout} s"
        while True:
            try:
                self._until(
                    lambda: bool(inbox or peeked),
                    deadline,
                    what,
                    lambda deadline: self._read_flagged(flags, deadline, peeked),
                )
            except TimeoutError:
                if flags & socket.MSG_DONTWAIT:
                    raise BlockingIOError(errno.EAGAIN, "no message is here") from None
                raise
            with self._lead.lock:
                if peeked:
                    return peeked[0]
                if inbox:
                    return inbox[0] if flags & socket.MSG_PEEK else inbox.popleft()

    def _read_flagged(self, flags: int, deadline: float | None, peeked: list[Message]) -> bool:
        """Receive one packet with flags, as :meth:`_read` does without. A message that stays there is ``peeked``."""
        area, sock = self._get_area(), self._socket
        try:
            size = area.receive_first(sock, flags)
        except BlockingIOError:
            if flags & socket.MSG_DONTWAIT or not self._wait(sock, select.POLLIN, time_left(deadline)):
                raise TimeoutError from None
            return False
        if flags & socket.MSG_PEEK and 0 < size != WITH_DESCRIPTORS:
            messages = self._session.messages_of(area.packet(0, size))
            if messages and self._session.is_for_inbox(messages[0].key):
                peeked.append(messages[0])
                return False
            size = area.receive_first(sock, 0)  # an answer, or for a mailbox: not what was asked for
        return self._take(area, [size])

    def receive_many(self, most: int | None = None, timeout: float | None = None) -> list[Message]:
        """At least one message, and all others that are here, up to ``most``. Raises as :meth:`receive`."""
        if most is not None and most < 1:
            raise UsageError(f"most is at least 1, not {most!r}")
        return self._next(most, self._deadline(timeout), f"no message within {timeout} s")

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until :meth:`close`. Leaving the loop loses nothing.

        Raises :exc:`~sbuslib.errors.DisconnectedError` when the hub closes the connection.
        """
        take = self._session.inbox.popleft
        while self._arrived(None):
            while True:
                try:
                    message = take()
                except IndexError:  # several may iterate at once, so looking first would not do
                    break
                yield message

    def _arrived(self, deadline: float | None) -> bool:
        """Wait for messages in the inbox; ``False`` when this client was closed instead."""
        inbox = self._session.inbox
        try:
            self._until(lambda: bool(inbox), deadline, "no message in time")
        except DisconnectedError:
            if self._closed:
                return False
            raise
        return True

    def run(self, timeout: float | None = None) -> None:
        """Hand messages to the callbacks of their patterns until :meth:`close`, or for ``timeout`` seconds.

        Messages that no callback wants are dropped.
        """
        deadline = self._deadline(timeout)
        inbox = self._session.inbox
        with suppress(TimeoutError):
            while self._arrived(deadline):
                while inbox:
                    self._dispatch(inbox.popleft())

    def _dispatch(self, message: Message) -> None:
        for callback in self._callbacks.of(message.key):
            try:
                callback(message)
            except Exception as error:
                if self._on_error is None:
                    raise
                self._on_error(error, message)

    # -- the rest -----------------------------------------------------------------------------------

    @property
    def socket(self) -> socket.SocketType:
        """The connection's socket, non-blocking, to set options on; a reconnection makes another."""
        return self._socket

    def fileno(self) -> int:
        """The descriptor, for select(2) or poll(2). Receive first: the client may hold messages already."""
        return self._socket.fileno()
