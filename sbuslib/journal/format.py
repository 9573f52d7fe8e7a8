"""The bytes of a journal's segments: headers and column blocks, to values and back. ``docs/journal.md`` draws them.

A segment is a header of :data:`SEGMENT_HEADER_BYTES` and blocks one after the other, each a multiple of 8 bytes long.
A block holds up to some thousand rows as columns: what is alike lies together, so that whoever reads a million rows
wraps a few buffers and touches no row. Keys, senders and causes stand once in a block, in its *names*, and rows refer
to them by number.

All numbers are little-endian. Every byte is under a CRC-32, which starts from a salt that only the segment's header
tells: so a payload cannot hold a block that passes for one when a reader looks for the next after a damage.
Rows are numbered one by one through all segments of a journal, so that what is missing shows, and is counted.

Pure, and the standard library alone: whoever has this file can read a journal. A segment is a stranger's file all
the same: the CRC tells of damage, not of malice.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from io import BytesIO  # memory, not a file
from itertools import accumulate
from operator import sub
from typing import Literal, NamedTuple, TypeAlias
from zlib import crc32

from ..errors import CorruptJournalError

__all__ = [
    "BLOCK_HEADER_BYTES",
    "GAP",
    "MESSAGE",
    "NULL",
    "SEGMENT_HEADER_BYTES",
    "SUFFIX",
    "Block",
    "Buffer",
    "Column",
    "End",
    "Extent",
    "Record",
    "SegmentHeader",
    "Skipped",
    "block_length",
    "encode_block",
    "encode_columns",
    "encode_end",
    "encode_gaps",
    "first_sequence_of",
    "pack",
    "packed",
    "read_blocks",
    "segment_name",
    "sound_blocks",
    "walk",
    "widened",
]

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Column: TypeAlias = "memoryview | array[int]"
"""Numbers: ``len``, indices and slices; a view into what was read where this machine is little-endian."""

MESSAGE: Literal["message"] = "message"
GAP: Literal["gap"] = "gap"
"""The kinds of rows. A gap row stands for messages that the recorder was to record and did not."""

NULL = -1
"""Stands in a column for no value: an id that the hub could not vouch for, the sender of a gap row."""

SUFFIX = ".sbj"
SEGMENT_HEADER_BYTES = 112
BLOCK_HEADER_BYTES = 24

_MAGIC = b"sbusjrnl"
_VERSION = 1
_SEGMENT = struct.Struct("<8sHBBIqqII16s32s24x")
_CRC_AT = 12
_BLOCK = struct.Struct("<4sIIIII")
_END = struct.Struct("<q")
_COUNT = struct.Struct("<I4x")

_MESSAGES, _GAPS, _ENDS = b"sBmB", b"sBgB", b"sBeB"
_KINDS: dict[bytes, Literal["message", "gap"]] = {_MESSAGES: MESSAGE, _GAPS: GAP}
_PADDING = [bytes(n) for n in (0, 7, 6, 5, 4, 3, 2, 1)]
_LITTLE = sys.byteorder == "little"


def segment_name(first_sequence: int) -> str:
    """The name of the segment whose first row has this number: 20 digits, so that names sort as numbers do."""
    return f"{first_sequence:020d}{SUFFIX}"


def first_sequence_of(name: str) -> int | None:
    """The number in a segment's name; ``None`` for a file that is no segment."""
    digits = name.removesuffix(SUFFIX)
    return int(digits) if len(digits) == 20 and digits.isdecimal() and name == digits + SUFFIX else None


class SegmentHeader(NamedTuple):
    """What stands at the start of a segment.

    ``journal`` is the identity of the directory (16 hexadecimal digits) and ``hub`` that of the hub that was recorded
    (empty where it told none), ``separator`` the byte between the segments of its keys, ``created_ns`` nanoseconds
    since the epoch, ``first_sequence`` the number of the first row, and ``salt`` what the blocks' CRCs start from.
    """

    journal: str
    hub: str
    separator: bytes
    created_ns: int
    first_sequence: int
    salt: int

    def encode(self) -> bytes:
        """The header's :data:`SEGMENT_HEADER_BYTES` bytes. A hub's identity of more than 32 bytes is cut."""
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
        )
        return data[:_CRC_AT] + crc32(data).to_bytes(4, "little") + data[_CRC_AT + 4 :]

    @classmethod
    def decode(cls, data: Buffer) -> SegmentHeader:
        """Read a header. Raises :exc:`~sbuslib.errors.CorruptJournalError`."""
        head = bytes(data[:SEGMENT_HEADER_BYTES])
        if len(head) < SEGMENT_HEADER_BYTES:
            raise CorruptJournalError("the segment's header is cut", 0)
        magic, version, separator, size, crc, created, first, salt, _, journal, hub = _SEGMENT.unpack(head)
        if magic != _MAGIC:
            raise CorruptJournalError("no segment of a journal starts like this", 0)
        if crc != crc32(head[:_CRC_AT] + bytes(4) + head[_CRC_AT + 4 :]):
            raise CorruptJournalError("the segment's header is damaged", 0)
        if version != _VERSION:
            raise CorruptJournalError(f"a segment of version {version}, of which this release knows nothing", 0)
        return cls(journal.decode(), hub[:size].decode(errors="replace"), bytes([separator]), created, first, salt)


