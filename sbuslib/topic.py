"""``Topic``: payloads of one type, encoded and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from .errors import PayloadError, UsageError
from .wire.packets import Message

__all__ = ["Publisher", "Topic"]

T = TypeVar("T")
R = TypeVar("R", covariant=True)


class Publisher(Protocol[R]):
    """A hub or a client."""

    def publish(self, key: bytes, payload: bytes = b"") -> R: ...


class Topic(Generic[T]):
    """Messages whose payload is a value of ``type``, any that msgspec knows.

    ::

        class Reading(msgspec.Struct):
            celsius: float

        readings = Topic(Reading)
        readings.publish(client, b"room/1/temp", Reading(21.5))
        for message, reading in readings.values(client): ...

    ``encoding`` is ``"msgpack"`` or ``"json"``. Raises :exc:`~sbuslib.errors.UsageError` for a type that
    msgspec cannot encode.
    """

    def __init__(self, type: type[T], *, encoding: Literal["msgpack", "json"] = "msgpack") -> None:
        if encoding not in ("msgpack", "json"):
            raise UsageError(f"an encoding is 'msgpack' or 'json', not {encoding!r}")
        self.type = type
        try:
            self._decoder: msgspec.msgpack.Decoder[T] | msgspec.json.Decoder[T] = (
                msgspec.msgpack.Decoder(type) if encoding == "msgpack" else msgspec.json.Decoder(type)
            )
        except TypeError as error:
            raise UsageError(f"{type!r} cannot be a topic's type: {error}") from None
        self._encoder = msgspec.msgpack.Encoder() if encoding == "msgpack" else msgspec.json.Encoder()

    def encode(self, value: T) -> bytes:
        """The payload for ``value``. Raises :exc:`~sbuslib.errors.PayloadError` for one of another type."""
        try:
            payload = self._encoder.encode(value)
            self._decoder.decode(payload)  # a value of the right class may still hold fields of wrong types
        except (msgspec.MsgspecError, TypeError) as error:
            raise PayloadError(f"not a {self.type!r}: {error}") from error
        return payload

    def decode(self, payload: bytes) -> T:
        """The value of ``payload``. Raises :exc:`~sbuslib.errors.PayloadError` when it does not fit the type."""
        try:
            return self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise PayloadError(f"not a {self.type!r}: {error}") from error

    def publish(self, publisher: Publisher[R], key: bytes, value: T) -> R:
        """Publish ``value`` under ``key`` through a hub or a client; to be awaited where the client's own verb is."""
        return publisher.publish(key, self.encode(value))

    def values(self, messages: Iterable[Message]) -> Iterator[tuple[Message, T]]:
        """Each message with its value. Raises :exc:`~sbuslib.errors.PayloadError` at one that does not fit."""
        for message in messages:
            yield message, self.decode(message.payload)
