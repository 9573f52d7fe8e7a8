"""Makes Arrow record batches of some ten thousand rows from the blocks of a journal, without touching single rows.

A block is small (some hundred rows), and wrapping its columns in Arrow costs as much as for a large one. So the columns
of many blocks are joined first. Numbers that count from the start of a block are then made to count from the start of
the first block. Keys and senders stay numbers of names until one last ``take``. A filter by key checks each name once.

Anybody may have written a segment. Its CRC shows damage, not malice, so every number that is used as an index or an
offset is checked before Arrow sees it. Source of the layout: :mod:`sbuslib.segments.layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy
import pyarrow

from ..errors import CorruptJournalError
from ..segments.layout import GAP, MESSAGE, NULL, Block, Column, Record, SegmentHeader
from .arrays import binary, numbers, same, texts
from .rows import SCHEMA
from .selection import Selection

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BATCH_ROWS", "Decoder"]

BATCH_ROWS = 32_768
"""Rows that are decoded together and handed on at once. Wrapping them costs as much as wrapping one."""

BATCH_BYTES = 33_554_432
"""Bytes of such rows with their keys written out. A long key that many rows share must not become gigabytes."""

_KNOWN_KEYS = 65_536
"""Distinct keys for which it is remembered whether they are wanted."""

_Numbers: TypeAlias = "NDArray[numpy.int64]"
_Mask: TypeAlias = "NDArray[numpy.bool_]"


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
        #: Whether keys are wanted that came before, in journals of this separator.
        self._known: dict[bytes, bool] = {}
        self._separator = b""  # of those journals

    def add(self, header: SegmentHeader, path: str, block: Block) -> Iterator[Any]:
        """Add a block of the segment at ``path``, and yield what is ready.

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
            group = _Gaps(header, blocks) if blocks[0].kind == GAP else _Messages(header, blocks)
            yield from self._batches(group)
        except ValueError as error:
            raise CorruptJournalError(f"{error}, in this block or one soon after", blocks[0].position, path) from None

    def _batches(self, group: _Group) -> Iterator[Any]:
        chosen = self._chosen(group)
        if chosen is not None:
            if not chosen.size:
                return
            if chosen.size == group.rows:
                chosen = None
        for some in self._pieces(group, chosen):
            arrays = [group.column(field.name, some) for field in self._schema]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _pieces(self, group: _Group, chosen: _Numbers | None) -> Iterator[_Numbers | None]:
        """The chosen rows, or all, in pieces that stay within the limit of bytes once their keys are written out."""
        # 1. Nearly always all fit: by a bound that costs nothing, or by the sum.
        if group.expanded_at_most() <= self._batch_bytes:
            yield chosen
            return
        sizes = group.expanded(self._schema.names)
        if chosen is not None:
            sizes = sizes[chosen]
        ends = numpy.cumsum(sizes)
        if ends[-1] <= self._batch_bytes:
            yield chosen
            return

        # 2. As many rows as fit, and at least one.
        rows = numpy.arange(group.rows) if chosen is None else chosen
        at = 0
        while at < rows.size:
            before = ends[at - 1] if at else 0
            end = max(at + 1, int(numpy.searchsorted(ends, before + self._batch_bytes, "right")))
            yield rows[at:end]
            at = end

    def _chosen(self, group: _Group) -> _Numbers | None:
        """The numbers of the rows that the filter lets through; ``None`` for all."""
        # 1. By their times.
        mask: _Mask | None = None
        if self._wanted.by_time:
            times = group.times()
            mask = numpy.ones(group.rows, numpy.bool_)
            if self._wanted.start_ns is not None:
                mask &= times >= self._wanted.start_ns
            if self._wanted.end_ns is not None:
                mask &= times < self._wanted.end_ns

        # 2. By their keys, each of which is asked once. Gaps have none, and pass.
        if self._wanted.by_key and isinstance(group, _Messages):
            separator = group.header.separator
            asked = numpy.fromiter(
                (self._is_wanted(key, separator) for key in group.used_names()), numpy.bool_, len(group.used())
            )
            by_name = numpy.zeros(group.names, numpy.bool_)
            by_name[group.used()] = asked
            of_rows = by_name[group.keys()]
            mask = of_rows if mask is None else mask & of_rows
        return None if mask is None else numpy.flatnonzero(mask)

    def _is_wanted(self, key: bytes, separator: bytes) -> bool:
        if separator != self._separator:
            self._separator = separator
            self._known.clear()
        known = self._known.get(key)
        if known is None:
            known = self._wanted.wants(key, separator)
            if len(self._known) >= _KNOWN_KEYS:
                self._known.clear()
            self._known[key] = known
        return known