class Record(NamedTuple):
    """One row. Of a message ``lost`` and ``cause`` are ``None``; of a gap ``key``, ``payload`` and ``sender`` are.

    ``time_ns`` is nanoseconds since the epoch: when the recorder saw the message, or since when the messages of a gap
    were lost; ``lost`` is ``None``, too, where nobody knows how many. ``gid``, ``uid`` and ``pid`` are the recording
    hub's word, ``None`` where it could not vouch for it.
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


class Block(NamedTuple):
    """The rows of a block, as columns. Of ``rows`` numbers each, but for the two columns of offsets.

    ``times`` (nanoseconds), ``sequences``, ``gids``, ``uids`` and ``pids`` are 64-bit, the rest 32-bit numbers.
    ``keys`` and ``senders`` are numbers of names; name ``n`` is ``names[name_offsets[n]:name_offsets[n + 1]]``, and the
    payload of row ``n`` lies likewise in ``payloads``. In a block of gaps ``keys`` names the causes, and each payload
    is the count, of 8 bytes. ``position`` and ``length`` are bytes: where the block stands in its segment.
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
        """Where the next block stands."""
        return self.position + self.length

    @property
    def next_sequence(self) -> int:
        """The number of the row after this block's last."""
        return int(self.sequences[-1]) + 1

    def name_list(self) -> list[bytes]:
        """The names, in order."""
        offsets = self.name_offsets.tolist()
        return [*map(BytesIO(self.names).read, map(sub, offsets[1:], offsets))]

    def lost(self) -> list[int]:
        """How many messages each gap row stands for, :data:`NULL` if nobody knows; only of a block of gaps."""
        return list(_numbers(self.payloads, "q"))

    def records(self) -> Iterator[Record]:
        """The rows, one by one."""
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
    """The mark at the end of a segment that will not grow: the next row, wherever it stands, has ``next_sequence``."""

    position: int
    length: int
    next_sequence: int

    @property
    def end(self) -> int:
        """Where the segment ends."""
        return self.position + self.length


class Skipped(NamedTuple):
    """What a reader that was asked to skip left out: ``length`` bytes from ``position`` on, for ``reason``.

    ``rows`` is how many rows were in there; ``None`` where nothing that is whole tells.
    """

    position: int
    length: int
    rows: int | None
    reason: str


# -- writing ------------------------------------------------------------------------------------------


def _padded(size: int) -> int:
    return (size + 7) & ~7


def block_length(rows: int, names: int, names_bytes: int, payload_bytes: int) -> int:
    """How long a block is, in bytes: of ``rows`` rows, ``names`` names, and the sizes of its two blobs."""
    return (
        BLOCK_HEADER_BYTES
        + _COUNT.size
        + 40 * rows
        + 2 * _padded(4 * rows)
        + _padded(4 * rows + 4)
        + _padded(4 * names + 4)
        + _padded(names_bytes)
        + _padded(payload_bytes)
    )


def pack(kind: Literal["i", "q"], values: Sequence[int]) -> bytes:
    """A column of numbers of 4 bytes (``i``) or 8 (``q``)."""
    return struct.pack(f"<{len(values)}{kind}", *values)


@lru_cache(32)
def _steps(count: int, kind: Literal["i", "q"]) -> tuple[int, int]:
    """Columns of ``count`` numbers as one big number each: 0, 1, 2 and so on, and only ones."""
    steps, ones = pack(kind, range(count)), pack(kind, [1]) * count
    return int.from_bytes(steps, "little"), int.from_bytes(ones, "little")


def _ramp(start: int, step: int, count: int, kind: Literal["i", "q"]) -> bytes:
    """A column ``start``, ``start + step``, …, none of which is negative: two operations however many there are."""
    most = (count + 255) & ~255  # so that there are few sizes to prepare for
    steps, ones = _steps(most, kind)
    size = struct.calcsize(kind)
    return (steps * step + ones * start).to_bytes(most * size + 8, "little")[: count * size]


