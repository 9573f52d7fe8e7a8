"""Wire format of batches, many messages in one packet: layout, encoder, checks and decoder.

This module has the form of a ``CMSG batch``, and nothing about sending it. A batch costs both ends and the hub one
packet, where its messages would cost one each. So all work is done with whole columns, by functions that loop in C, and
bytes that need no check are never read. All numbers are little-endian::

    offset          bytes      what
    0               11         ``CMSG batch`` NUL
    11              1          the form: 1
    12              4          n, the number of messages: 1 to 4,096
    16              4          k, the number of keys: 1 to 256, and no more than n
    20              4 k        the length of each key
    20 + 4 k        4 n        the length of each payload
    20 + 4 k + 4 n  n          the number of each message's key, from 0; left out where k is 1
                               the keys, one after another, without NUL
                               the payloads, one after another, to the end of the packet

A batch means its messages in order, and nothing else: they are counted, bounded and refused as if each had come in a
packet of its own. A small batch must not become very many bytes for a receiver that takes no batches. So as packets of
their own, the messages of a batch come to at most :data:`~sbuslib.limits.BATCH_EXPANDED` bytes. ``docs/protocol.md``
describes the same for authors of clients in other languages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from io import BytesIO  # memory, not a file
from itertools import chain, compress, repeat
from operator import add
from typing import TYPE_CHECKING, Final

from ..errors import PacketError
from ..limits import BATCH_EXPANDED, BATCH_KEYS, BATCH_MESSAGES, PACKET_BYTES
from ..reasons import Reason
from .packets import MSG, Message, encode_message

if TYPE_CHECKING:
    from mmap import mmap

BATCH: Final = b"CMSG batch\0"
"""Start of every batch."""

_FORM = 1
_NUMBERS = struct.Struct("<BII")
_COLUMNS = len(BATCH) + _NUMBERS.size
_OF_A_PACKET = len(MSG) + 1
"""Bytes of a message's own packet beside key and payload."""

_ALL = bytes(range(256))


class QueuedBatch(bytes):
    """A batch that waits in a queue. It counts there as ``messages`` messages, of ``charge`` bytes in all."""

    messages: int
    charge: int

    @classmethod
    def of(cls, batch: Batch, wrapper: bytes = b"") -> QueuedBatch:
        """Make one of a batch, with ``wrapper`` before it. As plain packets, each of its messages has that wrapper."""
        queued = cls(wrapper + batch.packet)
        queued.messages = batch.count
        queued.charge = batch.expanded + len(wrapper) * batch.count
        return queued

    @classmethod
    def parse(cls, packet: bytes) -> QueuedBatch:
        """Parse the batch in a packet, with the wrapper before it. Raises :exc:`~sbuslib.errors.PacketError`."""
        start = packet.find(BATCH)
        return cls.of(Batch.parse(packet[start:]), packet[:start])

    def packets(self) -> list[bytes]:
        """Make the packets that it stands for."""
        start = self.find(BATCH)
        wrapper = self[:start]
        plain = Batch.parse(self[start:]).plain
        return [wrapper + packet for packet in plain] if wrapper else plain


