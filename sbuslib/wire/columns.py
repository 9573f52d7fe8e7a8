"""Many messages as columns: what batches are made of, and blocks of a journal, so that either becomes the other.

This module takes messages apart, selects some and puts them together; where it can, with no work for each single
message. :mod:`sbuslib.wire.batches` tells how a batch is laid out, and what it may hold.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, count
from operator import add
from typing import Final

from ..limits import BATCH_KEYS
from .batches import cut, fits, lay_out, take_apart, used_keys
from .packets import encode_message

_ALL: Final = bytes(range(256))


class Columns:
    """Any number of messages as columns: the form from which batches are made, and in which a journal keeps them.

    ``keys`` are at most :data:`~sbuslib.limits.BATCH_KEYS` distinct keys, ``numbers`` which of them each message has,
    a byte each, or ``None`` where there is one only, ``sizes`` the length of each payload, four bytes each, and
    ``payloads`` the payloads, one after another. Nothing here is checked: a key is one, and the columns agree.
    """

    __slots__ = ("_offsets", "keys", "numbers", "payloads", "sizes")

    def __init__(
        self, keys: list[bytes], numbers: bytes | None, sizes: bytes, payloads: bytes | memoryview = b""
    ) -> None:
        self.keys = keys
        self.numbers = numbers
        self.sizes = sizes
        self.payloads = payloads
        self._offsets: Sequence[int] | None = None  # made when they are asked for

    @classmethod
    def grouped(
        cls, names: Sequence[bytes], keys: bytes, sizes: bytes, payloads: bytes | memoryview
    ) -> Iterator[Columns]:
        """Messages in as few columns as there may be, in order; ``keys`` are numbers of ``names``, four bytes each.

        Names that are no message's key may stay, where they are few. Raises :exc:`IndexError` for a key without a name.
        """
        # 1. All numbers fit a byte.
        count = len(sizes) // 4
        if not any(keys[byte::4].strip(b"\0") for byte in (1, 2, 3)):
            numbers = keys[::4]
            if numbers.translate(None, _ALL[: len(names)]):
                raise IndexError("a key without a name")
            if 1 < len(names) <= min(count, BATCH_KEYS):
                yield cls(list(names), numbers, sizes, payloads)
            else:
                yield cls(*used_keys(names, numbers), sizes, payloads)
            return

        # 2. They do once they are numbered anew.
        every = struct.unpack(f"<{count}I", keys)
        used = dict.fromkeys(every)
        if len(used) <= BATCH_KEYS:
            of = {name: number for number, name in enumerate(used)}
            yield cls(*used_keys([names[name] for name in used], bytes(map(of.__getitem__, every))), sizes, payloads)
            return

        # 3. There are too many keys: in two halves.
        half = count // 2
        whole = cls([], None, sizes, payloads)
        for start, stop in ((0, half), (half, count)):
            part = whole.part(start, stop)
            yield from cls.grouped(names, keys[4 * start : 4 * stop], part.sizes, part.payloads)

    @classmethod
    def of_packets(cls, packets: Sequence[bytes]) -> Iterator[Columns]:
        """Packets of messages, in order, in as few columns as their keys ask for."""
        keys, numbers, payloads = take_apart(packets)
        if isinstance(numbers, list):
            for start in range(0, len(packets), BATCH_KEYS):  # of which so many can have no more keys
                yield from cls.of_packets(packets[start : start + BATCH_KEYS])
        else:
            yield cls(keys, numbers, struct.pack(f"<{len(packets)}I", *map(len, payloads)), b"".join(payloads))

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns | None:
        """Messages of several columns as one, in order; ``None`` where they have too many keys."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls([], None, b"")
        merged = merge_keys(parts)
        if merged is None:
            return None
        keys, numbers = merged
        sizes = b"".join(part.sizes for part in parts)
        return cls(keys, numbers, sizes, b"".join(part.payloads for part in parts))

    def __len__(self) -> int:
        return len(self.sizes) // 4

    @property
    def offsets(self) -> Sequence[int]:
        """Where each payload begins, and where the last one ends."""
        if self._offsets is None:
            count = len(self)
            if self.sizes == self.sizes[:4] * count:
                size = int.from_bytes(self.sizes[:4], "little")
                self._offsets = range(0, size * count + 1, size) if size else [0] * (count + 1)
            else:
                self._offsets = [*accumulate(struct.unpack(f"<{count}I", self.sizes), initial=0)]
        return self._offsets

    def part(self, start: int, stop: int) -> Columns:
        """The messages from ``start`` to before ``stop``, without keys that none of them has."""
        if (start, stop) == (0, len(self)):
            return self
        offsets = self.offsets
        keys, numbers = self.keys, self.numbers
        if numbers is not None:
            keys, numbers = used_keys(keys, numbers[start:stop])
        payloads = memoryview(self.payloads)[offsets[start] : offsets[stop]]
        return Columns(keys, numbers, self.sizes[4 * start : 4 * stop], payloads)

    def select(self, mask: bytes) -> Columns:
        """The messages whose byte in ``mask`` is 1. The others have 0."""
        # 1. The runs of messages that are taken.
        runs: list[tuple[int, int]] = []
        stop = 0
        while (start := mask.find(1, stop)) >= 0:
            stop = mask.find(0, start)
            if stop < 0:
                stop = len(mask)
            runs.append((start, stop))

        # 2. Their parts of each column.
        sizes, payloads, offsets = self.sizes, memoryview(self.payloads), self.offsets
        keys, numbers = self.keys, self.numbers
        if numbers is not None:
            keys, numbers = used_keys(keys, b"".join([numbers[start:stop] for start, stop in runs]))
        return Columns(
            keys,
            numbers,
            b"".join([sizes[4 * start : 4 * stop] for start, stop in runs]),
            b"".join([payloads[offsets[start] : offsets[stop]] for start, stop in runs]),
        )

    def packets(self) -> list[bytes]:
        """Each message as a packet of its own."""
        heads = [b"MSG %b\0" % key for key in self.keys]
        payloads = cut(self.payloads, self.sizes, len(self))
        if self.numbers is None:
            return [heads[0] + payload for payload in payloads]
        return list(map(add, map(heads.__getitem__, self.numbers), payloads))

    def pack(self, messages: int, most: int) -> Iterator[tuple[bytes, int]]:
        """Packets with up to so many messages and ``most`` bytes of payload each, and how many each has.

        Batches, and plain packets for single ones. Raises what :func:`~sbuslib.wire.packets.encode_message` does.
        """
        for start in range(0, len(self), messages):
            yield from self.part(start, min(start + messages, len(self)))._pack(most)

    def _pack(self, most: int) -> Iterator[tuple[bytes, int]]:
        count = len(self)
        if count == 1:
            yield encode_message(self.keys[0], bytes(self.payloads)), 1
        elif fits(count, self.keys, len(self.payloads), most):
            yield lay_out(self.keys, self.numbers, self.sizes, (self.payloads,)), count
        else:
            half = count // 2
            yield from self.part(0, half)._pack(most)
            yield from self.part(half, count)._pack(most)


