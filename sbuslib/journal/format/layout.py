"""Layout of a journal's segments: headers, blocks and end marks, as values. ``docs/journal.md`` draws them.

A segment is a header of :data:`SEGMENT_HEADER_BYTES` and blocks one after the other, each a multiple of 8 bytes long.
A block holds up to some thousand rows as columns, so that a reader of a million rows wraps a few buffers and touches no
single row. Each key, sender and cause stands once in a block, in its *names*, and rows refer to it by number.

All numbers are little-endian. A CRC-32 covers every byte. It starts from a salt in the segment's header that publishers
do not know. So a reader that searches for the next block after damage never takes bytes of a payload for one.
Rows are numbered one by one through all segments of a journal, so that missing rows are noticed and counted.

Blocks are made in :mod:`.encoding`, and read and checked in :mod:`.decoding`. These three are pure and need little more
than the standard library: they are enough to read a journal.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from io import BytesIO  # memory, not a file
from operator import sub
from typing import Literal, NamedTuple, TypeAlias
from zlib import crc32

from ...errors import CorruptJournalError, UsageError
from ...matcher import check_separator

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Column: TypeAlias = "memoryview | array[int]"
"""Numbers: ``len``, indices and slices; mostly a view into the bytes read."""

MESSAGE: Literal["message"] = "message"
GAP: Literal["gap"] = "gap"
"""The kinds of rows. A gap row stands for messages that should have been recorded and were not."""

NULL = -1
"""Mark for no value in a column: an id that the hub could not verify, the sender of a gap row."""

MOST_ROWS = 2**63 - 2**40
"""The largest number of a row. Numbers written after it still fit 64 bits."""

SUFFIX = ".sbj"
SEGMENT_HEADER_BYTES = 112
BLOCK_HEADER_BYTES = 24

_IDENTITY = re.compile(rb"[\x21-\x7e]{16}")
_MAGIC = b"sbusjrnl"
_VERSION = 1
_SEGMENT = struct.Struct("<8sHBBIqqII16s32s16s8x")
_CRC_AT = 12
BLOCK_HEADER = struct.Struct("<4sIIIII")
SEQUENCE = struct.Struct("<q")
NAME_COUNT = struct.Struct("<I4x")

MESSAGES_MAGIC, GAPS_MAGIC, ENDS_MAGIC = b"sBmB", b"sBgB", b"sBeB"
KINDS: dict[bytes, Literal["message", "gap"]] = {MESSAGES_MAGIC: MESSAGE, GAPS_MAGIC: GAP}


def segment_name(first_sequence: int) -> str:
    """Name of the segment whose first row has this number: 20 digits, so that names sort as numbers do."""
    return f"{first_sequence:020d}{SUFFIX}"


def first_sequence_of(name: str) -> int | None:
    """The number in a segment's name; ``None`` for a file that is no segment."""
    digits = name.removesuffix(SUFFIX)
    if len(digits) != 20 or not (digits.isascii() and digits.isdigit()) or name != digits + SUFFIX:
        return None
    first = int(digits)
    return first if first <= MOST_ROWS else None


