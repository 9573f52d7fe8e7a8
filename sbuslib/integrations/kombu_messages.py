"""Wire format of kombu's messages, and a queue of them that is kept in a process."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from secrets import token_bytes
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

import msgspec

from ..clients.recipes.queue import LONGEST_SECONDS, MOST_PRIORITY
from ..malformed import MALFORMED

MOST_KEPT: Final = 65_536
"""Messages in a queue that is kept in a process. New ones are lost while it is full."""

Raw = TypedDict(
    "Raw",
    {
        "body": Any,
        "content-type": str | None,
        "content-encoding": str | None,
        "headers": dict[str, Any],
        "properties": dict[str, Any],
    },
)
"""A message, as kombu's virtual transports have it."""

_UNTIL: Final = "sbus_until"
"""The property that says when a message expires, in seconds since 1970."""
_SUBMIT: Final = "sbus_submit"
"""The property that has the id of a message's submits. It does not travel."""


Kind: TypeAlias = Literal["direct", "topic", "fanout"]
"""Of an exchange."""


class Binding(NamedTuple):
    """Binding of a queue to an exchange of some kind under some routing key."""

    kind: Kind
    routing_key: str
    queue: str


encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Raw).decode
_decode_binding: Final = msgspec.msgpack.Decoder(Binding).decode


def decode_binding(payload: bytes) -> Binding | None:
    """Decode a binding; ``None`` for anything else."""
    try:
        return _decode_binding(payload)
    except MALFORMED:
        return None


def decode(payload: bytes) -> Raw | None:
    """Decode a message; ``None`` for anything else."""
    try:
        raw = _decode(payload)
    except MALFORMED:
        return None
    info = raw["properties"].get("delivery_info")
    if not isinstance(info, dict) or not all(isinstance(info.get(name), str) for name in ("exchange", "routing_key")):
        return None
    return raw


def delay_of(message: Raw) -> float | None:
    """Return the seconds until the time that Celery has set for a task. A time without a zone is left to the worker."""
    eta = message["headers"].get("eta")
    with suppress(ValueError):
        due = datetime.fromisoformat(eta) if isinstance(eta, str) else None
        if due is not None and due.tzinfo is not None:
            return max(0.0, min((due - datetime.now(UTC)).total_seconds(), LONGEST_SECONDS))
    return None


def expiry_of(message: Raw) -> float | None:
    """Return the seconds after which a message expires; kombu has this as text, in milliseconds.

    A task that expires goes to a worker all the same, since that reports it to whoever waits for its result.
    """
    if message["headers"].get("expires") is not None:
        return None
    expiration: Any = message["properties"].get("expiration")
    with suppress(ValueError, TypeError):
        return max(0.0, min(float(expiration) / 1000, LONGEST_SECONDS))
    return None


def priority_of(message: Raw) -> int:
    """Return the priority of a message: high ones go first."""
    priority: Any = message["properties"].get("priority")
    with suppress(ValueError, TypeError, OverflowError):
        return max(0, min(int(priority), MOST_PRIORITY))
    return 0


def submit_id(message: Raw) -> bytes:
    """Return the id of a message's submits. After an error kombu publishes it again, with the same properties."""
    id: bytes = message["properties"].setdefault(_SUBMIT, token_bytes(16))
    return id


def encode_message(message: Raw) -> bytes:
    """Encode a message. A property that cannot be encoded is left out, as AMQP leaves out unknown ones."""
    properties = {name: value for name, value in message["properties"].items() if name != _SUBMIT}
    try:
        return encode({**message, "properties": properties})
    except TypeError:
        properties = {name: value for name, value in properties.items() if _can_travel(value)}
        return encode({**message, "properties": properties})


def _can_travel(value: object) -> bool:
    try:
        encode(value)
    except TypeError:
        return False
    return True


def dated(message: Raw) -> Raw:
    """Return a message with the time when it expires: it may lie in a connection before it comes into a queue."""
    expires = expiry_of(message)
    if expires is None:
        return message
    return {**message, "properties": {**message["properties"], _UNTIL: time.time() + expires}}


class KeptQueue:
    """A queue that is kept in this process. Several threads may use it."""

    def __init__(self, *, auto_delete: bool = False) -> None:
        self.auto_delete = auto_delete  # whether it goes with its last consumer
        self.consumers = 0  # of all connections of this process
        self._levels = [deque[Raw]() for _ in range(MOST_PRIORITY + 1)]  # by priority
        self.lost = 0
        """Messages that came while it was full."""

    def put(self, message: Raw) -> bool:
        """Put a message in, unless the queue is full."""
        if len(self) >= MOST_KEPT:
            self.lost += 1
            return False
        self._levels[priority_of(message)].append(message)
        return True

    def put_back(self, message: Raw) -> None:
        """Put a message before others."""
        self._levels[priority_of(message)].appendleft(message)

    def take(self) -> Raw | None:
        """Take the next message that has not expired."""
        for level in reversed(self._levels):
            with suppress(IndexError):
                while True:
                    message: Raw = level.popleft()
                    until = message["properties"].get(_UNTIL)
                    if not isinstance(until, float) or until > time.time():
                        return message
        return None

    def clear(self) -> int:
        """Forget all messages; return how many there were."""
        number = len(self)
        for level in self._levels:
            level.clear()
        return number

    def __len__(self) -> int:
        return sum(map(len, self._levels))
