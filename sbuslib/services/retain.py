"""Service of retained messages: keeps the newest of each key, and answers clients: see
:mod:`sbuslib.clients.recipes.last`.

An empty payload removes the value of a key, as in MQTT. Room is shared out among the
users that publish (:mod:`sbuslib.shares`): a user without room for a new value forgets its own oldest ones. The service
asks the hub to hold publishers back rather than lose a message.

It keeps from its start on. Beside that it takes over what another service of the same patterns has, which is older,
and then it answers. Whether there is another cannot always be known at once: so two that begin together do not wait for
each other. Messages that were published while there was no service are not kept.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

import gevent
import msgspec
from gevent.event import Event

from ..client import Client
from ..clients.recipes.last import TRIES, KeptPage, question_key
from ..clients.recipes.request import Request
from ..errors import DisconnectedError, NoServerError, PeerError, ReplyError, StateError
from ..kernel.regular_files import open_regular
from ..limits import PACKET_BYTES
from ..malformed import MALFORMED
from ..matcher import matches
from ..secrets import stranger
from ..shares import Shares
from ..wire import control
from ..wire.packets import Message

logger = logging.getLogger("sbuslib")

KEYS: Final = 100_000
"""Default limit of keys."""
SIZE: Final = 67_108_864
"""Default limit of bytes of keys and payloads."""
KEY_EXTRA: Final = 100
"""Rough overhead in memory of a noted key beside its bytes."""
PAGE_BYTES: Final = 262_144
"""Bytes of values in one answer, if the first value is not longer."""
LONGEST: Final = PACKET_BYTES - 16_384
"""Bytes of the longest key and payload that are kept: in an answer there is a longer key besides."""


class Told(NamedTuple):
    """A message, and the user who is charged for it; ``None`` for the service's own user, root, and loaded values."""

    key: bytes
    payload: bytes
    user: int | None = None