class SegmentHeader(NamedTuple):
    """Header of a segment.

    ``journal`` is the identity of the directory (16 hexadecimal digits) and ``hub`` the id of the recorded hub (empty
    if it has none), ``separator`` the byte between the segments of its keys, ``created_ns`` nanoseconds since the
    epoch, ``first_sequence`` the number of the first row, and ``salt`` the start value of the blocks' CRCs. ``boot`` is
    the id of the boot of the machine that wrote it (zeros if unknown): see :mod:`.recovery`.
    """

    journal: str
    hub: str
    separator: bytes
    created_ns: int
    first_sequence: int
    salt: int
    boot: bytes = bytes(16)

    def encode(self) -> bytes:
        """Encode the header to :data:`SEGMENT_HEADER_BYTES` bytes. A hub's id of more than 32 bytes is cut."""
        hub = self.hub.encode()[:32]
        data = _SEGMENT.pack(
            _MAGIC,
            _VERSION,
            self.separator[0],
            len(hub),
            0,
            self.created_ns,
            self.first_sequence,
            self.salt,
            0,
            self.journal.encode(),
            hub,
            self.boot,
        )

        # The CRC is computed with zeros in its own place.
        return data[:_CRC_AT] + crc32(data).to_bytes(4, "little") + data[_CRC_AT + 4 :]

    @classmethod
    def decode(cls, data: Buffer) -> SegmentHeader:
        """Read a header. Raises :exc:`~sbuslib.errors.CorruptJournalError`."""
        # 1. Unpack the fields.
        head = bytes(data[:SEGMENT_HEADER_BYTES])
        if len(head) < SEGMENT_HEADER_BYTES:
            raise CorruptJournalError("the segment's header is cut", 0)
        magic, version, separator, size, crc, created, first, salt, _, journal, hub, boot = _SEGMENT.unpack(head)

        # 2. Check them: first the magic, so that another kind of file is reported as one.
        if magic != _MAGIC:
            raise CorruptJournalError("no segment of a journal starts like this", 0)
        if crc != crc32(head[:_CRC_AT] + bytes(4) + head[_CRC_AT + 4 :]):
            raise CorruptJournalError("the segment's header is damaged", 0)
        if version != _VERSION:
            raise CorruptJournalError(f"a segment of version {version}, which this release does not know", 0)
        if created < 0 or not 0 < first <= MOST_ROWS or not _IDENTITY.fullmatch(journal):
            raise CorruptJournalError("the segment's header has a value that no recorder writes", 0)
        try:
            check_separator(bytes([separator]))
        except UsageError as error:
            raise CorruptJournalError(f"the segment's header: {error}", 0) from None

        # 3. The values.
        name = hub[:size].decode(errors="replace")
        return cls(journal.decode(), name, bytes([separator]), created, first, salt, boot)


class Record(NamedTuple):
    """One row. Of a message ``lost`` and ``cause`` are ``None``; of a gap ``key``, ``payload`` and ``sender`` are.

    ``time_ns`` is nanoseconds since the epoch: when the recorder saw the message, or since when the messages of a gap
    were lost; ``lost`` is ``None``, too, where the number is not known. ``gid``, ``uid`` and ``pid`` are verified by
    the recording hub, ``None`` where it could not.
    """

    time_ns: int
    sequence: int
    kind: Literal["message", "gap"]
    key: bytes | None
    payload: bytes | None
    sender: bytes | None
    gid: int | None
    uid: int | None
    pid: int | None
    lost: int | None = None
    cause: str | None = None


WIDE = ("times", "sequences", "gids", "uids", "pids")
"""The columns of a block with a number of 8 bytes for each row, in their order."""

NARROW = ("keys", "senders")
"""The columns with a number of 4 bytes for each row, which come after the wide ones."""


