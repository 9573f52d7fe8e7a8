"""``Topic``: payloads of one type, encoded and checked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

import msgspec

from .errors import KeyFormatError, PayloadError, UsageError
from .malformed import MALFORMED
from .matcher import SEPARATOR
from .wire.packets import Key, Message

__all__ = ["AnyPublisher", "AwaitedAsker", "BlockingAsker", "Topic", "schemas"]

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R", covariant=True)


class AnyPublisher(Protocol[R]):
    """A hub or a client."""

    def publish(self, key: Key, payload: bytes = b"") -> R: ...


class BlockingAsker(Protocol):
    """A client that blocks its caller."""

    def request(self, key: Key, payload: bytes = b"", *, timeout: float | None = 10.0) -> bytes: ...


class AwaitedAsker(Protocol):
    """A client for asyncio."""

    def request(self, key: Key, payload: bytes = b"", *, timeout: float | None = 10.0) -> Awaitable[bytes]: ...


class Topic(Generic[T]):
    """Messages whose payload is a value of ``type``, any that msgspec knows.

    ::

        class Reading(msgspec.Struct):
            celsius: float

        readings = Topic(Reading)
        readings.publish(client, b"room/1/temp", Reading(21.5))
        for message, reading in readings.values(client): ...

    With a template of its keys, in which whole segments may have names, it makes keys and patterns, too::

        temperatures = Topic("room/{id}/temp", Reading)
        temperatures.key(id=1), temperatures.pattern()             # b"room/1/temp", b"room/*/temp"

    A template is written with ``/``; keys are joined with ``separator``: ``client.hub.separator``, where a hub has
    another. ``encoding`` is ``"msgpack"`` or ``"json"``. Raises :exc:`~sbuslib.errors.UsageError` for a type that
    msgspec cannot encode, and for a template that cannot be one.
    """

    @overload
    def __init__(
        self, template: type[T], /, *, encoding: Literal["msgpack", "json"] = "msgpack", separator: bytes = SEPARATOR
    ) -> None: ...

    @overload
    def __init__(
        self,
        template: str,
        type: type[T],
        /,
        *,
        encoding: Literal["msgpack", "json"] = "msgpack",
        separator: bytes = SEPARATOR,
    ) -> None: ...

    def __init__(
        self,
        template: Any,
        type: Any = None,
        /,
        *,
        encoding: Literal["msgpack", "json"] = "msgpack",
        separator: bytes = SEPARATOR,
    ) -> None:
        if type is None:
            template, type = None, template
        self.template: str | None = template  # ``None``: each message has its own key
        self.encoding = encoding
        self.separator = separator

        # Bytes that no segment may have.
        self._reserved = {"*", "\0", separator.decode("latin-1")}
        #: The parts of the template between separators.
        self._segments = [] if template is None else _parse(template)
        if encoding not in ("msgpack", "json"):
            raise UsageError(f"an encoding is 'msgpack' or 'json', not {encoding!r}")
        self.type = type  # of the values
        try:
            #: It checks each value, also those that are encoded.
            self._decoder: msgspec.msgpack.Decoder[T] | msgspec.json.Decoder[T] = (
                msgspec.msgpack.Decoder(type) if encoding == "msgpack" else msgspec.json.Decoder(type)
            )
        except TypeError as error:
            raise UsageError(f"{type!r} cannot be a topic's type: {error}") from None
        #: Of the chosen encoding.
        self._encoder = msgspec.msgpack.Encoder() if encoding == "msgpack" else msgspec.json.Encoder()

    def encode(self, value: T) -> bytes:
        """Encode ``value`` as a payload. Raises :exc:`~sbuslib.errors.PayloadError` for one of another type."""
        try:
            payload = self._encoder.encode(value)
            self._decoder.decode(payload)  # a value of the right class may still hold fields of wrong types
        except (*MALFORMED, TypeError) as error:
            raise PayloadError(f"not a {self.type!r}: {error}") from error
        return payload

    def decode(self, payload: bytes) -> T:
        """Decode the value of ``payload``. Raises :exc:`~sbuslib.errors.PayloadError` when it does not fit the type."""
        try:
            return self._decoder.decode(payload)
        except MALFORMED as error:
            raise PayloadError(f"not a {self.type!r}: {error}") from error

    def publish(self, publisher: AnyPublisher[R], key: Key, value: T) -> R:
        """Publish ``value`` under ``key`` through a hub or a client; to be awaited where the client's own verb is."""
        return publisher.publish(key, self.encode(value))

    def values(self, messages: Iterable[Message]) -> Iterator[tuple[Message, T]]:
        """Yield each message with its value. Raises :exc:`~sbuslib.errors.PayloadError` at one that does not fit."""
        for message in messages:
            yield message, self.decode(message.payload)

    def results(self, messages: Iterable[Message]) -> Iterator[tuple[Message, T | PayloadError]]:
        """Yield each message with its value, or with the error that explains why it does not fit."""
        for message in messages:
            try:
                yield message, self.decode(message.payload)
            except PayloadError as error:
                yield message, error

    # -- keys ---------------------------------------------------------------------------------------

    def key(self, **fields: object) -> bytes:
        """Return the key with these fields, which are text or numbers.

        Raises :exc:`~sbuslib.errors.KeyFormatError` for a field that is missing, unknown, or no segment of a key.
        """
        missing = {name for name, named in self._segments if named} - set(fields)
        if missing or self.template is None:
            raise KeyFormatError(f"{self.template or 'a topic without a template'} has no {', '.join(sorted(missing))}")
        return self._fill(fields)

    def pattern(self, **fields: object) -> bytes:
        """Return the pattern of all keys with these fields; omitted fields become wildcards. Raises as :meth:`key`."""
        if self.template is None:
            raise KeyFormatError("a topic without a template has no pattern")
        return self._fill(fields)

    def _fill(self, fields: dict[str, object]) -> bytes:
        unknown = set(fields) - {name for name, named in self._segments if named}
        if unknown:
            raise KeyFormatError(f"{self.template} has no field {', '.join(sorted(unknown))}")
        segments = []
        for name, named in self._segments:
            segment = str(fields[name]) if name in fields and named else "*" if named else name
            if named and name in fields and (not segment or segment == "!" or set(segment) & self._reserved):
                raise KeyFormatError(f"{name}={segment!r} cannot be a segment of a key")
            segments.append(segment)
        return self.separator.join(segment.encode() for segment in segments)

    def fields(self, key: bytes) -> dict[str, str] | None:
        """Return the fields of a key; ``None`` for one that does not fit the template."""
        segments = key.split(self.separator)
        if len(segments) != len(self._segments):
            return None
        found: dict[str, str] = {}
        for (name, named), segment in zip(self._segments, segments, strict=True):
            if not named and segment != name.encode():
                return None
            if named:
                found[name] = segment.decode("utf-8", "replace")
        return found

    # -- with patterns ------------------------------------------------------------------------------

    @overload
    def request(
        self, client: BlockingAsker, key: Key, value: T, *, answer: Topic[A], timeout: float | None = 10.0
    ) -> A: ...

    @overload
    def request(
        self, client: AwaitedAsker, key: Key, value: T, *, answer: Topic[A], timeout: float | None = 10.0
    ) -> Awaitable[A]: ...

    def request(self, client: Any, key: Key, value: T, *, answer: Topic[Any], timeout: float | None = 10.0) -> Any:
        """Send a request with a value, and decode the reply; to be awaited where ``client.request`` is. Raises as that,
        and :exc:`~sbuslib.errors.PayloadError`.
        """
        return _then(client.request(key, self.encode(value), timeout=timeout), answer.decode)

    def takes(self, function: Callable[[T, Any], A]) -> Callable[[Any], A]:
        """Return a function of a message, a job or a request, which calls ``function`` with its value and itself."""
        return lambda message: function(self.decode(message.payload), message)

    def answers(self, function: Callable[[T, Any], Any], *, answer: Topic[Any]) -> Callable[[Any], Any]:
        """Return a function for ``client.serve``: it calls ``function`` with the value and the request, and encodes the
        result by the topic ``answer``. A request that does not fit fails at its caller.
        """
        return lambda question: _then(function(self.decode(question.payload), question), answer.encode)


def _then(result: Any, function: Callable[[Any], Any]) -> Any:
    """``function`` of a result, or something to await that has it."""
    if not isinstance(result, Awaitable):
        return function(result)

    async def finish() -> Any:
        return function(await result)

    return finish()


def _parse(template: str) -> list[tuple[str, bool]]:
    """Return the segments of a template, each with whether it is a field."""
    segments: list[tuple[str, bool]] = []
    for segment in template.split("/"):
        named = segment[:1] == "{" and segment[-1:] == "}"
        name = segment[1:-1] if named else segment
        if (named and (not name.isidentifier() or (name, True) in segments)) or set(name) & set("{}*\0"):
            raise UsageError(f"{template!r} is no template: a field is a whole segment, as in room/{{id}}/temp")
        segments.append((name, named))
    return segments


def schemas(*topics: Topic[Any]) -> dict[str, Any]:
    """Return the JSON Schema of the types of topics, by template, or by the name of the type where there is none."""
    found, components = msgspec.json.schema_components([topic.type for topic in topics], ref_template="#/$defs/{name}")
    names = [topic.template or getattr(topic.type, "__name__", str(topic.type)) for topic in topics]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": components,
        "properties": dict(zip(names, found, strict=True)),
    }
