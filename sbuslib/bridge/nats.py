"""NATS: what is different about it. See :mod:`.engine` for what is not.

What is published is confirmed by a ping: its answer comes after the server has taken all that was sent before. With a
stream, JetStream confirms each message, and drops repeats by their id. Bridges of one bus are a queue group, or share
the durable consumer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import nats
from msgspec import json
from nats.aio.msg import Msg
from nats.errors import Error, SlowConsumerError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from ..errors import UsageError
from .engine import ORIGIN, EngineOptions, Incoming, Outgoing, Take
from .mapping import Mapping

__all__ = ["Nats"]

_BATCH: Final = 256
"""Messages that are handed to the bridge at once."""
_UNREAD: Final = 16_384
"""Messages that wait for the bridge; the client library drops further ones."""
_SUBJECT_BYTES: Final = 3_000
"""A server allows 4,096 bytes for a line of the protocol."""
_HEADER_BYTES: Final = 512
"""What the headers of a message take at most: a server counts them as payload."""
_ASK_SECONDS: Final = 1.0
"""How long a stream is asked for messages at once."""
_PAUSE: Final = 1.0
"""Seconds between attempts to connect."""
_CONFIRM_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 10.0
"""A stream sends again what was not acknowledged for so long."""

_FILE_BYTES: Final = 65_536
_SEED: Final = re.compile(rb"(\S+)")
_CREDENTIALS: Final = re.compile(rb"BEGIN NATS USER JWT[^\n]*\n\S.*BEGIN USER NKEY SEED[^\n]*\n([^\n]+)\n", re.DOTALL)


class _Connection(nats.NATS):  # type: ignore[misc]
    """The client of the library, where that would go on in plain text, or not at all and without a word."""

    files: EngineOptions

    def _connect_command(self) -> bytes:
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise Error("the server does not ask for TLS, so it is told nothing")
        try:
            _check_files(self.files)
        except UsageError as error:
            raise Error(str(error)) from None
        return bytes(super()._connect_command())

    async def _process_err(self, text: str) -> None:
        """What a server says before it ends the connection, as when credentials expire: connect again."""
        if "permissions violation" in text.lower():
            await super()._process_err(text)
        else:
            error = Error(f"nats: {text}")
            await self._error_cb(error)
            await self._process_op_err(error)


class Nats:
    """A connection to a NATS server or cluster, by ``nats-py``."""

    has_origins = True
    shares = True

    def __init__(
        self,
        url: str,
        options: EngineOptions,
        imported: Sequence[bytes],
        separator: bytes,
        warn: Callable[[str], object],
    ) -> None:
        self.mapping = Mapping(
            ".", "*", ">", specials=".*>", has_empty=False, prefix=options.prefix, separator=separator
        )
        self.keeps = options.stream is not None
        self.lost = 0
        self._servers = url.split(",")
        self._options = options
        self._imported = self.mapping.filter_for(imported) if imported else ""
        self._warn = warn
        _check_files(options)
        self._tls = options.tls(any(server.startswith("tls:") for server in self._servers))
        self._client = _Connection()
        self._client.files = options
        self._streams: Any = self._client.jetstream(publish_async_max_pending=16_384)
        self._away = asyncio.Event()  # set while there is no connection
        self._inbox: Any = None  # where a stream sends to
        self._unread: asyncio.Queue[Msg] = asyncio.Queue(_UNREAD)

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    @property
    def payload_bytes(self) -> int:
        return int(self._client.max_payload) - _HEADER_BYTES

    def fits(self, subject: str) -> bool:
        return len(subject.encode()) <= _SUBJECT_BYTES

    async def run(self, take: Take, filters: list[str], bus: str, name: str, ready: Callable[[], object]) -> None:
        options = self._options
        given = {
            "user": options.user,
            "password": options.password,
            "token": options.token,
            "nkeys_seed": options.nkey,
            "user_credentials": options.credentials,
            "tls": self._tls,
        }
        await self._client.connect(
            self._servers,
            name=f"sbus bridge {name}",
            max_reconnect_attempts=-1,
            reconnect_time_wait=_PAUSE,
            pending_size=0,  # while the server is away the bridge keeps messages, not the client
            no_echo=True,
            error_cb=self._failed,
            disconnected_cb=self._left,
            reconnected_cb=self._back,
            **{key: value for key, value in given.items() if value is not None},
        )
        ask = None
        if options.stream is not None:
            ask = await self._use_stream(options.stream, name)
            filters = []
        for subject in filters:
            subscription = await self._client.subscribe(subject, queue=f"sbus-{bus}", pending_bytes_limit=0)
            # The client has a queue for each. With one for all, messages stay in the order in which they came.
            subscription._pending_queue = self._unread
        await self._client.flush()
        ready()
        await self._hand_on(take, ask)

    async def _use_stream(self, stream: str, name: str) -> Callable[[], Any] | None:
        """Use the stream as it is, or make it. Returns what asks for a batch. One consumer keeps messages in order."""
        try:
            await self._streams.stream_info(stream)
        except NotFoundError:
            await self._streams.add_stream(name=stream, subjects=[self.mapping.filter_of(b"")])
        if not self._imported:
            return None
        durable = f"sbus-{name}-{blake2b(self._imported.encode(), digest_size=6).hexdigest()}"
        config = ConsumerConfig(
            durable_name=durable,
            filter_subject=self._imported,
            deliver_policy=DeliverPolicy.NEW,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=_AGAIN_SECONDS,
        )
        try:
            await self._streams.consumer_info(stream, durable)
        except NotFoundError:
            await self._streams.add_consumer(stream, config)
        inbox = self._client.new_inbox()
        self._inbox = await self._client.subscribe(inbox, pending_bytes_limit=0)
        self._inbox._pending_queue = self._unread
        asked = json.encode({"batch": _BATCH, "expires": int(_ASK_SECONDS * 1e9)})
        return partial(self._client.publish, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}", asked, inbox)

    async def _hand_on(self, take: Take, ask: Callable[[], Any] | None) -> None:
        """Hand on what comes. A stream is asked for each batch: ``fetch`` of the client library is 10 times slower."""
        unread, wanted = self._unread, 0
        while True:
            try:
                if ask is not None and wanted <= 0:
                    await ask()
                    wanted = _BATCH
                async with asyncio.timeout(None if ask is None else 2 * _ASK_SECONDS):
                    messages = [await unread.get()]
            except (Error, TimeoutError):  # the connection ended
                await asyncio.sleep(0.1)
                wanted = 0
                continue
            while len(messages) < _BATCH and not unread.empty():
                messages.append(unread.get_nowait())
            if ask is not None:
                came = [message for message in messages if message.reply]  # without, it says that no more comes
                wanted = wanted - len(came) if len(came) == len(messages) else 0
                messages = came
            coming = [Incoming(one.subject, one.data, (one.headers or {}).get(ORIGIN)) for one in messages]
            await take(coming, partial(self._acknowledge, messages))

    async def _acknowledge(self, messages: list[Msg]) -> None:
        if self.keeps:
            with suppress(Error):  # then it comes again
                for one in messages:
                    await self._client.publish(one.reply)
                await self._client.flush()

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            self.lost += 1
        else:
            self._warn(str(error) or type(error).__name__)

    async def _left(self) -> None:
        self._away.set()

    async def _back(self) -> None:
        self._away.clear()

    async def send(self, messages: Sequence[Outgoing]) -> None:
        if not self.connected:
            await asyncio.sleep(0.1)
            raise ConnectionError("away")
        try:
            if self.keeps:
                await self._send_to_stream(messages)
                return
            await self._client._send_command(b"".join(map(_packet, messages)))
            # The client writes its first ping before what it has still to write.
            for _ in range(2):
                await self._unless_away(self._client.flush(_CONFIRM_SECONDS))
        except (Error, TimeoutError) as error:
            raise ConnectionError(str(error)) from error

    async def _send_to_stream(self, messages: Sequence[Outgoing]) -> None:
        confirmed = []
        for message in messages:
            headers = {
                ORIGIN: message.origin,
                "Nats-Msg-Id": f"{message.origin.partition(' ')[0]}-{message.number}",
            }
            confirmed.append(
                await self._streams.publish_async(
                    message.subject, message.payload, stream=self._options.stream, headers=headers
                )
            )
        async with asyncio.timeout(_CONFIRM_SECONDS):
            await self._unless_away(asyncio.gather(*confirmed))

    async def _unless_away(self, answer: Any) -> None:
        """Wait for an answer, or until there is no connection any more: then none comes."""
        answered = asyncio.ensure_future(answer)
        left = asyncio.ensure_future(self._away.wait())
        try:
            await asyncio.wait([answered, left], return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                raise ConnectionError("the connection ended")
            answered.result()
        finally:
            answered.cancel()
            left.cancel()

    async def close(self) -> None:
        with suppress(Error, OSError, AssertionError):  # which it raises where it is not, or never was, connected
            if self._inbox is not None and self.connected:
                await self._inbox.unsubscribe()  # else a stream might still send what nobody takes
                await self._client.flush()
            await self._client.close()


def _check_files(options: EngineOptions) -> None:
    """Look into the files with seeds: the client library fails where there is none, or reads without end."""
    for path, form, what in (
        (options.nkey, _SEED, "seed"),
        (options.credentials, _CREDENTIALS, "JWT and seed of a user"),
    ):
        if path is None:
            continue
        import nkeys

        with open(path, "rb") as file:
            found = form.search(file.read(_FILE_BYTES))
        try:
            nkeys.from_seed(bytearray(found[1] if found is not None else b""))
        except (nkeys.NkeysError, ValueError):
            raise UsageError(f"{path}: this file has no {what}") from None


def _packet(message: Outgoing) -> bytes:
    """What ``publish`` of the client library makes, in a fifth of the time. There is no CR or LF in its words."""
    head = f"NATS/1.0\r\n{ORIGIN}: {message.origin}\r\n\r\n"  # in ASCII
    payload = message.payload
    start = f"HPUB {message.subject} {len(head)} {len(head) + len(payload)}\r\n{head}"
    return b"%b%b\r\n" % (start.encode(), payload)
