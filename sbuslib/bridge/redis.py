"""Redis: what is different about it. See :mod:`.broker` for what is not.

Without a stream, messages are published to channels, which have no headers: a bridge refuses lists of patterns that
overlap. With a stream, each message is an entry of it, and bridges of one bus are a consumer group, which goes on where
it stopped. A stream holds every key that is exported to it, and each bridge picks what it imports.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from ssl import SSLContext
from time import monotonic
from typing import Any, Final

from redis.asyncio import Redis as Connection
from redis.asyncio import SSLConnection
from redis.exceptions import RedisError, ResponseError

from ..federation.name_format import NameFormat
from .broker import BATCH, Broker, BrokerOptions, Incoming, Leaving, Take

_STREAM_LENGTH: Final = 1_000_000
"""About how many entries of a stream are kept."""
_BLOCK_MILLISECONDS: Final = 250
"""How long a stream is asked for further messages: so long a bridge that ends may have to wait."""
_AGAIN_SECONDS: Final = 10.0
"""What was not acknowledged for so long is handed out again."""
_PAUSE: Final = 0.5
"""Seconds between attempts."""
_FAILURES: Final = RedisError, OSError, ValueError, TypeError, LookupError
"""With the last three, the client library cannot read what the server says."""


class _Secure(SSLConnection):  # type: ignore[misc]
    """A connection with the TLS of the options. That of the library trusts all that the system trusts besides."""

    def __init__(self, *, context: SSLContext, **given: Any) -> None:
        super().__init__(**given)
        self.ssl_context.context = context


class Redis(Broker):
    """Connections to a Redis server, by ``redis``: one that publishes, one that receives."""

    def __init__(self, url: str, options: BrokerOptions, separator: bytes, warn: Callable[[str], object]) -> None:
        super().__init__(url, options, separator, warn)
        # A star of Redis goes on over separators. That takes too much, which the bridge sorts out.
        self.name_format = NameFormat(options.start("/"), "/", "*", "*", specials="/*?[]^\\", separator=separator)
        self._stream = options.stream  # None: channels
        self.has_origins = self.keeps = self.shares = options.stream is not None  # a stream can do what channels cannot
        given: dict[str, Any] = {"username": options.user, "password": options.password}
        tls = options.tls(url.startswith("rediss:"))
        if tls is not None:
            url = url.replace("rediss:", "redis:", 1)
            given |= {"connection_class": _Secure, "context": tls}
        # A pool, which connects again by itself.
        self._connection = Connection.from_url(url, **{key: value for key, value in given.items() if value is not None})
        self._id = secrets.token_hex(8)  # of this consumer in its group
        self._reading = asyncio.Lock()  # a stream, from the question until its answer is acknowledged

    async def run(self, take: Take, patterns: Sequence[bytes], bus: str, name: str) -> None:
        """Receive, or look whether the server is there, and begin anew when it was away."""
        while True:
            try:
                await self._connection.ping()
                self._came()

                if not patterns:
                    self.ready.set()
                    await asyncio.sleep(_PAUSE)
                elif self._stream is not None:
                    await self._read_stream(take, self._stream, f"sbus-{name}")
                else:
                    await self._read_channels(take, self.name_format.filters_for(patterns))
            except _FAILURES as error:
                self.connected.clear()
                self.tell(str(error))
                await asyncio.sleep(_PAUSE)

    async def _look(self) -> None:
        """Look whether the server is there, once what was sent has failed: the connection that receives may go on."""
        if not self.connected.is_set():
            await self._connection.ping()
            self._came()

    async def _read_channels(self, take: Take, filters: list[str]) -> None:
        # With several, whose stars go over separators, a message may come once for each.
        pattern = filters[0] if len(filters) == 1 else self.name_format.filter_of(b"")
        async with self._connection.pubsub() as channels:
            await channels.psubscribe(pattern)
            messages: list[Incoming] = []
            while True:
                await self._look()
                told = await channels.get_message(timeout=0 if messages else _PAUSE)
                if told is not None and told["type"] == "psubscribe":
                    self.ready.set()
                elif told is not None and told["type"] == "pmessage":
                    messages.append(Incoming(_text(told["channel"]), told["data"]))
                if messages and (told is None or len(messages) >= BATCH):
                    await take(messages, _no_acknowledgement)
                    messages = []

    async def _read_stream(self, take: Take, stream: str, group: str) -> None:
        connection = self._connection
        try:
            await connection.xgroup_create(stream, group, id="$", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        self.ready.set()
        looked = 0.0
        begin = "0"  # first what this bridge was handed before the connection ended, so that it stays in order
        while True:
            await self._look()
            async with self._reading:
                if begin == ">" and monotonic() - looked > _AGAIN_SECONDS:
                    # What another bridge, or this one before, was handed and did not acknowledge.
                    again = int(1_000 * _AGAIN_SECONDS)
                    told = await connection.xautoclaim(stream, group, self._id, again, count=BATCH)
                    entries = told[1]
                    if len(entries) < BATCH:
                        looked = monotonic()
                else:
                    told = await connection.xreadgroup(group, self._id, {stream: begin}, BATCH, _BLOCK_MILLISECONDS)
                    entries = told[0][1] if told else []
                    if not entries:
                        begin = ">"
                if entries:
                    acknowledge = partial(connection.xack, stream, group, *(number for number, _ in entries))
                    await take([_entry(fields) for _, fields in entries], acknowledge)

    async def drain(self) -> None:
        await self._reading.acquire()

    async def send(self, messages: Sequence[Leaving]) -> None:
        pipeline = self._connection.pipeline(transaction=False)
        for message in messages:
            if self._stream is None:
                pipeline.publish(message.subject, message.payload)
            else:
                fields: Any = {"subject": message.subject, "payload": message.payload, "origin": message.origin}
                pipeline.xadd(self._stream, fields, maxlen=_STREAM_LENGTH)

        # One round trip for all of them.
        try:
            answers = await pipeline.execute(raise_on_error=False)  # the error that it raises tells the message
        except _FAILURES as error:
            self.connected.clear()
            raise ConnectionError(str(error)) from error
        refused = next((answer for answer in answers if isinstance(answer, RedisError)), None)
        if refused is not None:  # by a server that is there
            raise ConnectionError(str(refused))

    async def close(self) -> None:
        await self._connection.aclose()


async def _no_acknowledgement() -> None:
    """Channels know none."""


def _entry(fields: dict[bytes, bytes] | None) -> Incoming:
    """A message of a stream; one that nobody wants for an entry of another form, or that was trimmed away."""
    told = fields or {}
    return Incoming(_text(told.get(b"subject", b"")), told.get(b"payload", b""), _text(told.get(b"origin", b"")))


def _text(told: bytes) -> str:
    return told.decode("utf-8", "replace")