class Batch:
    """Messages that travel in one packet. Immutable; each of its forms is made at its first use.

    A batch that was parsed in a block of memory is valid until that memory is used again: see :meth:`copy`.

    ``count`` is the number of messages, ``keys`` their distinct keys, ``numbers`` the index of each message's key, or
    ``None`` with a single key, and ``expanded`` the size of the messages as packets of their own, in bytes.
    """

    __slots__ = ("_data", "_length", "_packet", "_payloads", "_plain", "_start", "count", "expanded", "keys", "numbers")

    def __init__(
        self, keys: list[bytes], numbers: bytes | None, count: int, expanded: int, payloads: list[bytes] | None = None
    ) -> None:
        self.keys = keys
        self.numbers = numbers
        self.count = count
        self.expanded = expanded
        #: The memory that it was parsed from, if it was; valid only while the packet is handled.
        self._data: bytes | mmap = b""
        #: The first of its bytes there, and their number.
        self._start = self._length = 0
        #: Its forms, each made at its first use: one packet, payloads, and a packet for each message.
        self._packet: bytes | None = None
        self._payloads = payloads
        self._plain: list[bytes] | None = None  # the last of them

    @classmethod
    def parse(cls, data: bytes | mmap, start: int = 0, length: int | None = None) -> Batch:
        """Check a whole batch, which is ``length`` bytes of ``data`` from ``start`` on.

        Raises :exc:`~sbuslib.errors.PacketError`, and nothing else ever.
        """
        # 1. The head: the numbers of messages and keys.
        if length is None:
            length = len(data) - start
        if length < _COLUMNS or data[start : start + len(BATCH)] != BATCH or length > PACKET_BYTES:
            raise PacketError(Reason.MALFORMED_BATCH)
        form, count, kinds = _NUMBERS.unpack_from(data, start + len(BATCH))
        if form != _FORM or not 1 <= kinds <= count or kinds > BATCH_KEYS or count > BATCH_MESSAGES:
            raise PacketError(Reason.MALFORMED_BATCH)

        # 2. The positions of the columns. The lengths of keys and payloads add up to the rest of the packet, exactly.
        at_sizes = start + _COLUMNS + 4 * kinds
        at_numbers = at_sizes + 4 * count
        at_keys = at_numbers + (count if kinds > 1 else 0)
        stop = start + length
        if at_keys > stop:
            raise PacketError(Reason.MALFORMED_BATCH)
        key_sizes = struct.unpack_from(f"<{kinds}I", data, start + _COLUMNS)
        at_payloads = at_keys + sum(key_sizes)
        sizes = data[at_sizes:at_numbers]
        if at_payloads + _total(sizes, count) != stop or data.find(b"\0", at_keys, at_payloads) >= 0:
            raise PacketError(Reason.MALFORMED_BATCH)

        # 3. The keys, the index of each message's key, and the length of all messages as packets of their own.
        numbers: bytes | None = None
        size = stop - at_payloads + count * _OF_A_PACKET
        if kinds == 1:
            keys = [data[at_keys:at_payloads]]
            expanded = size + count * key_sizes[0]
        else:
            keys = cut(data[at_keys:at_payloads], data[start + _COLUMNS : at_sizes], kinds)
            numbers = data[at_numbers:at_keys]
            if numbers.translate(None, _ALL[:kinds]):
                raise PacketError(Reason.MALFORMED_BATCH)
            expanded = size + _key_bytes(key_sizes, numbers)
        if expanded > BATCH_EXPANDED:
            raise PacketError(Reason.BATCH_OF_TOO_MUCH)
        batch = cls(keys, numbers, count, expanded)
        batch._data, batch._start, batch._length = data, start, length
        return batch

    # -- its forms ----------------------------------------------------------------------------------

    @property
    def packet(self) -> bytes:
        """The batch as a packet."""
        if self._packet is None and self._length:
            self._packet = self._data[self._start : self._start + self._length]
        if self._packet is None:
            payloads = self.payloads
            sizes = struct.pack(f"<{self.count}I", *map(len, payloads))
            self._packet = lay_out(self.keys, self.numbers, sizes, payloads)
        return self._packet

    @property
    def view(self) -> memoryview:
        """The batch as a packet, without a copy if it was parsed."""
        if not self._length:
            return memoryview(self.packet)
        return memoryview(self._data)[self._start : self._start + self._length]

    def _places(self) -> tuple[int, int]:
        """Positions of the lengths of the payloads and of the payloads in the packet."""
        at_sizes = _COLUMNS + 4 * len(self.keys)
        return at_sizes, at_sizes + 4 * self.count + len(self.numbers or b"") + sum(map(len, self.keys))

    def _sizes(self) -> bytes:
        """The column of lengths of a batch that was parsed."""
        at_sizes = self._start + self._places()[0]
        return self._data[at_sizes : at_sizes + 4 * self.count]

    @property
    def payloads(self) -> list[bytes]:
        """The payload of each message."""
        if self._payloads is None:
            joined = self._data[self._start + self._places()[1] : self._start + self._length]
            self._payloads = cut(joined, self._sizes(), self.count)
        return self._payloads

    @property
    def columns(self) -> tuple[list[bytes], bytes | None, bytes, memoryview]:
        """Keys, numbers, the lengths of the payloads, and the payloads one after another, as a copy."""
        packet = self.packet
        at_sizes, at_payloads = self._places()
        return self.keys, self.numbers, packet[at_sizes : at_sizes + 4 * self.count], memoryview(packet)[at_payloads:]

    @property
    def least(self) -> int:
        """The length of the shortest payload."""
        if self._payloads is not None:
            return min(map(len, self._payloads))
        sizes = self._sizes()
        if sizes == sizes[:4] * self.count:
            return int.from_bytes(sizes[:4], "little")
        return int(min(struct.unpack(f"<{self.count}I", sizes)))

    @property
    def plain(self) -> list[bytes]:
        """Each message as a packet of its own."""
        if self._plain is None:
            heads = [b"MSG %b\0" % key for key in self.keys]
            if self.numbers is None:
                self._plain = [heads[0] + payload for payload in self.payloads]
            else:
                self._plain = list(map(add, map(heads.__getitem__, self.numbers), self.payloads))
        return self._plain

    def messages(self, sender: bytes | None = None) -> Iterator[Message]:
        """Iterate over the messages as values."""
        keys = repeat(self.keys[0]) if self.numbers is None else map(self.keys.__getitem__, self.numbers)
        if sender is None:
            return map(Message, keys, self.payloads)
        return map(Message, keys, self.payloads, repeat(sender))

    def copy(self) -> Batch:
        """Make the batch independent of memory that is used again."""
        return Batch.parse(self.packet) if self._length else self

    # -- parts of it --------------------------------------------------------------------------------

    def select(self, wanted: Sequence[int]) -> Batch:
        """Select the messages whose keys have one of these numbers, in ascending order; at least one has to exist."""
        if self.numbers is None:
            return self
        chosen = bytes(wanted)
        mask = bytearray(256)
        renumber = bytearray(256)
        for number, old in enumerate(chosen):
            mask[old] = 1
            renumber[old] = number
        payloads = list(compress(self.payloads, self.numbers.translate(mask)))
        others = _ALL.translate(None, chosen)
        numbers = self.numbers.translate(renumber, others)
        return _made([self.keys[number] for number in wanted], numbers, payloads)

    def part(self, start: int, stop: int) -> Batch:
        """Select the messages from ``start`` to before ``stop``, without keys that none of them has."""
        payloads = self.payloads[start:stop]
        if self.numbers is None:
            return _made(self.keys, None, payloads)
        keys, numbers = used_keys(self.keys, self.numbers[start:stop])
        return _made(keys, numbers, payloads)

    def times(self, number: int) -> int:
        """Number of messages under the key with this number."""
        return self.count if self.numbers is None else self.numbers.count(number)

    def used(self) -> list[int]:
        """The numbers of the keys that are used, in the order in which the messages first use them."""
        numbers = self.numbers
        if numbers is None:
            return [0]
        first = ((numbers.find(number), number) for number in range(len(self.keys)))
        return [number for place, number in sorted(first) if place >= 0]


