"""Plays a recording back: at the pace at which it was recorded, at another, or as fast as it goes.

What is played back comes as :class:`Run`: some messages in the order in which they came, encoded as packets, with the
time of each. :func:`from_journal` makes them of a journal; of a lake, ``sbus replay`` does.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import inf
from time import monotonic, sleep
from typing import NamedTuple, Protocol

import msgspec

from ..errors import PacketError, UsageError
from ..matcher import SEPARATOR, matches
from ..secrets import Namespace
from .directory import OnCorrupt, Piece, read_journal
from .format import GAP, Block, Skipped

__all__ = ["Replayed", "Run", "Selection", "from_journal", "replay"]

_KEYS_KEPT = 65_536


class Run(NamedTuple):
    """Messages in the order in which they came: nanoseconds since the epoch, and packet, of each.

    ``lost`` counts messages that the recording says it lost in their place, as far as it knows.
    """

    times: Sequence[int]
    packets: Sequence[bytes]
    lost: int = 0


class Replayed(msgspec.Struct, frozen=True):
    """What :func:`replay` did: messages published, and messages that were lost when they were recorded."""

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

    def wants(self, key: bytes, separator: bytes = SEPARATOR) -> bool:
        """Whether messages under a key, whose segments ``separator`` parts, are played back."""
        if separator != self._namespace.separator:
            self._namespace = Namespace(separator)
            self._known.clear()
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _KEYS_KEPT:
                self._known.clear()
            known = self._known[key] = self._decide(key)
        return known

    def _decide(self, key: bytes) -> bool:
        try:
            if self._namespace.check_key(key):
                return False
        except PacketError:
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
    """The messages of a journal; of what was skipped because it was damaged, ``on_skip`` is told.

    ``growing`` and errors are as for :func:`.directory.read_journal`, but that a journal whose recorder was killed is
    played back up to there.
    """
    given = selection if selection is not None else Selection()
    for piece in read_journal(directory, on_corrupt=on_corrupt, growing=growing):
        block = piece.block
        if isinstance(block, Skipped):
            on_skip(piece)
        elif block.kind == GAP:
            lost = zip(block.times, block.lost(), strict=True)
            yield Run((), (), sum(max(0, count) for time, count in lost if given.has(time)))
        else:
            assert piece.header is not None
            yield _run(block, given, piece.header.separator)


def _run(block: Block, selection: Selection, separator: bytes) -> Run:
    names = block.name_list()
    keys = set(block.keys)
    wanted = {key for key in keys if selection.wants(names[key], separator)}
    if not wanted:
        return Run((), ())
    headers = [b"MSG %b\0" % name for name in names]
    payloads, offsets = bytes(block.payloads), list(block.payload_offsets)
    if wanted == keys and selection.covers(block.times):
        packets = [
            headers[key] + payloads[start:end] for key, (start, end) in zip(block.keys, pairwise(offsets), strict=True)
        ]
        return Run(block.times, packets)
    chosen = [
        (time, headers[key] + payloads[start:end])
        for time, key, (start, end) in zip(block.times, block.keys, pairwise(offsets), strict=True)
        if key in wanted and selection.has(time)
    ]
    return Run([time for time, _ in chosen], [packet for _, packet in chosen])


class Publisher(Protocol):
    """Whoever the messages are handed to: a :class:`sbuslib.blocking.Client`, or one for gevent."""

    def send_packets(self, packets: Sequence[bytes]) -> None:
        """Send packets in order, waiting for room."""
        ...


def replay(
    runs: Iterable[Run],
    publisher: Publisher,
    *,
    speed: float | None = 1.0,
    clock: Callable[[], float] = monotonic,
    wait: Callable[[float], object] = sleep,
) -> Replayed:
    """Publish what was recorded, in order; returns once all was handed to the hub.

    With ``speed`` 2.0 it takes half the time that the recording took, with ``None`` it goes as fast as the hub takes
    it. Each message is due as long after the first as it was recorded; what is late goes out at once, so one delay
    does not move all that follows. ``wait`` is for other event loops: gevent's is ``gevent.sleep``.

    Raises :exc:`~sbuslib.errors.UsageError`, and whatever ``runs`` and ``publisher`` raise.
    """
    if speed is not None and not 0 < speed < inf:
        raise UsageError(f"speed is positive, or None for as fast as it goes, not {speed!r}")
    count = lost = 0
    origin: int | None = None
    began = 0.0
    latest = 0
    for times, packets, missing in runs:
        lost += missing
        if not packets:
            continue
        count += len(packets)
        if speed is None:
            publisher.send_packets(packets)
            continue
        if origin is None:
            origin, began = times[0], clock()
        # A clock that was set back while recording is as good as one that stood still.
        due = [*accumulate(times, max, initial=max(latest, origin))][1:]
        latest = due[-1]
        done = 0
        while done < len(packets):
            now = origin + (clock() - began) * speed * 1e9
            ready = bisect_right(due, now, done)
            if ready > done:
                publisher.send_packets(packets[done:ready])
                done = ready
            else:
                wait(max(0.0, (due[done] - now) / speed / 1e9))
    return Replayed(count, lost)