class Block(NamedTuple):
    """Rows of a block, as columns. Each has ``rows`` numbers, except the two columns of offsets.

    ``times`` (nanoseconds), ``sequences``, ``gids``, ``uids`` and ``pids`` are 64-bit, the rest 32-bit numbers.
    ``keys`` and ``senders`` are numbers of names; name ``n`` is ``names[name_offsets[n]:name_offsets[n + 1]]``, and the
    payload of row ``n`` lies likewise in ``payloads``. In a block of gaps ``keys`` refers to the causes, and each
    payload is the count, of 8 bytes. ``position`` and ``length`` are in bytes: the place of the block in its segment.
    """

    position: int
    length: int
    kind: Literal["message", "gap"]
    rows: int
    times: Column
    sequences: Column
    gids: Column
    uids: Column
    pids: Column
    keys: Column
    senders: Column
    payload_offsets: Column
    name_offsets: Column
    names: memoryview
    payloads: memoryview

    @property
    def end(self) -> int:
        """Position of the next block."""
        return self.position + self.length

    @property
    def next_sequence(self) -> int:
        """The number of the row after this block's last."""
        return int(self.sequences[-1]) + 1

    def between(self, first: int, before: int) -> Block | None:
        """Select the rows from number ``first`` to before ``before``; ``None`` if there is none.

        Without its last rows it has no place in the segment: ``position`` and ``length`` are 0.
        """
        start, stop = bisect_left(self.sequences, first), bisect_left(self.sequences, before)
        if (start, stop) == (0, self.rows):
            return self
        if start >= stop:
            return None

        # Payloads are cut, and their offsets begin at 0 again; names stay, as rows refer to them by number.
        begin, offsets = self.payload_offsets[start], self.payload_offsets[start : stop + 1]
        place = (self.position, self.length) if stop == self.rows else (0, 0)
        return self._replace(
            position=place[0],
            length=place[1],
            rows=stop - start,
            payload_offsets=array("i", [offset - begin for offset in offsets]),
            payloads=self.payloads[begin : offsets[-1]],
            **{name: getattr(self, name)[start:stop] for name in WIDE + NARROW},
        )

    def name_list(self) -> list[bytes]:
        """The names, in order."""
        offsets = self.name_offsets.tolist()
        return [*map(BytesIO(self.names).read, map(sub, offsets[1:], offsets))]

    def lost(self) -> list[int]:
        """Number of messages of each gap row, :data:`NULL` if it is unknown; only for a block of gaps.

        Raises :exc:`~sbuslib.errors.CorruptJournalError` unless there is a number for each row.
        """
        if len(self.payloads) != 8 * self.rows:
            raise CorruptJournalError("the columns of a block do not agree", self.position)
        return list(numbers(self.payloads, "q"))

    def records(self) -> Iterator[Record]:
        """Iterate over the rows. Raises :exc:`~sbuslib.errors.CorruptJournalError` where the columns do not agree."""
        try:
            yield from self._records()
        except (IndexError, ValueError, TypeError):
            raise CorruptJournalError("the columns of a block do not agree", self.position) from None

    def _records(self) -> Iterator[Record]:
        names = self.name_list()
        ids = ([None if value == NULL else value for value in column] for column in (self.gids, self.uids, self.pids))
        if self.kind == GAP:
            for time, sequence, cause, lost in zip(self.times, self.sequences, self.keys, self.lost(), strict=True):
                count, why = None if lost == NULL else lost, names[cause].decode(errors="replace")
                yield Record(time, sequence, GAP, None, None, None, None, None, None, count, why)
            return
        payloads, offsets = bytes(self.payloads), self.payload_offsets
        for n, (time, sequence, key, sender, gid, uid, pid) in enumerate(
            zip(self.times, self.sequences, self.keys, self.senders, *ids, strict=True)
        ):
            payload = payloads[offsets[n] : offsets[n + 1]]
            yield Record(time, sequence, MESSAGE, names[key], payload, names[sender], gid, uid, pid)


class End(NamedTuple):
    """End mark of a segment that will not grow: the next row, in another segment, has ``next_sequence``.

    ``sequence`` is the number after the segment's last row. It is lower where numbers were left out, after a crash.
    """

    position: int
    length: int
    sequence: int
    next_sequence: int

    @property
    def end(self) -> int:
        """Position of the segment's end."""
        return self.position + self.length


class Skipped(NamedTuple):
    """Damage that a reader skipped: ``length`` bytes from ``position`` on, for ``reason``.

    ``rows`` is the number of rows in them; ``None`` if no whole block shows it.
    """

    position: int
    length: int
    rows: int | None
    reason: str


class Extent(NamedTuple):
    """Position and length of a block in bytes, and the number of rows in its header; ``None`` for an end mark.

    ``first`` is the number of its first row; for an end mark, of the row after the last.
    """

    position: int
    length: int
    rows: int | None
    first: int

    @property
    def end(self) -> int:
        """Position of the next block."""
        return self.position + self.length


def padded(size: int) -> int:
    return (size + 7) & ~7


def block_length(rows: int, names: int, names_bytes: int, payload_bytes: int) -> int:
    """Length of a block in bytes: of ``rows`` rows, ``names`` names, and the sizes of its two blobs."""
    return (
        BLOCK_HEADER_BYTES
        + NAME_COUNT.size
        + len(WIDE) * 8 * rows
        + len(NARROW) * padded(4 * rows)
        + padded(4 * rows + 4)
        + padded(4 * names + 4)
        + padded(names_bytes)
        + padded(payload_bytes)
    )


def pack(kind: Literal["i", "q"], values: Sequence[int]) -> bytes:
    """Pack a column of numbers of 4 bytes (``i``) or 8 (``q``)."""
    return struct.pack(f"<{len(values)}{kind}", *values)


def numbers(view: memoryview, kind: Literal["i", "q"]) -> Column:
    """View bytes as a column. Its numbers are little-endian, and so must be the machine."""
    assert sys.byteorder == "little", "journals are read on little-endian machines"
    return view.cast(kind)


def packed(column: Column) -> bytes:
    """Convert a column of a block that was read to the bytes that :func:`pack` made."""
    return bytes(column)