Some: TypeAlias = "_Numbers | None"
"""The numbers of the chosen rows; ``None`` for all rows."""


class _Group:
    """Blocks of one kind and one segment, as one block. Each column is made when it is asked for."""

    kind: Literal["message", "gap"] = MESSAGE

    def __init__(self, header: SegmentHeader, blocks: Sequence[Block]) -> None:
        self.header = header
        self.blocks = blocks
        #: How many rows they have together.
        self.rows = sum(block.rows for block in blocks)
        #: What several columns need, by name: see :meth:`_once`.
        self._made: dict[str, Any] = {}

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def times(self) -> _Numbers:
        """The time of each row, in nanoseconds since the epoch."""
        times: _Numbers = self._once("times", lambda: _joined([block.times for block in self.blocks], numpy.int64))
        return times

    def expanded(self, names: Sequence[str]) -> _Numbers:
        """The bytes of each row in those of these columns that hold byte strings."""
        return numpy.zeros(self.rows, numpy.int64)

    def expanded_at_most(self) -> int:
        """An upper bound for the sum of :meth:`expanded`, which is cheap to compute."""
        return 0

    def _of(self, some: Some) -> int:
        return self.rows if some is None else some.size

    def column(self, name: str, some: Some) -> Any:
        """The column of this name. It is null where rows of this kind have none."""
        make = getattr(self, f"column_{name}", None)
        return make(some) if make is not None else pyarrow.nulls(self._of(some), SCHEMA.field(name).type)

    def _same(self, value: str | None, some: Some) -> Any:
        return same(value, self._of(some)) if value else pyarrow.nulls(self._of(some), pyarrow.string())

    @staticmethod
    def _or_null(values: _Numbers) -> Any:
        return numbers(values, pyarrow.int64(), values == NULL)

    @staticmethod
    def _chosen_of(values: NDArray[Any], some: Some) -> NDArray[Any]:
        return values if some is None else values[some]

    def column_time(self, some: Some) -> Any:
        return numbers(self._chosen_of(self.times(), some) // 1000, SCHEMA.field("time").type)

    def column_time_ns(self, some: Some) -> Any:
        return numbers(self._chosen_of(self.times(), some), pyarrow.int64())

    def column_journal(self, some: Some) -> Any:
        return self._same(self.header.journal, some)

    def column_hub(self, some: Some) -> Any:
        return self._same(self.header.hub, some)

    def column_sequence(self, some: Some) -> Any:
        sequences = _joined([block.sequences for block in self.blocks], numpy.int64)
        return numbers(self._chosen_of(sequences, some), pyarrow.int64())

    def column_kind(self, some: Some) -> Any:
        return self._same(self.kind, some)


class _Messages(_Group):
    """Blocks of messages."""

    def __init__(self, header: SegmentHeader, blocks: Sequence[Block]) -> None:
        super().__init__(header, blocks)
        counts = numpy.array([len(block.name_offsets) - 1 for block in blocks])
        #: How many names the blocks have together.
        self.names = int(counts.sum())
        rows = numpy.array([block.rows for block in blocks])
        self._first = numpy.repeat(numpy.cumsum(counts) - counts, rows)  # for each row, the first name of its block
        self._counts = numpy.repeat(counts, rows)  # for each row, how many names its block has

    def _name_sizes(self) -> _Numbers:
        sizes: _Numbers = self._once(
            "sizes of names",
            lambda: _sizes([block.name_offsets for block in self.blocks], [block.names for block in self.blocks]),
        )
        return sizes

    def _name_array(self) -> Any:
        return self._once("names", lambda: binary(self._name_sizes(), [block.names for block in self.blocks]))

    def _names(self, which: _Numbers, missing: _Mask | None = None) -> Any:
        return self._name_array().take(numbers(which, pyarrow.int64(), missing))

    def _numbers_of_names(self, columns: list[Column], least: int) -> _Numbers:
        of_rows = _joined(columns, numpy.int32)
        if of_rows.min() < least or (of_rows >= self._counts).any():
            raise ValueError("a row refers to a name that is not there")
        return of_rows

    def keys(self) -> _Numbers:
        """The number of each row's key among all names."""
        keys: _Numbers = self._once(
            "keys", lambda: self._numbers_of_names([block.keys for block in self.blocks], 0) + self._first
        )
        return keys

    def _senders(self) -> tuple[_Numbers, _Mask]:
        """The number of each row's sender among all names, and a mask of the rows without one."""

        def make() -> tuple[_Numbers, _Mask]:
            senders = self._numbers_of_names([block.senders for block in self.blocks], NULL)
            missing = senders == NULL
            return numpy.where(missing, 0, senders + self._first), missing

        senders: tuple[_Numbers, _Mask] = self._once("senders", make)
        return senders

    def used(self) -> _Numbers:
        """The numbers of all names that are the key of a row."""
        used: _Numbers = self._once("used", lambda: numpy.unique(self.keys()))
        return used

    def used_names(self) -> list[bytes]:
        """All names that are the key of a row, in the order of :meth:`used`."""
        names: list[bytes] = self._names(self.used()).to_pylist()
        return names

    def _payload_sizes(self) -> _Numbers:
        sizes: _Numbers = self._once(
            "sizes of payloads",
            lambda: _sizes([block.payload_offsets for block in self.blocks], [block.payloads for block in self.blocks]),
        )
        return sizes

    def expanded(self, names: Sequence[str]) -> _Numbers:
        sizes = super().expanded(names)
        if "key" in names:
            sizes = sizes + self._name_sizes()[self.keys()]
        if "sender" in names:
            senders, missing = self._senders()
            sizes = sizes + numpy.where(missing, 0, self._name_sizes()[senders])
        if "payload" in names:
            sizes = sizes + self._payload_sizes()
        return sizes

    def expanded_at_most(self) -> int:
        longest = int(self._name_sizes().max())  # there is a name, since there is a row
        return 2 * longest * self.rows + sum(len(block.payloads) for block in self.blocks)

    def column_key(self, some: Some) -> Any:
        return self._names(self._chosen_of(self.keys(), some))

    def column_sender(self, some: Some) -> Any:
        senders, missing = self._senders()
        return self._names(self._chosen_of(senders, some), self._chosen_of(missing, some))

    def column_payload(self, some: Some) -> Any:
        whole = self._once("payloads", lambda: binary(self._payload_sizes(), [block.payloads for block in self.blocks]))
        return whole if some is None else whole.take(numbers(some, pyarrow.int64()))

    def column_size(self, some: Some) -> Any:
        return numbers(self._chosen_of(self._payload_sizes(), some), pyarrow.int64())

    def _ids(self, columns: list[Column], some: Some) -> Any:
        return self._or_null(self._chosen_of(_joined(columns, numpy.int64), some))

    def column_gid(self, some: Some) -> Any:
        return self._ids([block.gids for block in self.blocks], some)

    def column_uid(self, some: Some) -> Any:
        return self._ids([block.uids for block in self.blocks], some)

    def column_pid(self, some: Some) -> Any:
        return self._ids([block.pids for block in self.blocks], some)


class _Gaps(_Group):
    """Blocks of gap rows. There are few, so their values are taken one by one."""

    kind: Literal["message", "gap"] = GAP

    def _records(self, some: Some) -> list[Record]:
        try:
            records = [record for block in self.blocks for record in block.records()]
        except (IndexError, TypeError):
            raise ValueError("a row refers to a name that is not there") from None
        return records if some is None else [records[number] for number in some]

    def column_lost(self, some: Some) -> Any:
        lost = [NULL if record.lost is None else record.lost for record in self._records(some)]
        return self._or_null(numpy.array(lost, numpy.int64))

    def column_cause(self, some: Some) -> Any:
        return texts([record.cause or "" for record in self._records(some)])