def used_keys(keys: Sequence[bytes], numbers: bytes) -> tuple[list[bytes], bytes | None]:
    """Reduce keys to those that are used, and renumber them; ``None`` for the numbers of a single key."""
    used_numbers = set(numbers)
    if len(used_numbers) == 1:
        return [keys[numbers[0]]], None
    if max(used_numbers, default=-1) < len(used_numbers):
        return list(keys[: len(used_numbers)]), numbers
    used = sorted(used_numbers)
    renumber = bytearray(256)
    for number, old in enumerate(used):
        renumber[old] = number
    return [keys[number] for number in used], numbers.translate(renumber)


def _made(keys: list[bytes], numbers: bytes | None, payloads: list[bytes]) -> Batch:
    count = len(payloads)
    size = sum(map(len, payloads)) + count * _OF_A_PACKET
    if len(keys) == 1 or numbers is None:
        return Batch(keys, None, count, size + count * len(keys[0]), payloads)
    return Batch(keys, numbers, count, size + _key_bytes(list(map(len, keys)), numbers), payloads)


def _total(sizes: bytes, count: int) -> int:
    """The sum of a column of lengths."""
    if sizes == sizes[:4] * count:
        return count * int.from_bytes(sizes[:4], "little")
    return sum(struct.unpack(f"<{count}I", sizes))


def _key_bytes(key_sizes: Sequence[int], numbers: bytes) -> int:
    """The lengths of the keys of all messages together."""
    if key_sizes.count(key_sizes[0]) == len(key_sizes):
        return key_sizes[0] * len(numbers)
    return sum(map(key_sizes.__getitem__, numbers))


_ROW = 64


@lru_cache(maxsize=64)
def _row(size: int) -> struct.Struct:
    """Make the struct that cuts 64 payloads of one size at once."""
    return struct.Struct(f"{size}s" * _ROW)


def cut(joined: bytes | memoryview, sizes: bytes, count: int) -> list[bytes]:
    """Cut payloads apart, by their column of lengths."""
    if sizes != sizes[:4] * count:
        return list(map(BytesIO(joined).read, struct.unpack(f"<{count}I", sizes)))
    size = int.from_bytes(sizes[:4], "little")
    rows = count // _ROW if size else 0
    offsets = range(0, rows * _ROW * size, _ROW * size) if rows else range(0)
    payloads = [*chain.from_iterable(map(_row(size).unpack_from, repeat(joined), offsets))] if rows else []
    read = BytesIO(joined[rows * _ROW * size :]).read
    payloads += map(read, repeat(size, count - rows * _ROW))
    return payloads


def take_apart(packets: Sequence[bytes]) -> tuple[list[bytes], bytes | list[int] | None, Sequence[bytes]]:
    """Split packets of messages into keys, numbers and payloads; numbers are a list for more keys than fit a batch."""
    first = packets[0]
    size = first.find(b"\0") + 1
    header = first[:size]
    # Most often all are under one key; then the first and the last in sorted order are, and no other has to be read.
    if min(packets).startswith(header) and max(packets).startswith(header):
        return [header[len(MSG) : -1]], None, [packet[size:] for packet in packets]
    heads, _, payloads = zip(*map(bytes.partition, packets, repeat(b"\0")), strict=True)
    kinds = {head: number for number, head in enumerate(dict.fromkeys(heads))}
    keys = [head[len(MSG) :] for head in kinds]
    numbers = map(kinds.__getitem__, heads)
    return keys, bytes(numbers) if len(kinds) <= BATCH_KEYS else list(numbers), payloads


