"""Keeps the newest message of each key, and tells it to clients that ask: see :mod:`sbuslib.recipes.last`.

An empty payload under a key says that there is no value: the key is forgotten, as in MQTT. Room is shared out among the
users that publish (:mod:`sbuslib.shares`): a user without room for a new value forgets its own oldest ones. The service
asks the hub to hold publishers back rather than lose a message. When it starts, it takes over what another service of
the same patterns has; what was published while there was none is not kept.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

import msgspec

from ..client import Client
from ..errors import DisconnectedError, NoServerError, StateError
from ..limits import PACKET_BYTES
from ..matcher import SEPARATOR, matches
from ..recipes.last import CaughtUp, KeptPage, question_key
from ..recipes.request import Question
from ..secrets import stranger
from ..shares import Shares
from ..wire import control
from ..wire.packets import Message

__all__ = ["KEYS", "SIZE", "Kept", "Retain", "Told"]

logger = logging.getLogger("sbuslib")

KEYS: Final = 100_000
"""Keys that are kept, unless told otherwise."""
SIZE: Final = 67_108_864
"""Bytes of keys and payloads that are kept, unless told otherwise."""
PAGE_BYTES: Final = 262_144
"""Bytes of values in one answer, if the first value is not longer."""
LONGEST: Final = PACKET_BYTES - 16_384
"""Bytes of the longest key and payload that are kept: in an answer there is a longer key besides."""


class Told(NamedTuple):
    """A message, and the user who is charged for it; ``None`` for the service's own user, root, and what it loads."""

    key: bytes
    payload: bytes
    user: int | None = None


