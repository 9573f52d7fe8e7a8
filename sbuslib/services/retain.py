"""Keeps the newest message of each key, and tells it to clients that ask: see :mod:`sbuslib.patterns.last`.

An empty payload under a key says that there is no value: the key is forgotten, as in MQTT. The service asks the hub to
hold publishers back rather than lose a message. When it starts, it takes over what another service of the same patterns
has; what was published while there was none is not kept.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Final

import msgspec

from ..client import Client
from ..errors import DisconnectedError, NoServerError, StateError
from ..limits import PACKET_BYTES
from ..matcher import SEPARATOR, matches
from ..patterns.last import CaughtUp, Page, question_key
from ..patterns.request import Question
from ..wire import control
from ..wire.packets import Message

__all__ = ["KEYS", "SIZE", "Kept", "Retain"]

logger = logging.getLogger("sbuslib")

KEYS: Final = 100_000
"""Keys that are kept, unless told otherwise."""
SIZE: Final = 67_108_864
"""Bytes of keys and payloads that are kept, unless told otherwise."""
PAGE_BYTES: Final = 262_144
"""Bytes of values in one answer, if the first value is not longer."""
LONGEST: Final = PACKET_BYTES - 16_384
"""Bytes of the longest key and payload that are kept: in an answer there is a longer key besides."""


class Kept:
    """The newest payload of each key, within bounds: beyond them, keys whose message is oldest are forgotten.

    :param file: keeps it, too: an SQLite database, made where there is none. What :meth:`take` took is in it, also
        when the process is killed.

    Raises :exc:`~sbuslib.errors.StateError` for a file that cannot be used.
    """

    def __init__(self, file: str | os.PathLike[str] | None = None, keys: int = KEYS, size: int = SIZE) -> None:
        self.values: dict[bytes, bytes] = {}
        """By key, the oldest message first."""
        self.forgotten = 0
        """Keys that were forgotten for lack of room."""
        self._keys = keys
        self._size = size
        self._left = size
        self._order: list[bytes] = []  # the keys in order, or empty
        self._file: sqlite3.Connection | None = None
        if file is not None:
            try:
                self._file = sqlite3.connect(file, isolation_level=None, timeout=1)
                self._file.execute("PRAGMA locking_mode=EXCLUSIVE")
                self._file.execute("PRAGMA journal_mode=WAL")
                self._file.execute("CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY, payload BLOB NOT NULL)")
                self.take(Message(*row) for row in self._file.execute("SELECT * FROM kept ORDER BY rowid").fetchall())
            except (sqlite3.Error, TypeError) as error:
                raise StateError(f"{os.fspath(file)}: {error}") from None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def clear(self) -> None:
        """Forget everything."""
        self.take([Message(key, b"") for key in self.values])

    def take(self, messages: Iterable[Message]) -> None:
        """Keep messages, newer than all before. Raises :exc:`sqlite3.Error` when the file cannot be written."""
        values, changed = self.values, dict[bytes, bytes]()
        for message in messages:
            key, payload = message.key, message.payload
            old = values.pop(key, None)
            if old is not None:
                self._left += len(key) + len(old)
            if payload and len(key) + len(payload) <= LONGEST:
                values[key] = payload
                self._left -= len(key) + len(payload)
            changed.pop(key, None)  # so that they are written in the order in which they came
            changed[key] = values.get(key, b"")
            if old is None or not changed[key]:
                self._order = []
            while len(values) > self._keys or self._left < 0:
                oldest = next(iter(values))
                self._left += len(oldest) + len(values.pop(oldest))
                changed[oldest] = b""
                self.forgotten += 1
                self._order = []
        if self._file is not None and changed:
            self._file.execute("BEGIN")
            self._file.executemany(
                "DELETE FROM kept WHERE key = ?", [(key,) for key, new in changed.items() if not new]
            )
            self._file.executemany("REPLACE INTO kept VALUES (?, ?)", (pair for pair in changed.items() if pair[1]))
            self._file.execute("COMMIT")

    def page(self, pattern: bytes, after: bytes | None, separator: bytes = SEPARATOR) -> Page:
        """The values of a pattern, whose keys come after one in order."""
        if not self._order:
            self._order = sorted(self.values)
        start = pattern.partition(b"*")[0]
        at = bisect_left(self._order, start)
        if after is not None:
            at = max(at, bisect_right(self._order, after))
        found, size = list[tuple[bytes, bytes]](), 0
        for number in range(at, len(self._order)):
            key = self._order[number]
            if not key.startswith(start):
                break
            if matches(pattern, key, separator):
                payload = self.values[key]
                size += len(key) + len(payload)
                if found and size > PAGE_BYTES:
                    return Page(True, found)
                found.append((key, payload))
        return Page(False, found)


class Retain:
    """Keeps what a hub carries under ``patterns``, and serves it, from a greenlet that calls :meth:`run`.

    Raises as :class:`~sbuslib.Client` and :class:`Kept`.
    """

    def __init__(
        self,
        address: str | os.PathLike[str] | None,
        *patterns: bytes,
        file: str | os.PathLike[str] | None = None,
        keys: int = KEYS,
        size: int = SIZE,
    ) -> None:
        self.client = Client(address, reconnect=True, on_notice=self._on_notice)
        with ExitStack() as undo:
            undo.callback(self.client.close)
            self.kept = Kept(file, keys, size)
            undo.callback(self.kept.close)
            features = self.client.features
            self._separator = features.separator if features is not None else SEPARATOR
            self._own = question_key(b"", self._separator)
            self.client.flood_control(hard="block")
            try:
                self.client.subscribe(*patterns, last=True)
                self.kept.clear()
            except NoServerError:
                self.client.subscribe(*patterns)
            self._take_all()
            for pattern in patterns:
                undo.enter_context(self.client.serve(question_key(pattern, self._separator), self._answer))
            self._stack = undo.pop_all()

    def run(self) -> None:
        """Keep and serve until :meth:`stop`. Raises :exc:`sqlite3.Error` when the file cannot be written."""
        with self._stack, suppress(DisconnectedError):
            while True:
                self._take(self.client.receive_many())

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self.client.close()

    def _take(self, messages: Iterable[Message]) -> None:
        self.kept.take(
            message
            for message in messages
            if not message.key.startswith(self._own) and not isinstance(message, CaughtUp)
        )

    def _take_all(self) -> None:
        with suppress(TimeoutError):
            self._take(self.client.receive_many(timeout=0))

    def _answer(self, question: Question) -> bytes:
        """A page, of all that was published before the question."""
        pattern = question.key[len(self._own) :]
        after = msgspec.msgpack.decode(question.payload, type=bytes | None)
        self.client.sync("tree")
        self._take_all()
        return msgspec.msgpack.encode(self.kept.page(pattern, after, self._separator))

    def _on_notice(self, notice: control.Notice) -> None:
        if isinstance(notice, control.Lost):
            logger.warning("last values: %d messages were lost (%s); older ones are kept", notice.count, notice.cause)
