"""Reader of sealed files through Arrow: checked, as record batches or as blocks of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any
from zlib import crc32

import numpy
import pyarrow

from ...errors import CorruptJournalError
from ..format.decoding import OnCorrupt
from ..format.layout import MESSAGE, NULL, Block, Buffer, Skipped
from ..format.recovery import DAMAGED
from .footer import footer_of, named_errors
from .journal_files import Sealed, filesystem_of, is_local, opened
from .read_plan import RowRange
from .schema import SCHEMA
from .segment_rows import OnSkip, Rows, gap, gap_block
from .selection import Selection

_AT_ONCE = 262_144
"""Bytes of a file that are read at once: they are still in the processor's cache when their CRC is taken."""

_BATCH_ROWS = 131_072


def crc_of(path: str, write: Callable[[Buffer], object] = lambda data: None) -> int:
    """Compute the CRC-32 of a file, and hand its bytes to ``write`` meanwhile."""
    crc = at = 0
    with opened(path) as read_at:
        while data := read_at(at, _AT_ONCE):
            write(data)
            crc, at = crc32(data, crc), at + len(data)
    return crc


def check(file: Sealed, write: Callable[[Buffer], object] = lambda data: None) -> None:
    """Read every byte of a sealed file. Raises :exc:`~sbuslib.errors.CorruptJournalError` unless its CRC is right."""
    if crc_of(file.path, write) != file.crc:
        raise CorruptJournalError("the CRC of this sealed file is not the one in its name", 0, file.path)


@lru_cache(65_536)
def checked(file: Sealed) -> None:
    """Check a sealed file once in a process: sealed files never change."""
    check(file)


def dataset(files: list[str], filesystem: Any) -> Any:
    """Make a dataset of Arrow of sealed files. It checks the pages that it reads."""
    import pyarrow.dataset  # here, as it loads pandas, which the workers of Spark can do without

    options = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=options)
    return pyarrow.dataset.dataset(files, SCHEMA, form, filesystem)


def expression(wanted: Selection, first: int = 0, before: int | None = None) -> Any:
    """Make an Arrow filter for the part of ``wanted`` that Arrow can decide, and row numbers; ``None`` for all rows."""
    from pyarrow.compute import field

    terms = []
    if wanted.start_ns is not None:
        terms.append(field("time_ns") >= wanted.start_ns)
    if wanted.end_ns is not None:
        terms.append(field("time_ns") < wanted.end_ns)
    if first:
        terms.append(field("sequence") >= first)
    if before is not None:
        terms.append(field("sequence") < before)
    low, high = wanted.key_range()
    if low:
        of_key = field("key") >= pyarrow.scalar(low, pyarrow.binary())
        if high is not None:
            of_key &= field("key") < pyarrow.scalar(high, pyarrow.binary())
        terms.append(of_key | field("key").is_null())
    combined = None
    for term in terms:
        combined = term if combined is None else combined & term
    return combined


def sealed_batches(row_range: RowRange, schema: Any, wanted: Selection) -> Iterator[Any]:
    """Yield the wanted rows of a sealed file's range as record batches of ``schema``.

    Raises :exc:`~sbuslib.errors.CorruptJournalError`, and :exc:`.journal_files.VanishedError` before the first row.
    """
    file = row_range.file
    assert isinstance(file, Sealed)

    # 1. The whole file is checked once. From elsewhere it is not fetched for that: Arrow checks each page.
    if is_local(file.path):
        checked(file)
    header = footer_of(file).header
    filesystem, inside = filesystem_of(file.path)
    names = [*dict.fromkeys([*schema.names, *(["key"] if wanted.by_key else [])])]
    bounds = (0, None) if row_range.is_whole else (row_range.first, row_range.before)

    # 2. Arrow leaves out groups of rows by their bounds, and we those whose keys no pattern matches.
    with named_errors(file.path):
        source = dataset([inside], filesystem)
        scanned = source.to_batches(columns=names, filter=expression(wanted, *bounds), batch_size=_BATCH_ROWS)
        for batch in scanned:
            rows = chosen(batch, wanted, header.separator)
            if rows.num_rows:
                yield rows.select(schema.names).cast(schema)