class Kept:
    """The newest payload of each key, within bounds: a user without room for one more forgets its oldest.

    The user ``None`` may have all that is left; the others have shares.

    :param file: keeps it, too: an SQLite database, made where there is none. What :meth:`take` took is in it, also
        when the process is killed.

    Raises :exc:`~sbuslib.errors.StateError` for a file that cannot be used.
    """

    def __init__(self, file: str | os.PathLike[str] | None = None, keys: int = KEYS, size: int = SIZE) -> None:
        self.values: dict[bytes, bytes] = {}
        """By key, the oldest message first."""
        self.forgotten = 0
        """Keys that were forgotten for lack of room."""
        self._keys, self._bytes = Shares(keys, frozenset({None})), Shares(size, frozenset({None}))
        self._users: dict[bytes, int | None] = {}  # who is charged for each key
        self._of_user: dict[int | None, OrderedDict[bytes, None]] = {}  # the keys of each, the oldest message first
        self._order: list[bytes] = []  # the keys in order, or empty
        self._file: sqlite3.Connection | None = None
        if file is not None:
            try:
                self._file = sqlite3.connect(file, isolation_level=None, timeout=1)
                self._file.execute("PRAGMA locking_mode=EXCLUSIVE")
                self._file.execute("PRAGMA journal_mode=WAL")
                self._file.execute(
                    "CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY, payload BLOB NOT NULL, user INTEGER)"
                )
                rows = self._file.execute("SELECT key, payload, user FROM kept ORDER BY rowid").fetchall()
                self.take(Told(*row) for row in rows)
            except (sqlite3.Error, TypeError) as error:
                raise StateError(f"{os.fspath(file)}: {error}") from None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def clear(self) -> None:
        """Forget everything."""
        self.take([Told(key, b"") for key in self.values])

    def take(self, messages: Iterable[Told]) -> None:
        """Keep messages, newer than all before. Raises :exc:`sqlite3.Error` when the file cannot be written."""
        values, changed = self.values, dict[bytes, None]()
        for key, payload, user in messages:
            # 1. What the user may have in any case is what it has: a new value takes the place of older ones.
            keys, size = self._keys.held(user), self._bytes.held(user)
            was_there = self._forget(key)
            changed.pop(key, None)  # so that they are written in the order in which they came
            changed[key] = None

            # 2. Room, at the cost of this user alone.
            new = len(key) + len(payload)
            is_kept = bool(payload) and new <= LONGEST
            while is_kept and not (self._fits(self._keys, user, 1, keys) and self._fits(self._bytes, user, new, size)):
                oldest = next(iter(self._of_user.get(user, ())), None)
                self.forgotten += 1
                is_kept = oldest is not None
                if oldest is not None:
                    self._forget(oldest)
                    self._order = []
                    changed[oldest] = None

            # 3. It is the newest.
            if is_kept:
                values[key] = payload
                self._users[key] = user
                self._of_user.setdefault(user, OrderedDict())[key] = None
                self._keys.force(user, 1)
                self._bytes.force(user, new)
            if not (was_there and is_kept):
                self._order = []
        if self._file is not None and changed:
            self._write(self._file, changed)

    @staticmethod
    def _fits(shares: Shares, user: int | None, units: int, before: int) -> bool:
        return shares.held(user) + units <= before or shares.could_take(user, units)

    def _forget(self, key: bytes) -> bool:
        """Forget a key, if it is kept; whether it was."""
        payload = self.values.pop(key, None)
        if payload is None:
            return False
        user = self._users.pop(key)
        self._keys.give(user, 1)
        self._bytes.give(user, len(key) + len(payload))
        del self._of_user[user][key]
        if not self._of_user[user]:
            del self._of_user[user]
        return True

    def _write(self, file: sqlite3.Connection, changed: Iterable[bytes]) -> None:
        """Write keys, in the order of their messages, in one transaction."""
        gone = [(key,) for key in changed if key not in self.values]
        new = [(key, self.values[key], self._users[key]) for key in changed if key in self.values]
        file.execute("BEGIN")
        file.executemany("DELETE FROM kept WHERE key = ?", gone)
        file.executemany("REPLACE INTO kept VALUES (?, ?, ?)", new)
        file.execute("COMMIT")

    def page(self, pattern: bytes, after: bytes | None, separator: bytes = SEPARATOR) -> KeptPage:
        """The values of a pattern, whose keys come after one in order."""
        # 1. Where the keys begin that may match; they are sorted once after each change.
        if not self._order:
            self._order = sorted(self.values)
        start = pattern.partition(b"*")[0]
        at = bisect_left(self._order, start)
        if after is not None:
            at = max(at, bisect_right(self._order, after))

        # 2. As many as fit, and at least one.
        found, size = list[tuple[bytes, bytes]](), 0
        for number in range(at, len(self._order)):
            key = self._order[number]
            if not key.startswith(start):
                break
            if matches(pattern, key, separator):
                payload = self.values[key]
                size += len(key) + len(payload)
                if found and size > PAGE_BYTES:
                    return KeptPage(True, found)
                found.append((key, payload))
        return KeptPage(False, found)


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
        #: Its own client: nobody else may use it.
        self.client = Client(
            address, timeout=5.0, reconnect=True, senders=True, hard="block", on_notice=self._on_notice
        )
        with ExitStack() as undo:
            undo.callback(self.client.close)
            self.kept = Kept(file, keys, size)
            undo.callback(self.kept.close)
            self._separator = self.client.hub.separator
            self._own = question_key(b"", self._separator)

            # Another service may have values that came before this one. They are newer than those in the file.
            try:
                self._subscription = self.client.subscribe(*patterns, last=True)
                self.kept.clear()
            except (NoServerError, TimeoutError):
                self._subscription = self.client.subscribe(*patterns)
            self._take_all()
            for pattern in patterns:
                undo.enter_context(self.client.serve(question_key(pattern, self._separator), self._answer))
            self._stack = undo.pop_all()

    def run(self) -> None:
        """Keep and serve until :meth:`stop`. Raises :exc:`sqlite3.Error` when the file cannot be written."""
        with self._stack, suppress(DisconnectedError):
            while True:
                self._take(self._subscription.receive_many())

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self.client.close()

    def _take(self, messages: Iterable[Message]) -> None:
        own = self.client.credentials
        self.kept.take(
            Told(message.key, message.payload, stranger(message.sender, own, self._separator))
            for message in messages
            if not message.key.startswith(self._own) and not isinstance(message, CaughtUp)
        )

    def _take_all(self) -> None:
        with suppress(TimeoutError):
            self._take(self._subscription.receive_many(timeout=0))

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
