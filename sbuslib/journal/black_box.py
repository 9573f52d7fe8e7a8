"""``BlackBox``: keeps the last messages of a bus in memory, and records them after a trigger.

A black box is a client recorder that forgets: messages older than its time, or beyond its bytes, are dropped and
counted. When a message under one of its keys comes, or :meth:`BlackBox.trigger` is called, all that it holds goes to
the journal, after a gap row of the cause :data:`FORGOTTEN` with the number of messages that are missing before it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from time import time_ns
from typing import Any, Final

from ..matcher import matches
from ..wire.columns import Columns
from ..wire.packets import Message
from .chunks import Chunk
from .client_recorder import ClientRecorder
from .writer import Gap

FORGOTTEN: Final = "forgotten"
"""The cause of a gap row that stands for messages that a black box did not keep."""

_PACKET_BYTES: Final = 100
"""Memory overhead of a packet: the object and its place in a list."""


class BlackBox(ClientRecorder):
    """Records the last ``seconds`` of a bus when a message comes whose key matches one of ``on``.

    :param most_bytes: of messages in memory; the oldest are forgotten beyond that.
    :param on_written: called with the number of messages after each time that they were handed to the journal.

    The other parameters and the errors are those of :class:`.client_recorder.ClientRecorder`.
    """

    def __init__(
        self,
        address: str | os.PathLike[str] | None,
        directory: str | os.PathLike[str],
        *,
        seconds: float,
        on: tuple[bytes, ...] = (),
        most_bytes: int = 64 << 20,
        on_written: Callable[[int], object] = lambda count: None,
        patterns: tuple[bytes, ...] = (b"",),
        **options: Any,
    ) -> None:
        #: Nanoseconds that are kept.
        self._span = round(seconds * 1e9)
        self._on = on
        self._most = most_bytes
        self._on_written = on_written

        #: The messages in memory, the oldest first.
        self._kept = deque[Chunk]()
        #: Their memory, in bytes.
        self._kept_bytes = 0
        #: Messages that were not kept since the last recording.
        self._forgotten = 0
        #: The time of the first of them, in nanoseconds; 0: of none.
        self._forgotten_since = 0
        #: Whether the kept messages are to be recorded now.
        self._triggered = False
        super().__init__(address, directory, patterns=(*patterns, *on), **options)

    def trigger(self) -> None:
        """Record the messages in memory soon. It may be called by a signal handler."""
        self._triggered = True

    def _keep(self, now: int, messages: list[Message]) -> None:
        super()._keep(now, messages)
        separator = self._namespace.separator
        if any(matches(pattern, message.key, separator) for message in messages for pattern in self._on):
            self.trigger()

    def _hand_over(self) -> None:
        """Keep new messages, forget those that are too old or too many, and record the rest after a trigger."""
        # 1. Keep new messages.
        self._kept += self._chunks
        self._kept_bytes += sum(_cost(packet) for chunk in self._chunks for packet in _packets(chunk))
        self._chunks, self._waiting, self._waiting_bytes = [], 0, 0

        # 2. Forget messages that are too old, or beyond the bytes.
        oldest = time_ns() - self._span
        while self._kept and (self._kept[0].time_ns < oldest or self._kept_bytes > self._most):
            self._forget(self._kept.popleft(), oldest)

        # 3. After a trigger, record a gap row for forgotten messages, and the rest.
        if not self._triggered:
            return
        self._triggered = False
        if self._forgotten:
            self._writer.put([], [Gap(self._forgotten_since, FORGOTTEN, self._forgotten)], 0, 0)
            self._forgotten = self._forgotten_since = 0
        self._chunks = [*self._kept]
        self._waiting = sum(map(len, map(_packets, self._chunks)))
        self._waiting_bytes = self._kept_bytes
        self._kept.clear()
        self._kept_bytes = 0
        written = self._waiting
        super()._hand_over()
        self._on_written(written)

    def _forget(self, chunk: Chunk, oldest: int) -> None:
        """Forget the first messages of a chunk, or all of them if it is too old."""
        packets, count = _packets(chunk), 0
        while count < len(packets) and (chunk.time_ns < oldest or self._kept_bytes > self._most):
            self._kept_bytes -= _cost(packets[count])
            count += 1
        self._forgotten_since = self._forgotten_since or chunk.time_ns
        self._forgotten += count
        if count < len(packets):
            self._kept.appendleft(chunk._replace(messages=packets[count:]))


def _packets(chunk: Chunk) -> Sequence[bytes]:
    assert not isinstance(chunk.messages, Columns)  # a client recorder gets packets
    return chunk.messages


def _cost(packet: bytes) -> int:
    return len(packet) + _PACKET_BYTES
