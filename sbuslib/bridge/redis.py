"""Redis as the broker of a bridge. See :mod:`.broker` for what all brokers share.

Without a stream, messages are published to channels, which have no headers: a bridge refuses lists of patterns that
overlap. With a stream, each message is an entry of it, and bridges of one bus are a consumer group, which goes on where
it stopped. A stream holds every key that is exported to it, and each bridge picks the keys that it imports.
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
"""Length of one blocking read of a stream: as long a bridge that ends may have to wait."""
_AGAIN_SECONDS: Final = 10.0
"""Seconds without acknowledgement after which a message is claimed by another bridge."""
_PAUSE: Final = 0.5
"""Seconds between attempts."""
_FAILURES: Final = RedisError, OSError, ValueError, TypeError, LookupError
"""The last three: the client library cannot parse an answer of the server."""


class _Secure(SSLConnection):  # type: ignore[misc]
    """A connection with the TLS context of the options. The library's own trusts the system's authorities, too."""

    def __init__(self, *, context: SSLContext, **given: Any) -> None:
        super().__init__(**given)
        self.ssl_context.context = context


class Redis(Broker):
    """Connections to a Redis server, by ``redis``: one that publishes, one that receives."""

    def __init__(self, url: str, options: BrokerOptions, separator: bytes, warn: Callable[[str], object]) -> None:
        super().__init__(url, options, separator, warn)
        # A star of Redis matches separators, too. So more comes than is wanted, and the bridge filters it.
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
        """Receive, or check that the server answers, and begin anew when it was away."""
        while True:
            try:
                await self._connection.ping()
                self._on_connected()

                if not patterns:
                    self.ready.set()
                    await asyncio.sleep(_PAUSE)
                elif self._stream is not None:
                    await self._read_stream(take, self._stream, f"sbus-{name}")
                else:
                    await self._read_channels(take, self.name_format.filters_for(patterns))
            except _FAILURES as error:
                self.connected.clear()
                self.warn_once(str(error))
                await asyncio.sleep(_PAUSE)

    async def _look(self) -> None:
        """Check that the server answers, after sending has failed: the connection that receives may be whole."""
        if not self.connected.is_set():
            await self._connection.ping()
            self._on_connected()

    async def _read_channels(self, take: Take, filters: list[str]) -> None:
        # With several filters, whose stars match separators, a message may come once for each.
        pattern = filters[0] if len(filters) == 1 else self.name_format.filter_of(b"")
        async with self._connection.pubsub() as channels:
            await channels.psubscribe(pattern)
            messages: list[Incoming] = []
            while True:
                await self._look()
                event = await channels.get_message(timeout=0 if messages else _PAUSE)
                if event is not None and event["type"] == "psubscribe":
                    self.ready.set()
                elif event is not None and event["type"] == "pmessage":
                    messages.append(Incoming(_text(event["channel"]), event["data"]))
                if messages and (event is None or len(messages) >= BATCH):
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
        claimed = 0.0  # when the last claim found nothing more
        # First the entries that this bridge read before the connection ended, so that order is kept.
        begin = "0"
        while True:
            await self._look()
            async with self._reading:
                if begin == ">" and monotonic() - claimed > _AGAIN_SECONDS:
                    # Messages that another bridge, or this one before, read and did not acknowledge.
                    again = int(1_000 * _AGAIN_SECONDS)
                    answer = await connection.xautoclaim(stream, group, self._id, again, count=BATCH)
                    entries = answer[1]
                    if len(entries) < BATCH:
                        claimed = monotonic()
                else:
                    answer = await connection.xreadgroup(group, self._id, {stream: begin}, BATCH, _BLOCK_MILLISECONDS)
                    entries = answer[0][1] if answer else []
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
            answers = await pipeline.execute(raise_on_error=False)  # the text of its error is the whole message
        except _FAILURES as error:
            self.connected.clear()
            raise ConnectionError(str(error)) from error
        refused = next((answer for answer in answers if isinstance(answer, RedisError)), None)
        if refused is not None:  # by a server that is there
            raise ConnectionError(str(refused))

    async def close(self) -> None:
        await self._connection.aclose()


async def _no_acknowledgement() -> None:
    """Do nothing: channels have no acknowledgements."""


def _entry(fields: dict[bytes, bytes] | None) -> Incoming:
    """Decode an entry of a stream. One of another form, or that was trimmed away, becomes a message without a key."""
    fields = fields or {}
    return Incoming(_text(fields.get(b"subject", b"")), fields.get(b"payload", b""), _text(fields.get(b"origin", b"")))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