def chosen(rows: Any, wanted: Selection, separator: bytes) -> Any:
    """Select the rows of a record batch whose keys are wanted, and all gaps."""
    if not wanted.by_key or not rows.num_rows:
        return rows
    keys = rows.column("key").dictionary_encode()
    known = [key is not None and wanted.wants(key, separator) for key in keys.dictionary.to_pylist()]
    by_key = numpy.array([*known, True], numpy.bool_)  # the last one stands for no key
    mask = by_key[keys.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)]
    return rows.filter(pyarrow.array(mask))


# -- as blocks ------------------------------------------------------------------------------------------


def sealed_rows(row_range: RowRange, wanted: Selection, on_corrupt: OnCorrupt, on_skip: OnSkip) -> Iterator[Rows]:
    """Yield the rows of a sealed file's range as blocks. Raises as :func:`sealed_batches`, unless damage is skipped."""
    assert isinstance(row_range.file, Sealed)
    assert row_range.before is not None

    following = row_range.first
    try:
        header = footer_of(row_range.file).header
        for batch in sealed_batches(row_range, SCHEMA, wanted):
            for block in _blocks_of(batch):
                yield Rows(header, row_range.file.path, block)
                following = block.next_sequence
    except CorruptJournalError as error:
        if on_corrupt == "error":
            raise

        # A local file was checked before its first row; of others the damage shows in the middle.
        lost = row_range.before - following
        on_skip(row_range.file.path, Skipped(0, row_range.file.size, lost, error.reason))
        yield gap(row_range, row_range.before - 1, row_range.file.start_ns, DAMAGED, lost)


def _blocks_of(batch: Any) -> Iterator[Block]:
    """Split a record batch into blocks, in order: one for each run of messages, and for each gap."""
    is_gap = batch.column("key").is_null().to_numpy(zero_copy_only=False)
    ends = [*(numpy.flatnonzero(is_gap[1:] != is_gap[:-1]) + 1).tolist(), batch.num_rows]
    start = 0
    for end in ends:
        part = batch.slice(start, end - start)
        if is_gap[start]:
            for row in part.select(["sequence", "time_ns", "cause", "lost"]).to_pylist():
                yield gap_block(row["sequence"], row["time_ns"], row["cause"] or "", row["lost"])
        else:
            yield _messages(part)
        start = end


def _wide(batch: Any, name: str) -> memoryview:
    values = batch.column(name).fill_null(NULL).to_numpy(zero_copy_only=False)
    return numpy.ascontiguousarray(values, numpy.int64).data


def _narrow(values: Any) -> memoryview:
    return numpy.ascontiguousarray(values, numpy.int32).data


def _messages(batch: Any) -> Block:
    """Make a block that is in no segment."""
    # 1. Keys and senders are numbers of names. The names of keys come first.
    keys, senders = (batch.column(name).dictionary_encode() for name in ("key", "sender"))
    names = keys.dictionary.to_pylist()
    of_senders = senders.indices.fill_null(NULL - len(names)).to_numpy(zero_copy_only=False) + len(names)
    names += senders.dictionary.to_pylist()

    # 2. All columns.
    payloads = batch.column("payload").to_pylist()
    return Block(
        position=0,
        length=0,
        kind=MESSAGE,
        rows=batch.num_rows,
        times=_wide(batch, "time_ns"),
        sequences=_wide(batch, "sequence"),
        gids=_wide(batch, "gid"),
        uids=_wide(batch, "uid"),
        pids=_wide(batch, "pid"),
        keys=_narrow(keys.indices.to_numpy()),
        senders=_narrow(of_senders),
        payload_offsets=_narrow([*accumulate(map(len, payloads), initial=0)]),
        name_offsets=_narrow([*accumulate(map(len, names), initial=0)]),
        names=memoryview(b"".join(names)),
        payloads=memoryview(b"".join(payloads)),
    )
