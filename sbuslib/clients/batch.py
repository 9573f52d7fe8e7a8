"""Publishing many messages with few packets, where a program publishes them one by one.

::

    with client.batch() as batch:
        for key, payload in readings:
            batch.publish(key, payload)

A batch collects messages. It sends them when there are as many as one packet takes, and at the end of the block. A hub
that does not take many messages in one packet gets each in a packet of its own.

- A key or payload that cannot be right raises in :meth:`BatchPublisher.publish`, and nothing of it is collected.
- When the block ends, by itself or with an error, all that was collected is sent, as with a file that is written to.
  Only an interrupt (Ctrl-C, a :class:`gevent.Timeout`, a task that is cancelled) drops what has not been sent.
- When sending fails, the error is raised where it happens: in :meth:`BatchPublisher.publish` or at the end of the
  block. What the batch was about to send is lost then, some of it perhaps not.

So a batch is no transaction: receivers may have some of its messages before the block ends. A batch is for one
greenlet, thread or task. What the client publishes beside it is sent at once, ahead of what the batch still holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Self, TypeAlias, cast

from ..errors import StateError
from ..limits import ClientLimits
from ..wire.batches import BATCH, Batch, pack
from ..wire.packets import Key, as_key
from .session import Session

__all__ = ["AioBatchPublisher", "BatchPublisher", "Pair", "encode_many", "in_parts", "plain"]

Pair: TypeAlias = tuple[Key, bytes]
"""Key and payload."""


def encode_many(session: Session, pairs: list[Pair], most: int) -> Iterator[bytes]:
    """The packets that publish ``pairs`` in order.

    To a hub that takes batches, ``most`` bytes of payload go in one packet. Raises as :meth:`.session.Session.encode`
    at a pair that cannot be published, after the packets of those before it.
    """
    done = 0
    if session.batches and len(pairs) > 1:
        if any(type(key) is str for key, _ in pairs):
            pairs = [(key.encode() if isinstance(key, str) else key, payload) for key, payload in pairs]
        packed = pack(cast("list[tuple[bytes, bytes]]", pairs), session.check_publishable, most)
        while done < len(pairs):
            try:
                packet, count = next(packed)
            except (TypeError, ValueError):
                break  # the pair at fault is found below
            yield packet
            done += count
    for key, payload in islice(pairs, done, None):
        yield session.encode(key, payload)


def plain(packets: list[bytes]) -> list[bytes]:
    """The same messages for a hub that takes no batches."""
    return [*chain.from_iterable(Batch.parse(one).plain if one.startswith(BATCH) else (one,) for one in packets)]


def in_parts(messages: Iterable[Pair], most: int) -> Iterator[list[Pair]]:
    """``messages``, up to ``most`` at a time. Those that come before an error are yielded before it is raised."""
    pairs = iter(messages)
    while True:
        part: list[Pair] = []
        try:
            part.extend(islice(pairs, most))
        except BaseException:
            yield part
            raise
        yield part
        if len(part) < most:
            return


class BatchPublisher:
    """Collects messages for a client or a hub: see the module. Made by ``batch()``, and used with ``with``."""

    __slots__ = ("_apiece", "_encode", "_headers", "_most", "_pairs", "_room", "_send")

    def __init__(
        self,
        headers: dict[Key, bytes],
        encode: Callable[[bytes, bytes], bytes],
        send: Callable[[list[Pair]], object],
        limits: ClientLimits,
    ) -> None:
        """``send`` is given as much as the limits let a batch hold. ``headers`` has the keys known to be good."""
        self._headers = headers
        self._encode = encode
        self._send = send  # of the client or hub
        self._most = limits.batch_bytes  # bytes that one packet takes
        # Each message counts as at least so many bytes, so that one sum bounds both bytes and messages.
        self._apiece = -(-limits.batch_bytes // limits.batch_messages)
        self._pairs: list[Pair] = []  # collected and not sent
        self._room = -1  # bytes that may still be collected; below zero outside the block, too

    def publish(self, key: Key, payload: bytes = b"") -> None:
        """Collect a message, and send what was collected if that fills a packet.

        Raises as ``publish`` of the client or hub does, and :exc:`~sbuslib.errors.StateError` outside the block.
        """
        if type(payload) is bytes:
            room = self._room - len(payload) - self._apiece
            try:
                if room > 0 and key in self._headers:
                    self._pairs.append((key, payload))
                    self._room = room
                    return
            except TypeError:  # a key that cannot be one
                pass
        if self._room < 0:
            raise StateError("a batch takes messages inside its 'with' block")
        key = as_key(key)
        packet = self._encode(key, payload)
        self._pairs.append((key, packet[packet.index(b"\0") + 1 :]))
        self._room -= len(packet) + self._apiece
        if self._room <= 0:
            self._send(self._take(self._most))

    def _take(self, room: int) -> list[Pair]:
        """What was collected, which the batch does not hold any more."""
        pairs, self._pairs, self._room = self._pairs, [], room
        return pairs

    def __enter__(self) -> Self:
        if self._room >= 0:
            raise StateError("this batch is in use: make another with batch()")
        self._room = self._most
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pairs = self._take(-1)
        if pairs and (error is None or isinstance(error, Exception)):
            self._send(pairs)


class AioBatchPublisher:
    """Collects messages for the asyncio client: see the module. Made by ``batch()``, and used with ``async with``."""

    __slots__ = ("_batch", "_full", "_send")

    def __init__(
        self,
        headers: dict[Key, bytes],
        encode: Callable[[bytes, bytes], bytes],
        send: Callable[[list[Pair]], Awaitable[object]],
        limits: ClientLimits,
    ) -> None:
        """As :class:`BatchPublisher`, with a ``send`` to be awaited."""
        self._full: list[list[Pair]] = []  # what is to be sent now
        self._batch = BatchPublisher(headers, encode, self._full.append, limits)
        self._send = send  # of the client or hub

    async def publish(self, key: Key, payload: bytes = b"") -> None:
        """As :meth:`BatchPublisher.publish`."""
        self._batch.publish(key, payload)
        if self._full:
            await self._send(self._full.pop())

    async def __aenter__(self) -> Self:
        self._batch.__enter__()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._batch.__exit__(kind, error, trace)
        if self._full:
            await self._send(self._full.pop())
