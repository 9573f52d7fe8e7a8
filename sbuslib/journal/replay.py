"""Plays a recording back: at the speed at which it was recorded, at another speed, or as fast as possible.

Messages come as :class:`Run`: some messages in order, as columns, with the time of each. :func:`from_journal` makes
runs of a journal, ``sbus replay`` makes them of a lake. Blocks of a journal and batches for a hub both have columns, so
a block that is played back whole needs no work for each message.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, compress
from math import inf
from operator import and_
from time import monotonic, sleep
from typing import NamedTuple, Protocol

import msgspec

from ..errors import (
    CorruptJournalError,
    KeyFormatError,
    PacketError,
    UsageError,
)
from ..limits import ClientLimits
from ..matcher import SEPARATOR, matches
from ..secrets import Namespace
from ..segments.directory import OnCorrupt, Piece, read_journal
from ..segments.layout import GAP, Block, Skipped, packed
from ..wire.columns import Columns, lengths
from ..wire.packets import check_key
from ..wire.text import printable

__all__ = ["Renaming", "Replayed", "Run", "Selection", "from_journal", "replay"]

_KEYS_KEPT = 65_536
_KEY_BYTES_KEPT = 16_777_216
_LONGEST_WAIT = 3_600.0
"""Seconds of one wait at most: the times in a recording may be centuries apart, which no clock can wait for."""

_LIMITS = ClientLimits()
_NOTHING = Columns([], None, b"")


class Run(NamedTuple):
    """Messages in order, as columns, with the time of each in nanoseconds since the epoch.

    ``lost`` counts messages that the recording lost here, as far as it knows.
    """

    times: Sequence[int]
    columns: Columns
    lost: int = 0


class Replayed(msgspec.Struct, frozen=True):
    """The result of :func:`replay`: messages published, and messages that the recording had lost."""

    messages: int
    lost: int


class Selection:
    """Which messages are played back: those under keys that match one of ``patterns``, from ``start`` until ``end``.

    Both are nanoseconds since the epoch; ``end`` is not included. Secret keys are never played back.
    """

    def __init__(self, patterns: Iterable[bytes] = (b"",), start: int | None = None, end: int | None = None) -> None:
        self.start = start
        self.end = end
        self._patterns = tuple(patterns)
        self._namespace = Namespace()
        self._known: dict[bytes, bool] = {}
        self._known_bytes = 0

    def choose(self, times: Sequence[int], columns: Columns, separator: bytes = SEPARATOR) -> Run:
        """The messages that are played back; ``separator`` divides the segments of their keys."""
        wanted = self._wanted(columns.keys, separator)
        if 1 not in wanted:
            return Run((), columns.part(0, 0))
        covers = self.covers(times)
        if covers and 0 not in wanted:
            return Run(times, columns)
        numbers = columns.numbers if columns.numbers is not None else bytes(len(columns))
        mask = numbers.translate(wanted.ljust(256, b"\0"))
        if not covers:
            mask = bytes(map(and_, mask, map(self.has, times)))
        return Run([*compress(times, mask)], columns.select(mask))

    def wants(self, key: bytes, separator: bytes = SEPARATOR) -> bool:
        """Whether messages under this key are played back."""
        return self._wanted([key], separator) == b"\1"

    def _wanted(self, keys: Sequence[bytes], separator: bytes) -> bytes:
        """For each key, 1 where messages under it are played back, and else 0."""
        if separator != self._namespace.separator:
            self._namespace = Namespace(separator)
            self._forget_keys()
        try:
            return bytes(map(self._known.__getitem__, keys))
        except KeyError:
            if len(self._known) + len(keys) > _KEYS_KEPT or self._known_bytes > _KEY_BYTES_KEPT:
                self._forget_keys()
            for key in keys:
                if key not in self._known:
                    self._known[key] = self._decide(key)
                    self._known_bytes += len(key)
            return bytes(map(self._known.__getitem__, keys))

    def _forget_keys(self) -> None:
        self._known.clear()
        self._known_bytes = 0

    def _decide(self, key: bytes) -> bool:
        try:
            check_key(key)
            if self._namespace.check_key(key):
                return False
        except (KeyFormatError, PacketError):
            return False
        return any(matches(pattern, key, self._namespace.separator) for pattern in self._patterns)

    def covers(self, times: Sequence[int]) -> bool:
        """Whether all of these times are within ``start`` and ``end``."""
        return (self.start is None or min(times) >= self.start) and (self.end is None or max(times) < self.end)

    def has(self, time: int) -> bool:
        """Whether a time is within ``start`` and ``end``."""
        return (self.start is None or time >= self.start) and (self.end is None or time < self.end)


def from_journal(
    directory: str | os.PathLike[str],
    selection: Selection | None = None,
    *,
    on_corrupt: OnCorrupt = "error",
    growing: bool | None = True,
    on_skip: Callable[[Piece], object] = lambda piece: None,
) -> Iterator[Run]:
    """The messages of a journal. ``on_skip`` is called with each damaged piece that was skipped.

    ``growing`` and errors are as for :func:`~sbuslib.segments.directory.read_journal`, except that a journal whose
    recorder was killed is played back up to its last whole block.
    """
    given = selection if selection is not None else Selection()
    for piece in read_journal(directory, on_corrupt=on_corrupt, growing=growing):
        block = piece.block
        if isinstance(block, Skipped):
            on_skip(piece)
        elif block.kind == GAP:
            yield Run((), _NOTHING, _lost_rows(block, piece.segment.path, given))
        else:
            assert piece.header is not None
            start = 0
            for columns in _columns(block, piece.segment.path):
                stop = start + len(columns)
                yield given.choose(block.times[start:stop], columns, piece.header.separator)
                start = stop


def _lost_rows(block: Block, path: str, given: Selection) -> int:
    """How many messages were lost within the chosen times, by the gap rows of a block."""
    try:
        lost = zip(block.times, block.lost(), strict=True)
    except CorruptJournalError as error:
        raise CorruptJournalError(error.reason, error.position, path) from None
    return sum(max(0, count) for time, count in lost if given.has(time))


def _columns(block: Block, path: str) -> Iterator[Columns]:
    try:
        if block.payload_offsets[0] != 0 or block.payload_offsets[-1] != len(block.payloads):
            raise ValueError
        sizes = lengths(packed(block.payload_offsets))
        # Most often there is one sender. In the format its name comes after the keys.
        senders = packed(block.senders)
        names = block.name_list()
        if senders == senders[:4] * block.rows:
            names = names[: block.senders[0]]
        yield from Columns.grouped(names, packed(block.keys), sizes, block.payloads)
    except (ValueError, IndexError):
        raise CorruptJournalError("the columns of a block do not agree", block.position, path) from None


class Publisher(Protocol):
    """What publishes the messages: a :class:`sbuslib.blocking.Client`, or one for gevent."""

    def send_columns(self, columns: Columns) -> None:
        """Send messages in order, waiting for room."""
        ...


class Renaming:
    """A publisher that gives keys another prefix, and hands the messages on.

    ``prefixes`` are pairs of old and new; the first pair whose old prefix fits a key is used. Raises
    :exc:`~sbuslib.errors.KeyFormatError` for a new key that nobody may publish under, or that is secret.
    """

    def __init__(
        self, publisher: Publisher, prefixes: Sequence[tuple[bytes, bytes]], separator: bytes = SEPARATOR
    ) -> None:
        self._publisher = publisher
        self._prefixes = prefixes
        self._namespace = Namespace(separator)

    def send_columns(self, columns: Columns) -> None:
        """Send messages in order under their new keys, waiting for room."""
        keys = [self._rename(key) for key in columns.keys]
        renamed = Columns(keys, columns.numbers, columns.sizes, columns.payloads)
        # Keys of columns must be distinct. If two keys became the same, columns are made again from packets.
        together = [renamed] if len({*keys}) == len(keys) else Columns.of_packets(renamed.packets())
        for part in together:
            self._publisher.send_columns(part)

    def _rename(self, key: bytes) -> bytes:
        for old, new in self._prefixes:
            if key.startswith(old):
                renamed = new + key[len(old) :]
                try:
                    check_key(renamed)
                    if not self._namespace.check_key(renamed):
                        return renamed
                except PacketError:
                    pass
                raise KeyFormatError(f"{printable(renamed)}: nobody may replay under this key")
        return key


def replay(
    runs: Iterable[Run],
    publisher: Publisher,
    *,
    speed: float | None = 1.0,
    clock: Callable[[], float] = monotonic,
    wait: Callable[[float], object] = sleep,
) -> Replayed:
    """Publish what was recorded, in order; returns once all was handed to the hub.

    With ``speed`` 2.0 it takes half the time of the recording, with ``None`` it is as fast as the hub accepts messages.
    Each message is due as long after the first one as it was recorded. A late message is published at once, so a delay
    does not move later messages. ``wait`` is for other event loops: gevent's is ``gevent.sleep``.

    Raises :exc:`~sbuslib.errors.UsageError`, and whatever ``runs`` and ``publisher`` raise; what came before an error
    of ``runs`` was published.
    """
    if speed is None:
        return _play_flat_out(runs, publisher)
    if not 0 < speed < inf:
        raise UsageError(f"speed is positive, or None for as fast as possible, not {speed!r}")
    count = lost = 0
    origin: int | None = None
    began = 0.0
    latest = 0
    for times, columns, missing in runs:
        lost += missing
        if not columns:
            continue
        count += len(columns)
        if origin is None:
            origin, began = times[0], clock()
        # A clock that was set back while recording counts as stopped.
        due = [*accumulate(times, max, initial=max(latest, origin))][1:]
        latest = due[-1]
        done = 0
        while done < len(columns):
            now = origin + (clock() - began) * speed * 1e9
            ready = bisect_right(due, now, done)
            if ready > done:
                publisher.send_columns(columns.part(done, ready))
                done = ready
            else:
                wait(min(max(0.0, (due[done] - now) / speed / 1e9), _LONGEST_WAIT))
    return Replayed(count, lost)


def _play_flat_out(runs: Iterable[Run], publisher: Publisher) -> Replayed:
    count = lost = 0
    failures: list[Exception] = []
    waiting: list[Columns] = []  # small runs are joined: each packet has a cost
    messages = size = 0

    def until_error() -> Iterator[Run]:
        try:
            yield from runs
        except Exception as error:
            failures.append(error)

    for _, columns, missing in until_error():
        lost += missing
        count += len(columns)
        messages += len(columns)
        size += len(columns.payloads)
        if messages > _LIMITS.batch_messages or size > _LIMITS.batch_bytes:
            _publish(waiting, publisher)
            messages, size = len(columns), len(columns.payloads)
        if columns:
            waiting.append(columns)
    _publish(waiting, publisher)
    if failures:
        raise failures[0]
    return Replayed(count, lost)


def _publish(waiting: list[Columns], publisher: Publisher) -> None:
    """Publish all waiting columns, and empty the list."""
    joined = Columns.joined(waiting)
    several = waiting[:] if joined is None else [joined]
    waiting.clear()
    for columns in several:
        publisher.send_columns(columns)