def widened(numbers: bytes) -> bytearray:
    """A column of numbers of 4 bytes, of one in which each has one byte."""
    column = bytearray(4 * len(numbers))
    column[::4] = numbers
    return column


def _offsets(sizes: bytes) -> tuple[bytes, int]:
    """The column of where each part begins when they lie one after the other, and of where the last one ends; that.

    ``sizes`` is how long each is, a column of numbers of 4 bytes.
    """
    count = len(sizes) // 4
    if sizes == sizes[:4] * count:
        size = int.from_bytes(sizes[:4], "little")
        return _ramp(0, size, count + 1, "i"), size * count
    offsets = [*accumulate(struct.unpack(f"<{count}i", sizes), initial=0)]
    return pack("i", offsets), offsets[-1]


def encode_block(
    salt: int,
    first_sequence: int,
    times: bytes,
    gids: bytes,
    uids: bytes,
    pids: bytes,
    keys: bytes,
    senders: bytes,
    names: Sequence[bytes],
    payloads: Sequence[bytes],
    kind: Literal["message", "gap"] = MESSAGE,
) -> bytearray:
    """A block of rows that are numbered from ``first_sequence`` on.

    The columns are as :func:`pack` makes them: the first four of type ``q``, ``keys`` and ``senders``, which are
    indices of ``names``, of type ``i``; each has as many numbers as there are ``payloads``.
    """
    sizes = pack("i", [*map(len, payloads)])
    return encode_columns(
        salt, first_sequence, times, gids, uids, pids, keys, senders, names, sizes, payloads, kind=kind
    )


def encode_columns(
    salt: int,
    first_sequence: int,
    times: bytes,
    gids: bytes,
    uids: bytes,
    pids: bytes,
    keys: Buffer,
    senders: bytes,
    names: Sequence[bytes],
    sizes: bytes,
    payloads: Sequence[Buffer],
    *,
    kind: Literal["message", "gap"] = MESSAGE,
) -> bytearray:
    """As :func:`encode_block`, of payloads that may lie together: ``sizes``, of type ``i``, tells how long each is."""
    rows = len(sizes) // 4
    payload_offsets, payload_bytes = _offsets(sizes)
    name_offsets = [*accumulate(map(len, names), initial=0)]
    names_bytes = name_offsets[-1]
    length = block_length(rows, len(names), names_bytes, payload_bytes)
    parts: list[Buffer] = [bytes(BLOCK_HEADER_BYTES), _COUNT.pack(len(names))]
    parts += (times, _ramp(first_sequence, 1, rows, "q"), gids, uids, pids)
    for column in (keys, senders, payload_offsets, pack("i", name_offsets)):
        parts += (column, _PADDING[len(column) & 7])
    parts += names
    parts.append(_PADDING[names_bytes & 7])
    parts += payloads
    parts.append(_PADDING[payload_bytes & 7])
    magic = _MESSAGES if kind == MESSAGE else _GAPS
    return _sealed(magic, salt, length, rows, names_bytes, payload_bytes, parts)


def encode_gaps(salt: int, first_sequence: int, gaps: Sequence[tuple[int, str, int | None]]) -> bytearray:
    """A block of gap rows: of each the time in nanoseconds, the cause, and how many messages were lost if known."""
    causes = list(dict.fromkeys(cause for _, cause, _ in gaps))
    nothing = pack("q", [NULL]) * len(gaps)
    return encode_block(
        salt,
        first_sequence,
        pack("q", [time for time, _, _ in gaps]),
        nothing,
        nothing,
        nothing,
        pack("i", [causes.index(cause) for _, cause, _ in gaps]),
        pack("i", [NULL]) * len(gaps),
        [cause.encode() for cause in causes],
        [_END.pack(NULL if lost is None else lost) for _, _, lost in gaps],
        GAP,
    )


def encode_end(salt: int, next_sequence: int) -> bytearray:
    """The mark at the end of a segment that will not grow."""
    length = BLOCK_HEADER_BYTES + _END.size
    return _sealed(_ENDS, salt, length, 0, 0, 0, [bytes(BLOCK_HEADER_BYTES), _END.pack(next_sequence)])


def _sealed(
    magic: bytes, salt: int, length: int, rows: int, names_bytes: int, payload_bytes: int, parts: Sequence[Buffer]
) -> bytearray:
    """The parts of a block in one piece, with its header in the room that they leave for it at the start."""
    block = bytearray().join(parts)
    assert len(block) == length
    crc = crc32(_BLOCK.pack(magic, length, 0, rows, names_bytes, payload_bytes), salt)
    with memoryview(block) as view:
        crc = crc32(view[BLOCK_HEADER_BYTES:], crc)
    _BLOCK.pack_into(block, 0, magic, length, crc, rows, names_bytes, payload_bytes)
    return block


