"""Decoder of journals to Arrow record batches, with all gaps: from segments, and from sealed files by Arrow.

A block is small (some hundred rows), and wrapping its columns in Arrow costs as much as for a large one. So the columns
of many blocks are joined first, without touching single rows. Numbers that count from the start of a block are then
made to count from the start of the first block. Keys and senders stay numbers of names until the rows are chosen.

A segment may come from an attacker. Its CRC shows damage, not malice, so every number that is used as an index or an
offset is checked before Arrow sees it. Source of the layout: :mod:`sbuslib.journal.format.layout`.

``pyarrow.array``, ``pyarrow.scalar`` and ``to_numpy`` load pandas. That takes a worker of Spark longer than
its first task. It also makes each garbage collection several times as long, and Spark collects after every task. So
arrays are made of buffers here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy
import pyarrow

from ...errors import CorruptJournalError
from ..format.decoding import OnCorrupt
from ..format.layout import GAP, NULL, Block, Column, SegmentHeader
from .blocks import present
from .journal_files import Sealed
from .parquet import sealed_batches
from .read_plan import RowRange
from .schema import SCHEMA
from .segment_rows import segment_rows
from .selection import Selection

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_ROWS = 32_768
"""Rows that are decoded together and handed on at once. Wrapping them costs as much as wrapping one."""

BATCH_BYTES = 33_554_432
"""Bytes of rows decoded together, with their keys written out. A long key shared by many rows must not become
gigabytes."""

_Numbers: TypeAlias = "NDArray[numpy.int64]"


def batches(
    row_ranges: Iterable[RowRange], schema: Any, wanted: Selection, on_corrupt: OnCorrupt = "error"
) -> Iterator[Any]:
    """Yield the wanted rows of some ranges as record batches of ``schema``. Raises as :func:`.blocks.blocks`."""
    decoder = Decoder(schema, wanted)

    def read(row_range: RowRange) -> Iterator[Any]:
        if isinstance(row_range.file, Sealed):
            yield from decoder.finish()
            yield from sealed_batches(row_range, schema, wanted)
            return
        for header, path, block in segment_rows(row_range, on_corrupt):
            yield from decoder.add(header, path, block)

    yield from present(row_ranges, read)
    yield from decoder.finish()


class Decoder:
    """Collects the blocks of one task and yields their rows as record batches of ``schema``.

    Only the columns of ``schema`` are decoded.
    """

    def __init__(
        self, schema: Any, wanted: Selection, batch_rows: int = BATCH_ROWS, batch_bytes: int = BATCH_BYTES
    ) -> None:
        self._schema = schema
        self._wanted = wanted
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        #: Blocks that make the next batch: of one kind, and of one file.
        self._blocks: list[Block] = []
        #: Their rows and bytes.
        self._rows = self._bytes = 0
        #: The header and the path of their file.
        self._of: tuple[SegmentHeader, str] | None = None

    def add(self, header: SegmentHeader, path: str, block: Block) -> Iterator[Any]:
        """Add a block of the segment at ``path``, and yield batches that are ready.

        Raises :exc:`~sbuslib.errors.CorruptJournalError`.
        """
        size = len(block.names) + len(block.payloads)
        if self._blocks and (
            block.kind != self._blocks[0].kind
            or self._of != (header, path)
            or self._rows + block.rows > self._batch_rows
            or self._bytes + size > self._batch_bytes
        ):
            yield from self.finish()
        self._of = header, path
        self._blocks.append(block)
        self._rows += block.rows
        self._bytes += size

    def finish(self) -> Iterator[Any]:
        """Yield the rows of all blocks that were added. Raises :exc:`~sbuslib.errors.CorruptJournalError`."""
        if not self._blocks:
            return
        assert self._of is not None
        (header, path), blocks = self._of, self._blocks
        self._blocks, self._rows, self._bytes = [], 0, 0
        try:
            yield from self._batches(header, blocks)
        except ValueError as error:
            raise CorruptJournalError(f"{error}, in this block or one soon after", blocks[0].position, path) from None

    def _batches(self, header: SegmentHeader, blocks: list[Block]) -> Iterator[Any]:
        # 1. The columns of the schema, and those that select rows.
        wanted, names = self._wanted, {*self._schema.names}
        joined = _Joined(blocks, names | ({"key"} if wanted.by_key else set()))
        mask = numpy.ones(joined.rows, numpy.bool_)
        if wanted.start_ns is not None:
            mask &= joined.times >= wanted.start_ns
        if wanted.end_ns is not None:
            mask &= joined.times < wanted.end_ns
        if wanted.by_key and blocks[0].kind != GAP:
            mask &= joined.wanted_keys(wanted, header.separator)

        # 2. The chosen rows.
        columns, row_bytes = joined.columns, joined.row_bytes
        if not mask.all():
            chosen = numpy.flatnonzero(mask)
            row_bytes = row_bytes[chosen]
            columns = {name: column.take(numbers(chosen, pyarrow.int64())) for name, column in columns.items()}
        constants = {"journal": header.journal, "hub": header.hub, "kind": blocks[0].kind}

        # 3. Nearly always all fit one batch. Else as many as fit once keys are written out, and at least one.
        ends, at = numpy.cumsum(row_bytes), 0
        while at < len(ends):
            before = ends[at - 1] if at else 0
            end = max(at + 1, int(numpy.searchsorted(ends, before + self._batch_bytes, "right")))
            arrays = [
                _column(columns.get(field.name), constants.get(field.name), field.type, at, end)
                for field in self._schema
            ]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)
            at = end


def _column(column: Any, constant: str | None, kind: Any, at: int, end: int) -> Any:
    """The rows from ``at`` to before ``end`` of a column; of one that has no array, the constant or nulls."""
    if column is None:
        data, count = (constant or "").encode(), end - at
        return binary(numpy.full(count, len(data)), [data * count], kind) if data else pyarrow.nulls(count, kind)
    part = column.slice(at, end - at)
    return part.dictionary_decode() if isinstance(part, pyarrow.DictionaryArray) else part


class _Joined:
    """Blocks of one kind and one segment, as one block: the ``columns`` of some names, and the bytes of each row."""

    def __init__(self, blocks: Sequence[Block], names: set[str]) -> None:
        self._blocks = blocks
        #: Number of rows of all blocks.
        self.rows = sum(block.rows for block in blocks)
        #: The time of each row, in nanoseconds since the epoch.
        self.times: _Numbers = _joined([block.times for block in blocks], numpy.int64)
        #: The columns, keys and senders as dictionaries. Where rows of this kind have none, there is no column.
        self.columns: dict[str, Any] = {}
        #: Of messages whose keys are asked for, the number of the key of each row.
        self._keys: _Numbers = numpy.zeros(0, numpy.int64)
        #: Bytes of each row in its key, sender and payload.
        self.row_bytes: _Numbers = numpy.zeros(self.rows, numpy.int64)

        # Columns of all kinds of rows, then those of this kind.
        if "time" in names:
            self.columns["time"] = numbers(self.times // 1000, SCHEMA.field("time").type)
        if "time_ns" in names:
            self.columns["time_ns"] = numbers(self.times, pyarrow.int64())
        if "sequence" in names:
            sequences = _joined([block.sequences for block in blocks], numpy.int64)
            self.columns["sequence"] = numbers(sequences, pyarrow.int64())
        if blocks[0].kind == GAP:
            self._add_gaps()
        else:
            self._add_messages(names)

    def _add_gaps(self) -> None:
        """There are few, so their values are taken one by one."""
        records = [record for block in self._blocks for record in block.records()]
        lost = numpy.array([NULL if record.lost is None else record.lost for record in records], numpy.int64)
        self.columns["lost"] = numbers(lost, pyarrow.int64(), lost == NULL)
        self.columns["cause"] = texts([record.cause or "" for record in records])

    def _add_messages(self, names: set[str]) -> None:
        blocks = self._blocks
        for name in names & {"gid", "uid", "pid"}:
            ids = _joined([getattr(block, f"{name}s") for block in blocks], numpy.int64)
            self.columns[name] = numbers(ids, pyarrow.int64(), ids == NULL)

        # 1. Payloads.
        if names & {"payload", "size"}:
            payloads = [block.payloads for block in blocks]
            sizes = _sizes([block.payload_offsets for block in blocks], payloads)
            self.columns["size"] = numbers(sizes, pyarrow.int64())
            if "payload" in names:
                self.columns["payload"] = binary(sizes, payloads)
                self.row_bytes += sizes

        # 2. Keys and senders: the names of all blocks together, and for each row a number of a name.
        if names & {"key", "sender"}:
            sizes = _sizes([block.name_offsets for block in blocks], [block.names for block in blocks])
            dictionary = binary(sizes, [block.names for block in blocks])
            rows, counts = [block.rows for block in blocks], [len(block.name_offsets) - 1 for block in blocks]
            most = numpy.repeat(counts, rows)  # how many names the block of each row has
            first = numpy.repeat(numpy.cumsum(counts) - counts, rows)  # and which is the first of them
            for name, least in (("key", 0), ("sender", NULL)):
                if name not in names:
                    continue
                of_rows = _joined([getattr(block, f"{name}s") for block in blocks], numpy.int32)
                if of_rows.min() < least or (of_rows >= most).any():
                    raise ValueError("a row refers to a name that is not there")
                missing = of_rows == NULL
                which = numpy.where(missing, 0, of_rows + first)
                self.row_bytes += sizes[which]
                if name == "key":
                    self._keys = which
                indices = numbers(which, pyarrow.int64(), missing)
                self.columns[name] = pyarrow.DictionaryArray.from_arrays(indices, dictionary)

    def wanted_keys(self, wanted: Selection, separator: bytes) -> NDArray[numpy.bool_]:
        """Whether the key of each row is wanted. Names stand in many blocks, and each is asked once."""
        names = self.columns["key"].dictionary.dictionary_encode()
        distinct = numpy.frombuffer(names.indices.buffers()[1], numpy.int32)  # ``to_numpy`` loads pandas
        asked = numpy.array([wanted.wants(name, separator) for name in names.dictionary.to_pylist()], numpy.bool_)
        wanted_rows: NDArray[numpy.bool_] = asked[distinct[self._keys]]
        return wanted_rows


def _joined(columns: Sequence[Column], kind: Any) -> NDArray[Any]:
    return numpy.frombuffer(b"".join(columns), kind)


def _sizes(offsets: Sequence[Column], blobs: Sequence[memoryview]) -> _Numbers:
    """The sizes of the strings in ``blobs``, by the offsets of many blocks. Raises :exc:`ValueError` for wrong ones."""
    whole = _joined(offsets, numpy.int32).astype(numpy.int64)
    ends = numpy.cumsum([len(column) for column in offsets])
    lengths = [len(blob) for blob in blobs]
    if (whole[ends - 1] != lengths).any() or whole[ends[:-1]].any() or whole[0]:
        raise ValueError("offsets do not fit the bytes that they divide")
    sizes = numpy.delete(numpy.diff(whole), ends[:-1] - 1)
    if sizes.size and sizes.min() < 0:
        raise ValueError("offsets go backwards")
    return sizes


# -- arrays of buffers ----------------------------------------------------------------------------------


def numbers(values: NDArray[Any], kind: Any, missing: NDArray[numpy.bool_] | None = None) -> Any:
    """An array of the Arrow type ``kind``, which has the width of ``values``; null where ``missing`` is true."""
    valid = None
    if missing is not None and missing.any():
        valid = pyarrow.py_buffer(numpy.packbits(~missing, bitorder="little"))
    return pyarrow.Array.from_buffers(kind, len(values), [valid, pyarrow.py_buffer(values)])


def binary(sizes: Any, blobs: Sequence[memoryview] | Sequence[bytes], kind: Any = None) -> Any:
    """An array of the byte strings of these sizes that stand one after the other in ``blobs``."""
    offsets = numpy.zeros(len(sizes) + 1, numpy.int32)
    numpy.cumsum(sizes, out=offsets[1:])
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(b"".join(blobs))]
    return pyarrow.Array.from_buffers(kind or pyarrow.binary(), len(sizes), buffers)


def texts(values: Sequence[str]) -> Any:
    """An array of strings."""
    data = [value.encode() for value in values]
    return binary([*map(len, data)], data, pyarrow.string())