class Kept:
    """The newest payload of each key, within bounds: a user without room for one more forgets its oldest.

    The user ``None`` may have all that is left; the others have shares.

    :param file: keeps it, too: an SQLite database, made where there is none. Messages that :meth:`take` took are in it,
        also when the process is killed.

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

        # The file is this process's alone, and read whole: all values are in memory.
        self._file: sqlite3.Connection | None = None
        if file is not None:
            try:
                os.close(open_regular(file, os.O_RDWR | os.O_CREAT))  # SQLite's other files get its mode
                self._file = sqlite3.connect(file, isolation_level=None, timeout=1)
                self._file.execute("PRAGMA locking_mode=EXCLUSIVE")
                self._file.execute("PRAGMA journal_mode=WAL")
                self._file.execute(
                    "CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY, payload BLOB NOT NULL, user INTEGER)"
                )
                rows = self._file.execute("SELECT key, payload, user FROM kept ORDER BY rowid").fetchall()
                self.take(Told(*row) for row in rows)
            except (sqlite3.Error, OSError, TypeError) as error:
                raise StateError(f"{os.fspath(file)}: {error}") from None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def take_older(self, older: Iterable[Told], newer: Collection[bytes]) -> None:
        """Replace all values by these, except for the keys ``newer``, whose values came later."""
        gone = [Told(key, b"") for key in self.values if key not in newer]
        later = [Told(key, payload, self._users[key]) for key, payload in self.values.items() if key in newer]
        self.take([*gone, *(entry for entry in older if entry.key not in newer), *later])

    def take(self, messages: Iterable[Told]) -> None:
        """Keep messages, newer than all before. Raises :exc:`sqlite3.Error` when the file cannot be written."""
        values, changed = self.values, dict[bytes, None]()
        for key, payload, user in messages:
            # 1. A user keeps the room that it has: a new value replaces older ones.
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
        """Forget a key. Returns whether it was kept."""
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

    def page(self, pattern: bytes, after: bytes | None, separator: bytes) -> KeptPage:
        """Return values of a pattern, from the first key after a given one."""
        # 1. The range of keys that may match; they are sorted once after each change.
        if not self._order:
            self._order = sorted(self.values)
        start = pattern.partition(b"*")[0]
        at = bisect_left(self._order, start)
        if after is not None:
            at = max(at, bisect_right(self._order, after))

        # 2. As many as fit, and at least one.
        values, size = list[tuple[bytes, bytes]](), 0
        for number in range(at, len(self._order)):
            key = self._order[number]
            if not key.startswith(start):
                break
            if matches(pattern, key, separator):
                payload = self.values[key]
                size += len(key) + len(payload)
                if values and size > PAGE_BYTES:
                    return KeptPage(True, values)
                values.append((key, payload))
        return KeptPage(False, values)


class Retain:
    """Keeps the messages of a hub under ``patterns``, and serves them, from a greenlet that calls :meth:`run`.

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
        #: Its own client, for no other use. Its own requests do not come back to it.
        self.client = Client(
            address, timeout=5.0, reconnect=True, senders=True, echo=False, hard="block", on_notice=self._on_notice
        )
        self.is_settled = Event()
        """Set when it answers: values of another service were taken over, or there is none."""
        self.taken_over: int | None = None
        """Number of keys that another service had; ``None``: there is none, or it did not answer."""
        self._patterns = patterns  # the kept values
        #: Keys of messages since another service was asked.
        self._came: set[bytes] | None = None
        self._room = 0  # bytes of noted keys that are still allowed
        self._most_bytes = size  # of keys that are noted
        self._error: Exception | None = None  # why it could not begin to answer
        with ExitStack() as undo:
            undo.callback(self.client.close)
            self.kept = Kept(file, keys, size)
            undo.callback(self.kept.close)
            self._separator = self.client.hub.separator
            self._own = question_key(b"", self._separator)

            # Look for another service before this client receives these requests itself, as with the empty pattern.
            self._questions = [question_key(pattern, self._separator) for pattern in patterns]
            is_alone = all(self.client.hub.is_wanted(key) is False for key in self._questions)
            self._subscription = self.client.subscribe(*patterns)
            self._take_all()
            self._stack = undo
            if is_alone:
                self._serve()
            self._stack = undo.pop_all()

    def run(self) -> None:
        """Keep and serve until :meth:`stop`.

        Raises :exc:`sqlite3.Error` when the file cannot be written, and as :class:`~sbuslib.Client`.
        """
        with self._stack, suppress(DisconnectedError):
            if not self.is_settled.is_set():
                self._stack.callback(gevent.spawn(self._settle).kill)
            while True:
                self._take(self._subscription.receive_many())
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self.client.close()

    def _take(self, messages: Iterable[Message]) -> None:
        own = self.client.credentials
        entries = [
            Told(message.key, message.payload, stranger(message.sender, own, self._separator))
            for message in messages
            if not message.key.startswith(self._own)
        ]
        self.kept.take(entries)
        if self._came is not None:
            self._note(entries)

    def _note(self, entries: Iterable[Told]) -> None:
        """Note the keys that came, as long as there is room."""
        assert self._came is not None
        for key, _, _ in entries:
            if key not in self._came:
                self._came.add(key)
                self._room -= len(key) + KEY_EXTRA
        if self._room < 0:
            self._came = None

    def _take_all(self) -> None:
        self._take(self._subscription.receive_many(timeout=0))

    # -- another service ----------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take over the values of another service, if there is one, and answer from then on."""
        try:
            try:
                self._take_over()
            except (NoServerError, TimeoutError):
                pass  # it was no service but a subscriber to everything, or has gone
            except (ReplyError, PeerError) as error:
                logger.warning("last values: what another service keeps is not taken over: %s", error)
            self._came = None
            self._serve()
        except Exception as error:
            self._error = None if isinstance(error, DisconnectedError) else error
            self.client.close()

    def _serve(self) -> None:
        for key in self._questions:
            self._stack.enter_context(self.client.serve(key, self._answer))
        self.is_settled.set()

    def _take_over(self) -> None:
        """Fetch values as a subscription with last values does (:mod:`sbuslib.clients.recipes.last`): later messages
        win.
        """
        client = self.client
        for _ in range(TRIES):
            # 1. Messages until now are in the answer, or newer ones.
            began, lost = client.epoch, self._subscription.lost
            client.sync("tree")
            self._take_all()
            self._came, self._room = set(), self._most_bytes

            # 2. The answer, unless the connection broke meanwhile, or more came than could be noted.
            older = client.last(*self._patterns)
            client.sync("tree")
            self._take_all()
            if self._came is not None and (client.epoch, self._subscription.lost) == (began, lost):
                self.kept.take_older([Told(message.key, message.payload) for message in older], self._came)
                self.taken_over = len(older)
                return
        raise TimeoutError(f"the connection broke {TRIES} times, or more came than fits")

    def _answer(self, question: Request) -> bytes:
        """Request a page of all that was published before the request."""
        pattern = question.key[len(self._own) :]
        try:
            after = msgspec.msgpack.decode(question.payload, type=bytes | None)
        except MALFORMED:
            raise ReplyError("this is no request for last values") from None
        self.client.sync("tree")
        self._take_all()
        return msgspec.msgpack.encode(self.kept.page(pattern, after, self._separator))

    def _on_notice(self, notice: control.Notice) -> None:
        if isinstance(notice, control.Lost):
            logger.warning("last values: %d messages were lost (%s); older ones are kept", notice.count, notice.cause)
