"""Columns of many messages: the common form of batches and of a journal's blocks, so that either becomes the other.

This module splits messages, selects some and joins them; where it can, without work for each single message. The layout
and the limits of a batch are in :mod:`sbuslib.wire.batches`.
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

    ``keys`` are at most :data:`~sbuslib.limits.BATCH_KEYS` distinct keys, ``numbers`` the index of each message's key,
    a byte each, or ``None`` with a single key, ``sizes`` the length of each payload, four bytes each, and ``payloads``
    the payloads, one after another. Nothing is checked: keys have to be valid, and the columns have to agree.
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
        """Group messages in as few columns as possible, in order; ``keys`` are numbers of ``names``, four bytes each.

        A few names that are no message's key may remain. Raises :exc:`IndexError` for a key without a name.
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

        # 2. They do after renumbering.
        every = struct.unpack(f"<{count}I", keys)
        used = dict.fromkeys(every)
        if len(used) <= BATCH_KEYS:
            of = {name: number for number, name in enumerate(used)}
            yield cls(*used_keys([names[name] for name in used], bytes(map(of.__getitem__, every))), sizes, payloads)
            return

        # 3. There are too many keys: split into two halves.
        half = count // 2
        whole = cls([], None, sizes, payloads)
        for start, stop in ((0, half), (half, count)):
            part = whole.part(start, stop)
            yield from cls.grouped(names, keys[4 * start : 4 * stop], part.sizes, part.payloads)

    @classmethod
    def of_packets(cls, packets: Sequence[bytes]) -> Iterator[Columns]:
        """Group packets of messages, in order, in as few columns as their keys allow."""
        keys, numbers, payloads = take_apart(packets)
        if isinstance(numbers, list):
            for start in range(0, len(packets), BATCH_KEYS):  # a part of this length cannot have more keys
                yield from cls.of_packets(packets[start : start + BATCH_KEYS])
        else:
            yield cls(keys, numbers, struct.pack(f"<{len(packets)}I", *map(len, payloads)), b"".join(payloads))

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns | None:
        """Join several columns, in order; ``None`` if they have too many keys."""
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
        """Offsets of the payloads, with the end of the last one."""
        if self._offsets is None:
            count = len(self)
            if self.sizes == self.sizes[:4] * count:
                size = int.from_bytes(self.sizes[:4], "little")
                self._offsets = range(0, size * count + 1, size) if size else [0] * (count + 1)
            else:
                self._offsets = [*accumulate(struct.unpack(f"<{count}I", self.sizes), initial=0)]
        return self._offsets

    def part(self, start: int, stop: int) -> Columns:
        """Select the messages from ``start`` to before ``stop``, without keys that none of them has."""
        if (start, stop) == (0, len(self)):
            return self
        offsets = self.offsets
        keys, numbers = self.keys, self.numbers
        if numbers is not None:
            keys, numbers = used_keys(keys, numbers[start:stop])
        payloads = memoryview(self.payloads)[offsets[start] : offsets[stop]]
        return Columns(keys, numbers, self.sizes[4 * start : 4 * stop], payloads)

    def select(self, mask: bytes) -> Columns:
        """Select the messages whose byte in ``mask`` is 1. The others have 0."""
        # 1. The runs of selected messages.
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
        """Encode to packets of at most ``messages`` messages and ``most`` bytes of payload, with their message counts.

        Batches, and plain packets for single messages. Raises as :func:`~sbuslib.wire.packets.encode_message`.
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
    """Merge the keys of several columns, and renumber all messages; ``None`` for more keys than fit a batch."""
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
    """Convert a column of offsets, four bytes each, with the end of the last part, to a column of lengths.

    Raises :exc:`ValueError` if an offset is less than the one before.
    """
    # The columns are subtracted as two large numbers. If no offset is smaller than the one before, no digit borrows.
    high, low = (int.from_bytes(column, "little") for column in (offsets[4:], offsets[:-4]))
    if high < low or not offsets[3::4].isascii():  # that is, where one is negative
        raise ValueError("offsets are not in order")
    sizes = (high - low).to_bytes(len(offsets) - 4, "little")
    if not sizes[3::4].isascii():
        raise ValueError("offsets are not in order")
    return sizes