# -- reading ------------------------------------------------------------------------------------------


def _numbers(view: memoryview, kind: Literal["i", "q"]) -> Column:
    if _LITTLE:
        return view.cast(kind)
    column: array[int] = array(kind, view.tobytes())
    column.byteswap()
    return column


def packed(column: Column) -> bytes:
    """A column of a block that was read as :func:`pack` made it."""
    if _LITTLE:
        return bytes(column)
    assert isinstance(column, array)
    swapped = column[:]
    swapped.byteswap()
    return swapped.tobytes()


class _Header(NamedTuple):
    """A block's header, as far as it agrees with itself."""

    magic: bytes
    length: int
    crc: int
    rows: int
    names: int
    names_bytes: int
    payload_bytes: int


def _peek(data: Buffer, at: int, left: int, position: int) -> _Header:
    """The header of the block at ``data[at]``, with its count of names; ``left`` bytes of the segment follow there.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`, also where the block is not all there.
    """
    if left < BLOCK_HEADER_BYTES + _COUNT.size:
        raise CorruptJournalError("a block is cut", position)
    magic, length, crc, rows, names_bytes, payload_bytes = _BLOCK.unpack_from(data, at)
    (names,) = _COUNT.unpack_from(data, at + BLOCK_HEADER_BYTES)
    if magic == _ENDS:
        names, expected = 0, BLOCK_HEADER_BYTES + _END.size
        sound = rows == names_bytes == payload_bytes == 0
    else:
        expected = block_length(rows, names, names_bytes, payload_bytes)
        sound = magic in _KINDS and rows > 0
    if not sound or length != expected:
        raise CorruptJournalError("the header of a block is damaged", position)
    if length > left:
        raise CorruptJournalError("a block is cut", position)
    return _Header(magic, length, crc, rows, names, names_bytes, payload_bytes)


def decode_block(data: Buffer, at: int, salt: int, position: int | None = None) -> Block | End:
    """The block at ``data[at]``, as views into ``data``, or the end mark that stands there.

    ``position`` is where that is in its segment, unless ``at``. Raises
    :exc:`~sbuslib.errors.CorruptJournalError` unless every byte is what it was.
    """
    position = at if position is None else position
    header = _peek(data, at, len(data) - at, position)
    rows, end = header.rows, at + header.length
    view = memoryview(data)
    packed = _BLOCK.pack(header.magic, header.length, 0, rows, header.names_bytes, header.payload_bytes)
    if crc32(view[at + BLOCK_HEADER_BYTES : end], crc32(packed, salt)) != header.crc:
        raise CorruptJournalError("a block is damaged", position)
    if header.magic == _ENDS:
        return End(position, header.length, _END.unpack_from(data, at + BLOCK_HEADER_BYTES)[0])
    at += BLOCK_HEADER_BYTES + _COUNT.size
    wide: list[Column] = []
    for _ in range(5):
        wide.append(_numbers(view[at : at + 8 * rows], "q"))
        at += 8 * rows
    narrow: list[Column] = []
    for count in (rows, rows, rows + 1, header.names + 1):
        narrow.append(_numbers(view[at : at + 4 * count], "i"))
        at += _padded(4 * count)
    names = view[at : at + header.names_bytes]
    at += _padded(header.names_bytes)
    payloads = view[at : at + header.payload_bytes]
    times, sequences, gids, uids, pids = wide
    keys, senders, payload_offsets, name_offsets = narrow
    return Block(
        position,
        header.length,
        _KINDS[header.magic],
        rows,
        times,
        sequences,
        gids,
        uids,
        pids,
        keys,
        senders,
        payload_offsets,
        name_offsets,
        names,
        payloads,
    )


class Extent(NamedTuple):
    """Where a block stands, how long it is in bytes, and how many rows it says it has; ``None`` of an end mark."""

    position: int
    length: int
    rows: int | None

    @property
    def end(self) -> int:
        """Where the next block stands."""
        return self.position + self.length


def walk(read_at: Callable[[int, int], Buffer], size: int, at: int = SEGMENT_HEADER_BYTES) -> Iterator[Extent]:
    """The extents of the blocks between ``at`` and ``size`` in a segment, up to the first that is not all there.

    It reads no more than the headers: with ``read_at(position, length)``, which need not be of a local file. A
    recorder appends whole blocks in order, so what it has not finished is always last. Whether a block is whole is
    found out when it is read: :func:`decode_block`.
    """
    length = BLOCK_HEADER_BYTES + _COUNT.size
    while at + length <= size:
        try:
            header = _peek(read_at(at, length), 0, size - at, at)
        except CorruptJournalError:
            return
        extent = Extent(at, header.length, None if header.magic == _ENDS else header.rows)
        yield extent
        at = extent.end


