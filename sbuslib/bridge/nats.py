"""NATS as the broker of a bridge. See :mod:`.broker` for what all brokers share.

A ping confirms published messages: its answer comes after the server has taken all that was sent before. With a stream,
JetStream confirms each message, and drops duplicates by their id. Bridges of one bus are a queue group, and with a
stream they share a durable consumer.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import nats
from msgspec import json
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error, SlowConsumerError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from ..errors import UsageError
from ..federation.name_format import NameFormat
from ..wire.text import plainly
from .broker import BATCH, ORIGIN, UNREAD, Broker, BrokerOptions, Incoming, Leaving, Take, Unread, next_batch

_PAUSE: Final = 1.0
"""Seconds between attempts to connect, and to use a stream."""
_CONNECT_SECONDS: Final = 5.0
"""Limit of one attempt to connect: a server of a busy machine is slow to answer."""
_ASK_SECONDS: Final = 0.5
"""Lifetime of one pull request at a stream."""
_INBOXES: Final = UNREAD // BATCH
"""Inboxes of pull requests that may not be over yet: further messages would not fit the queue."""
_ASK_BYTES: Final = 16 * 1_024 * 1_024
"""Bytes of one pull request. A message without room, here or in the server, would be redelivered too late."""
_HEADER_BYTES: Final = 512
"""Most bytes of the headers of a message: a server counts them as payload."""
_LINE_BYTES: Final = 16_384
"""Most bytes of a message besides its payload: a server allows 4,096 bytes for a line, unless configured."""
_CONFIRM_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 10.0
"""Seconds without acknowledgement after which a stream redelivers a message."""

_FILE_BYTES: Final = 65_536
_SEED: Final = re.compile(rb"(\S+)")
_CREDENTIALS: Final = re.compile(rb"BEGIN NATS USER JWT[^\n]*\n\S.*BEGIN USER NKEY SEED[^\n]*\n([^\n]+)\n", re.DOTALL)


class _Connection(nats.NATS):  # type: ignore[misc]
    """The library's client, with fixes for cases where that would use plain text, or stop without an error.

    After a packet that it cannot parse, or an answer without a waiter, that stops reading and goes on sending.
    """

    files: BrokerOptions

    def _connect_command(self) -> bytes:
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise Error("the server does not ask for TLS, so nothing is sent to it")
        try:
            _check_files(self.files)
        except UsageError as error:
            raise Error(str(error)) from None
        return bytes(super()._connect_command())

    async def _process_err(self, text: str) -> None:
        """Connect again after an error that ends the connection, as when credentials expire."""
        if "permissions violation" in text.lower():
            await super()._process_err(text)
        else:
            error = Error(f"nats: {text}")
            await self._error_cb(error)
            await self._process_op_err(error)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            parsed: dict[str, str] | None = await super()._process_headers(headers)
        except (IndexError, UnicodeDecodeError):
            return None
        return parsed

    def _build_message(self, sid: int, subject: bytes, reply: bytes, *rest: Any) -> Msg:
        readable = (text.decode("utf-8", "replace").encode() for text in (subject, reply))
        return super()._build_message(sid, *readable, *rest)

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected and self._reading_task is asyncio.current_task():
            await self._process_op_err(Error("the server sent an unknown message"))

    async def ask(self) -> None:
        """Wait until the server has all that was sent. ``flush`` may return before, and must not be cancelled."""
        for _ in range(2):  # the client writes its first ping before earlier messages
            answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            await self._send_ping(answered)
            await asyncio.shield(answered)

    def cut(self) -> None:
        """End the connection now. The client library would wait until the server has read all that is written."""
        if (writer := getattr(self._transport, "_io_writer", None)) is not None:
            writer.transport.abort()


class Nats(Broker):
    """A connection to a NATS server or cluster, by ``nats-py``."""

    shares = True
    SUBJECT_BYTES = 3_000  # a server allows 4,096 bytes for a line of the protocol

    def __init__(self, url: str, options: BrokerOptions, separator: bytes, warn: Callable[[str], object]) -> None:
        super().__init__(url, options, separator, warn)
        # Subjects.
        self.name_format = NameFormat(
            options.start("."), ".", "*", ">", specials=".*>", has_empty=False, separator=separator
        )
        self.keeps = options.stream is not None  # a stream does
        _check_files(options)
        self._servers = url.split(",")  # URLs
        self._tls = options.tls(any(server.startswith("tls:") for server in self._servers))  # the context, or None
        self._client = _Connection()  # connects again by itself
        self._client.files = options
        self._streams = self._client.jetstream(publish_async_max_pending=UNREAD)  # JetStream, by the same connection
        self._unread: Unread[Msg] = Unread(
            lambda message: len(message.data)
        )  # received messages, until the bridge takes them
        self._subscriptions: list[Subscription] = []  # to be ended before the connection is; inboxes for a stream
        self._asking = asyncio.Lock()  # held while a pull request is open, until all its messages were taken
        self._is_open = True  # whether the newest inbox may still get something; there is none at first
        self._patience: asyncio.Timeout | None = None  # of the batch that is being sent
        self._stream_payload = sys.maxsize

    async def run(self, take: Take, patterns: Sequence[bytes], bus: str, name: str) -> None:
        options = self._options
        given = {
            "user": options.user,
            "password": options.password,
            "token": options.token,
            "nkeys_seed": options.nkey,
            "user_credentials": options.credentials,
            "tls": self._tls,
        }

        # It reconnects for ever: an outage of the server is no error of the bridge.
        await self._client.connect(
            self._servers,
            name=f"sbus bridge {name}",
            max_reconnect_attempts=-1,
            reconnect_time_wait=_PAUSE,
            connect_timeout=_CONNECT_SECONDS,
            pending_size=0,  # while the server is away the bridge keeps messages, not the client
            no_echo=True,
            error_cb=self._failed,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._back,
            **{key: value for key, value in given.items() if value is not None},
        )

        while True:
            try:
                if options.stream is not None:
                    await self._use_stream(options.stream)
                if options.stream is not None and patterns:
                    durable = await self._use_consumer(options.stream, patterns, name)
                    await self._read_stream(take, options.stream, durable)
                else:
                    await self._read(take, self.name_format.filters_for(patterns), f"sbus-{bus}")
            except (Error, TimeoutError) as error:  # for example a cluster whose streams have no leader yet
                await self._failed(error)
                await asyncio.sleep(_PAUSE)

    async def _subscribe(self, subject: str, group: str = "") -> None:
        subscription = await self._client.subscribe(subject, queue=group, pending_bytes_limit=0)
        # The client has a queue for each. With one for all, messages stay in the order in which they came.
        subscription._pending_queue = self._unread
        self._subscriptions.append(subscription)

    async def _are_ready(self) -> None:
        await self._client.ask()
        await self._back()
        self.ready.set()

    async def _read(self, take: Take, filters: list[str], group: str) -> None:
        for subject in filters:
            await self._subscribe(subject, group)
        await self._are_ready()
        while True:
            messages = await next_batch(self._unread)
            await take([_incoming(message) for message in messages], partial(self._acknowledge, ()))
            for _ in messages:
                self._unread.task_done()

    async def _read_stream(self, take: Take, stream: str, durable: str) -> None:
        """Pull one batch after another. ``fetch`` of the client library is five times slower, and prefetches."""
        await self._are_ready()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        while True:
            await self.connected.wait()
            async with self._asking:
                is_over = False
                while not is_over and self.connected.is_set():
                    try:
                        is_over = await self._take_batch(take, subject)
                    except (Error, TimeoutError):  # the connection ended
                        await asyncio.sleep(0.1)

    async def _take_batch(self, take: Take, subject: str) -> bool:
        """Pull a batch, and take it. Returns whether the request is certainly over.

        A stream answers requests in the order in which it got them. It may drop one silently, or be slow: then its
        answer may still come, before the answer to the next request, which therefore has an inbox of its own. A message
        that comes to a closed inbox is redelivered too late, out of order.
        """
        # 1. Send the request, with an inbox that no other open request has.
        if self._is_open:
            await self._open_inbox()
        inbox = self._subscriptions[-1]
        self._is_open = True
        most = max(_ASK_BYTES, self._client.max_payload + _LINE_BYTES)  # the longest message fits, with its subject
        question = {"batch": BATCH, "max_bytes": most, "expires": int(_ASK_SECONDS * 1e9)}
        await self._client.publish(subject, json.encode(question), inbox.subject)

        # 2. Take all that comes, also for older requests.
        awaited = BATCH
        while awaited > 0:
            messages = await self._more()
            if not messages:
                return False
            came = [message for message in messages if message.reply]  # one without a reply subject ends a request
            await take([_incoming(message) for message in came], partial(self._acknowledge, came))

            # 3. Those are over once this request has an answer.
            answers = [message for message in messages if message.sid == inbox._id]
            if answers:
                await self._close_inboxes(1)
            awaited = awaited - len(answers) if all(answer.reply for answer in answers) else 0
        self._is_open = False
        return True

    async def _more(self) -> list[Msg]:
        """Wait for messages of the stream. Returns none if it is slower than its server, or dropped the request."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * _ASK_SECONDS):
                return await next_batch(self._unread)
        if self.connected.is_set():  # fails if the server does not answer, so that it gets no further request
            async with asyncio.timeout(_CONFIRM_SECONDS):
                await self._client.ask()
        return [] if self._unread.empty() else await next_batch(self._unread)

    async def _open_inbox(self) -> None:
        await self._subscribe(self._client.new_inbox())
        await self._close_inboxes(_INBOXES)

    async def _close_inboxes(self, most: int) -> None:
        """Close the oldest inboxes, until ``most`` are open."""
        while len(self._subscriptions) > most:
            await self._subscriptions.pop(0).unsubscribe()

    async def _use_stream(self, stream: str) -> None:
        """Create the stream, unless it exists: then it is used as it is."""
        try:
            most = (await self._streams.stream_info(stream)).config.max_msg_size
            if most is not None and most > 0:
                self._stream_payload = most
        except NotFoundError:
            await self._streams.add_stream(name=stream, subjects=[self.name_format.filter_of(b"")])

    async def _use_consumer(self, stream: str, patterns: Sequence[bytes], name: str) -> str:
        """Create the consumer, unless it exists. Returns its name."""
        wanted = self.name_format.filter_for(patterns)  # one consumer keeps messages in order, and takes one filter
        unique = blake2b(f"{name} {wanted}".encode(), digest_size=6).hexdigest()
        durable = f"sbus-{re.sub('[^0-9A-Za-z_-]', '-', name)}-{unique}"
        config = ConsumerConfig(
            durable_name=durable,
            filter_subject=wanted,
            deliver_policy=DeliverPolicy.NEW,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=_AGAIN_SECONDS,
        )
        await self._streams.add_consumer(stream, config)
        return durable

    async def _acknowledge(self, messages: Sequence[Msg]) -> None:
        with suppress(Error):  # then they come again
            for message in messages:
                await message.ack()

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            self.lost += not self.keeps  # a stream sends it again
        else:
            self.warn_once(plainly(error) or type(error).__name__)

    async def _disconnected(self) -> None:
        self.connected.clear()
        if self._patience is not None:
            with suppress(RuntimeError):  # it has ended
                self._patience.reschedule(0.0)  # no confirmation comes any more

    async def _back(self) -> None:
        self.payload_bytes = min(self._client.max_payload, self._stream_payload) - _HEADER_BYTES
        self._on_connected()

    async def send(self, messages: Sequence[Leaving]) -> None:
        try:
            async with asyncio.timeout(_CONFIRM_SECONDS) as self._patience:
                if self.keeps:
                    confirmed = [await self._send_to_stream(message) for message in messages]
                    await asyncio.gather(*confirmed)
                else:
                    await self._client._send_command(b"".join(map(_packet, messages)))
                    await self._client.ask()
        except TimeoutError:
            if self.connected.is_set():
                self._client.cut()  # its buffer would grow with each batch that is sent again
            raise ConnectionError("no confirmation") from None
        except Error as error:
            raise ConnectionError(str(error)) from error

    async def _send_to_stream(self, message: Leaving) -> Any:
        headers = {ORIGIN: message.origin, "Nats-Msg-Id": f"{message.origin.partition('.')[0]}-{message.number}"}
        stream = self._options.stream
        return await self._streams.publish_async(message.subject, message.payload, stream=stream, headers=headers)

    async def drain(self) -> None:
        await self._asking.acquire()
        if not self.connected.is_set():
            return
        with suppress(Error):
            # ``drain`` of the client library forgets the subscription while the server may still send for it.
            if not self.keeps:
                for subscription in self._subscriptions:
                    await self._client._send_unsubscribe(subscription._id)
            await self._client.ask()  # and it has all acknowledgements
            if not self.keeps:
                await self._unread.join()

    async def close(self) -> None:
        closing = asyncio.create_task(self._client.close())
        await asyncio.wait([closing], timeout=_PAUSE)
        self._client.cut()
        # It fails if there is no connection, or never was, or if it waits for a task that was cancelled before.
        await asyncio.gather(closing, return_exceptions=True)


def _incoming(message: Msg) -> Incoming:
    return Incoming(message.subject, message.data, (message.headers or {}).get(ORIGIN))


def _check_files(options: BrokerOptions) -> None:
    """Check the files with seeds: the client library fails without a message for a bad file, or reads without end."""
    for path, form, what in (
        (options.nkey, _SEED, "seed"),
        (options.credentials, _CREDENTIALS, "JWT and seed of a user"),
    ):
        if path is None:
            continue
        import nkeys

        with open(path, "rb") as file:
            seed = form.search(file.read(_FILE_BYTES))
        try:
            nkeys.from_seed(bytearray(seed[1] if seed is not None else b""))
        except (nkeys.NkeysError, ValueError):
            raise UsageError(f"{path}: this file has no {what}") from None


def _packet(message: Leaving) -> bytes:
    """Encode a message as the client library does, in a fifth of the time.

    There is no CR or LF in subject and origin.
    """
    head = f"NATS/1.0\r\n{ORIGIN}: {message.origin}\r\n\r\n"  # in ASCII
    payload = message.payload
    start = f"HPUB {message.subject} {len(head)} {len(head) + len(payload)}\r\n{head}"
    return b"%b%b\r\n" % (start.encode(), payload)