def merge_keys(parts: Sequence[Columns]) -> tuple[list[bytes], bytes | None] | None:
    """The keys of several columns, and which of them each message has; ``None`` for more than a batch may have."""
    of: defaultdict[bytes, int] = defaultdict(count().__next__)  # a new key has the next number
    try:
        tables = [bytes(map(of.__getitem__, part.keys)) for part in parts]
    except ValueError:
        return None
    if len(of) == 1:
        return list(of), None
    numbers = [
        table * len(part) if part.numbers is None else part.numbers.translate(table.ljust(256, b"\0"))
        for part, table in zip(parts, tables, strict=True)
    ]
    return list(of), b"".join(numbers)


def lengths(offsets: bytes) -> bytes:
    """The column of lengths of what begins where ``offsets`` say, four bytes each, the end of the last one included.

    Raises :exc:`ValueError` if an offset is less than the one before.
    """
    # The columns are subtracted as two large numbers. Where no digit is smaller than the one below it, none borrows.
    high, low = (int.from_bytes(column, "little") for column in (offsets[4:], offsets[:-4]))
    if high < low or not offsets[3::4].isascii():  # that is, where one is negative
        raise ValueError("offsets are not in order")
    found = (high - low).to_bytes(len(offsets) - 4, "little")
    if not found[3::4].isascii():
        raise ValueError("offsets are not in order")
    return found