def _find(data: bytes, at: int, salt: int, least: int) -> int | None:
    """Where the next whole block from ``data[at]`` on stands whose rows are numbered ``least`` or more."""
    candidates: list[int] = []
    for magic in (_MESSAGES, _GAPS, _ENDS):
        found = data.find(magic, at)
        while found >= 0:
            if found % 8 == 0:
                candidates.append(found)
            found = data.find(magic, found + 1)
    for found in sorted(candidates):
        try:
            block = decode_block(data, found, salt)
        except CorruptJournalError:
            continue
        first = block.next_sequence if isinstance(block, End) else block.sequences[0]
        if first >= least:
            return found
    return None


def _first(block: Block | End) -> int:
    return block.next_sequence if isinstance(block, End) else int(block.sequences[0])


def sound_blocks(data: Buffer, salt: int, expected: int | None, base: int) -> Iterator[Block]:
    """The blocks that ``data`` begins with, up to where it is cut or anything is wrong; or the end mark stands.

    The arguments are as those of :func:`read_blocks`, which can tell what it is that ended them.
    """
    at = 0
    while True:
        try:
            block = decode_block(data, at, salt, base + at)
        except CorruptJournalError:
            return
        if isinstance(block, End) or (expected is not None and block.sequences[0] != expected):
            return
        yield block
        at += block.length
        expected = block.next_sequence


def read_blocks(
    data: Buffer,
    salt: int,
    expected: int | None,
    following: int | None = None,
    *,
    base: int = 0,
    on_corrupt: Literal["error", "skip"] = "error",
    growing: bool = False,
) -> Iterator[Block | End | Skipped]:
    """The blocks from somewhere in a segment to its end, one after the other.

    ``data`` begins with a block, which stands at ``base`` in its segment, and whose first row should be numbered
    ``expected``; the next segment begins with the row numbered ``following``. Both may be ``None``: not known. With
    ``growing``, the end of ``data`` is where a recorder may be writing right now: the end mark may be missing, and
    bytes after the last whole block are left alone.

    Raises :exc:`~sbuslib.errors.CorruptJournalError` for damage, and for rows that are missing; with
    ``on_corrupt="skip"`` goes on at the next whole block, and yields a :class:`Skipped` in its place.
    """
    at, size, skip, ended = 0, len(data), on_corrupt == "skip", False
    while at < size:
        position = base + at
        try:
            block = decode_block(data, at, salt, position)
            first = _first(block)
            if expected is not None and first != expected:
                reason = f"rows {expected} to {first - 1} are missing" if first > expected else "rows come twice"
                raise CorruptJournalError(reason, position)
        except CorruptJournalError as error:
            rest = bytes(data)
            found = _find(rest, at, salt, expected if expected is not None else 0)
            if found is None and growing:
                return
            if not skip:
                raise
            if found is None:
                rows = _rows_at(rest, at) if expected is None or following is None else following - expected
                yield Skipped(position, size - at, rows, error.reason)
                return
            first = _first(decode_block(data, found, salt))
            yield Skipped(position, found - at, None if expected is None else first - expected, error.reason)
            at, expected = found, first
            continue
        yield block
        at += block.length
        expected = block.next_sequence
        if isinstance(block, End):
            ended = True
            break
    if growing and not ended:
        return
    # What is wrong here is no block, so there is none to skip: whoever skips is told with a length of 0, or the rest.
    reason = ""
    if at < size:
        reason = "bytes after the end mark"
    elif not ended:
        reason = "the segment has no end mark: its recorder is at work, or was killed and did not start again"
    elif following is not None and following != expected:
        reason = f"rows {expected} to {following - 1} are missing between this segment and the next"
    if reason:
        if not skip:
            raise CorruptJournalError(reason, base + at)
        rows = 0 if ended else None
        if expected is not None and following is not None:
            rows = following - expected
        yield Skipped(base + at, size - at, rows, reason)


def _rows_at(data: bytes, at: int) -> int | None:
    """How many rows the damaged rest of a segment says it has; ``None`` where it does not agree with itself."""
    rows = 0
    while at < len(data):
        try:
            header = _peek(data, at, len(data) - at, at)
        except CorruptJournalError:
            return None
        rows += header.rows
        at += header.length
    return rows