def coalesce(packets: list[bytes]) -> Batch | None:
    """Join packets of messages, two or more, into one batch; ``None`` if it would be too large."""
    keys, numbers, payloads = take_apart(packets)
    if isinstance(numbers, list):
        return None
    expanded = sum(map(len, packets))
    if len(packets) > BATCH_MESSAGES or expanded > BATCH_EXPANDED:
        return None
    if expanded + 4 * len(packets) + _COLUMNS > PACKET_BYTES:  # an upper bound of its length
        return None
    batch = Batch(keys, numbers, len(packets), expanded, list(payloads))
    batch._plain = packets
    return batch


def pack(
    pairs: Sequence[tuple[bytes, bytes]], check: Callable[[bytes], None], most: int
) -> Iterator[tuple[bytes, int]]:
    """Encode pairs of key and payload to packets with their numbers of messages: batches, or plain for single ones.

    ``check`` raises for a key that cannot be published. It is called with each distinct key, unless no key has a NUL or
    a ``!``: then all are good. ``most`` is the limit of payload bytes of one batch. The packets that come before
    an error are in order, and can be sent. Raises the errors of ``check`` and
    :func:`~sbuslib.wire.packets.encode_message`, and :exc:`TypeError` or :exc:`ValueError` for anything but a pair of
    bytes. The error does not name the pair at fault.
    """
    keys = [key for key, _ in pairs]
    payloads = [payload for _, payload in pairs]
    first = keys[0]
    kinds = [first] if keys.count(first) == len(keys) else list(dict.fromkeys(keys))
    if not _surely_good(kinds):
        for key in kinds:
            check(key)
    sizes = list(map(len, payloads))
    yield from _pack(kinds, keys, payloads, sizes, most)


def _surely_good(keys: list[bytes]) -> bool:
    """Whether no key needs to be checked by itself: all are bytes, and none has a NUL or the reserved ``!``."""
    if not {bytes}.issuperset(map(type, keys)):
        return False
    joined = b"\0".join(keys)
    return b"!" not in joined and joined.count(b"\0") == len(keys) - 1


def _pack(
    kinds: list[bytes], keys: list[bytes], payloads: list[bytes], sizes: list[int], most: int
) -> Iterator[tuple[bytes, int]]:
    count = len(keys)
    if count == 1:
        yield encode_message(keys[0], payloads[0]), 1
        return
    size = sum(sizes)
    if not fits(count, kinds, size, most):
        # As many parts as are needed if all keys alternate; a part that is still too large is split again.
        apiece = -(-count // max(2, -(-len(kinds) // BATCH_KEYS)))
        for start in range(0, count, apiece):
            part = slice(start, start + apiece)
            part_keys = keys[part]
            yield from _pack(list(dict.fromkeys(part_keys)), part_keys, payloads[part], sizes[part], most)
        return
    numbers: bytes | None = None
    if len(kinds) == count:
        numbers = _ALL[:count]
    elif len(kinds) > 1:
        of = {key: number for number, key in enumerate(kinds)}
        numbers = bytes(map(of.__getitem__, keys))
    joined = b"".join(payloads)
    if len(joined) != size:
        raise TypeError("a payload is bytes")  # of one whose length does not count bytes
    yield lay_out(kinds, numbers, struct.pack(f"<{count}I", *sizes), (joined,)), count


def fits(count: int, keys: Sequence[bytes], size: int, most: int) -> bool:
    """Whether ``count`` messages, with ``size`` bytes of payload, fit one batch of at most ``most``."""
    if count > BATCH_MESSAGES or len(keys) > BATCH_KEYS or size > most:
        return False
    longest = max(map(len, keys))
    return (
        size + count * (longest + _OF_A_PACKET) <= BATCH_EXPANDED
        and size + len(keys) * (longest + 4) + 5 * count + _COLUMNS <= PACKET_BYTES
    )


def lay_out(
    keys: Sequence[bytes], numbers: bytes | None, sizes: bytes, payloads: Iterable[bytes | memoryview]
) -> bytes:
    """Encode a batch from its columns."""
    kinds = len(keys)
    return b"".join(
        (
            BATCH,
            _NUMBERS.pack(_FORM, len(sizes) // 4, kinds),
            struct.pack(f"<{kinds}I", *map(len, keys)),
            sizes,
            numbers or b"",
            *keys,
            *payloads,
        )
    )
