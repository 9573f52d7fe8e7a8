"""Replay of a recording: at its own speed, at another speed, or as fast as possible.

Messages come as :class:`Stretch`: some messages in order, as columns, with the time of each. :func:`from_journal` makes
runs of a journal, or of the journals of a lake together. Blocks of a journal and batches for a hub both have columns,
so a block that is played back whole needs no work for each message.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, compress
from math import inf
from operator import and_
from time import monotonic, sleep
from typing import NamedTuple, Protocol

import msgspec

from ..errors import CorruptJournalError, KeyFormatError, PacketError, UsageError
from ..secrets import Namespace
from ..wire.columns import Columns, lengths
from ..wire.packets import check_key
from ..wire.text import printable
from .format.decoding import OnCorrupt
from .format.layout import GAP, Block, packed
from .format.recovery import DAMAGED
from .read.blocks import blocks, everything
from .read.read_plan import RowRange
from .read.segment_rows import OnSkip, Rows
from .read.selection import EVERYTHING, Selection

_KEYS_KEPT = 65_536
_KEY_BYTES_KEPT = 16_777_216
_LONGEST_WAIT = 3_600.0
"""Seconds of one wait at most: the times in a recording may be centuries apart, which no clock can wait for."""

_NOTHING = Columns([], None, b"")


class Stretch(NamedTuple):
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


class _Choice:
    """Filter of messages to replay: wanted ones that may be published, and no secrets."""

    def __init__(self, wanted: Selection) -> None:
        self.wanted = wanted
        #: It knows which keys are secret.
        self._namespace = Namespace()
        #: Cache by key: whether messages under it are replayed.
        self._known: dict[bytes, bool] = {}
        self._known_bytes = 0  # of those keys

    def choose(self, times: Sequence[int], columns: Columns, separator: bytes) -> Stretch:
        """Select the messages to replay; ``separator`` divides the segments of their keys."""
        wanted = self._of(columns.keys, separator)
        if 1 not in wanted:
            return Stretch((), columns.part(0, 0))
        covers = self.wanted.covers(min(times), max(times) + 1)
        if covers and 0 not in wanted:
            return Stretch(times, columns)
        numbers = columns.numbers if columns.numbers is not None else bytes(len(columns))
        mask = numbers.translate(wanted.ljust(256, b"\0"))
        if not covers:
            mask = bytes(map(and_, mask, map(self.wanted.has, times)))
        return Stretch([*compress(times, mask)], columns.select(mask))

    def _of(self, keys: Sequence[bytes], separator: bytes) -> bytes:
        """For each key, 1 where messages under it are replayed, and else 0."""
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
        return self.wanted.wants(key, self._namespace.separator)


def from_journal(
    directory: str | os.PathLike[str],
    wanted: Selection = EVERYTHING,
    *,
    on_corrupt: OnCorrupt = "error",
    on_skip: OnSkip = lambda path, skipped: None,
) -> Iterator[Stretch]:
    """Read the wanted messages of a journal, in the order of their numbers; those of several journals by time.

    ``on_skip`` is called for each damaged part that was skipped. Raises
    :exc:`~sbuslib.errors.CorruptJournalError`, and :exc:`~sbuslib.errors.JournalError` if there is no journal.
    """
    by_journal: dict[str | None, list[RowRange]] = {}
    for row_range in everything(directory, wanted):
        by_journal.setdefault(row_range.journal, []).append(row_range)
    choice = _Choice(wanted)
    each = [
        _runs(blocks(row_ranges, wanted, on_corrupt=on_corrupt, on_skip=on_skip), choice)
        for row_ranges in by_journal.values()
    ]
    return each[0] if len(each) == 1 else _merged(each)


def _runs(rows: Iterator[Rows], choice: _Choice) -> Iterator[Stretch]:
    for header, path, block in rows:
        if block.kind == GAP:
            yield Stretch((), _NOTHING, _lost_rows(block, path, choice.wanted))
            continue
        start = 0
        for columns in _columns(block, path):
            stop = start + len(columns)
            yield choice.choose(block.times[start:stop], columns, header.separator)
            start = stop


def _merged(each: list[Iterator[Stretch]]) -> Iterator[Stretch]:
    """Merge the messages of several journals by time; a clock that was set back counts as stopped."""
    heap: list[tuple[int, int, Stretch]] = []

    def add_next(number: int, latest: int) -> Iterator[Stretch]:
        """Add the next messages of a journal, and yield the losses before them."""
        for run in each[number]:
            if run.columns:
                heappush(heap, (max(latest, run.times[0]), number, run))
                return
            yield run

    for number in range(len(each)):
        yield from add_next(number, 0)
    while heap:
        due, number, run = heappop(heap)
        until = heap[0][0] if heap else inf
        later = (at for at, time in enumerate(run.times) if time > until)
        count = max(1, next(later, len(run.times)))
        yield Stretch(run.times[:count], run.columns.part(0, count))
        due = max(due, *run.times[:count])
        if count == len(run.times):
            yield from add_next(number, due)
        else:
            rest = Stretch(run.times[count:], run.columns.part(count, len(run.times)))
            heappush(heap, (max(due, rest.times[0]), number, rest))


def _lost_rows(block: Block, path: str, wanted: Selection) -> int:
    """Number of messages lost within the wanted times, by the gap rows of a block. ``on_skip`` got those of damage."""
    try:
        return sum(row.lost or 0 for row in block.records() if wanted.has(row.time_ns) and row.cause != DAMAGED)
    except CorruptJournalError as error:
        raise CorruptJournalError(error.reason, error.position, path) from None


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


class ColumnSender(Protocol):
    """Publisher of replayed messages: a :class:`sbuslib.blocking.Client`, or one for gevent."""

    def publish_many(self, columns: Columns, /) -> object:
        """Send messages in order, waiting for room."""
        ...


class Renaming:
    """A publisher that replaces prefixes of keys, and hands the messages on.

    ``prefixes`` are pairs of old and new; the first pair whose old prefix fits a key is used. Raises
    :exc:`~sbuslib.errors.KeyFormatError` for a new key that is reserved or secret.
    """

    def __init__(self, publisher: ColumnSender, prefixes: Sequence[tuple[bytes, bytes]], separator: bytes) -> None:
        self._publisher = publisher
        self._prefixes = prefixes
        #: It knows which keys are secret.
        self._namespace = Namespace(separator)

    def publish_many(self, columns: Columns, /) -> None:
        """Send messages in order under their new keys, waiting for room."""
        keys = [self._rename(key) for key in columns.keys]
        renamed = Columns(keys, columns.numbers, columns.sizes, columns.payloads)
        # Keys of columns must be distinct. If two keys became the same, columns are made again from packets.
        together = [renamed] if len({*keys}) == len(keys) else Columns.of_packets(renamed.packets())
        for part in together:
            self._publisher.publish_many(part)

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
    runs: Iterable[Stretch],
    publisher: ColumnSender,
    *,
    speed: float | None = 1.0,
    clock: Callable[[], float] = monotonic,
    wait: Callable[[float], object] = sleep,
) -> Replayed:
    """Publish recorded messages, in order. Returns once all were handed to the hub.

    With ``speed`` 2.0 it takes half the time of the recording, with ``None`` it is as fast as the hub accepts messages.
    Each message is due as long after the first one as it was recorded. A late message is published at once, so a delay
    does not move later messages. ``wait`` is for other event loops: gevent's is ``gevent.sleep``.

    Raises :exc:`~sbuslib.errors.UsageError`, and the errors of ``runs`` and ``publisher``; messages before an error of
    ``runs`` were published.
    """
    if speed is not None and not 0 < speed < inf:
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
        if speed is None:
            publisher.publish_many(columns)
            continue
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
                publisher.publish_many(columns.part(done, ready))
                done = ready
            else:
                wait(min(max(0.0, (due[done] - now) / speed / 1e9), _LONGEST_WAIT))
    return Replayed(count, lost)
