"""What has to be read of a journal, a piece at a time: parts of segments, and sealed files; and the rows in them.

**The seam.** A sealer makes a sealed file first and deletes its segments later. So segments are listed first. Where a
sealed file has all rows of a segment, the segment is left out. A segment that has vanished when it is to be read has
been sealed meanwhile (or deleted by retention), and its rows are read from the sealed file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import numpy
import pyarrow

from ..errors import CorruptJournalError, JournalError, StateError
from ..matcher import SEPARATOR
from ..segments.directory import OnCorrupt, Segment, decode_header
from ..segments.layout import SEGMENT_HEADER_BYTES, Block, End, SegmentHeader, Skipped
from ..segments.reading import decode_block, read_blocks, sound_blocks
from .decode import Decoder
from .places import Contents, Sealed, contents, filesystem_of, header_of, list_sealed, measure, opened, target_of
from .rows import Filter

__all__ = ["READ_BYTES", "Piece", "Plan", "batches", "chosen", "pieces", "plan", "sealed_rows", "tail_pieces"]

READ_BYTES = 1_048_576
"""Bytes of a segment that are in memory at once, unless a block or damage is longer. They fit into the processor's
cache."""


class Piece(NamedTuple):
    """Part of a segment's file: the bytes from ``start``, where a block begins, to ``stop``. Or a sealed file.

    ``end`` says what must come before ``stop``: the end mark of the segment (``"mark"``), a whole block (``"blocks"``),
    or anything, as a recorder may be at work (``"open"``); it is ``"sealed"`` of a sealed file. The next segment begins
    with row ``following``. Rows of lower numbers than ``least`` are not wanted. ``journal`` is the identity, if known.
    """

    path: str
    start: int
    stop: int
    end: Literal["mark", "blocks", "open", "sealed"]
    following: int | None
    least: int = 0
    journal: str | None = None


class Plan(NamedTuple):
    """What there is to read: sealed files, and for places with rows besides, the number of the first of these."""

    sealed: list[Sealed]
    tails: dict[str, int]


def _without_copies(sealed: Sequence[Sealed]) -> list[Sealed]:
    """Sealed files without those whose rows are in others. Raises :exc:`~sbuslib.errors.StateError` for overlaps."""
    found: list[Sealed] = []
    for one in sorted(sealed, key=lambda one: (one.journal, one.first, -one.last)):
        if found and found[-1].journal == one.journal and one.first <= found[-1].last:
            if one.last <= found[-1].last:
                continue
            raise StateError(f"{found[-1].path} and {one.path} share rows, and each has others: read one place")
        found.append(one)
    return found


def _identity(segments: Sequence[Segment]) -> str | None:
    """The identity of the journal with these segments; ``None`` if no header tells it."""
    for segment in reversed(segments):
        with suppress(JournalError):
            return header_of(segment).journal
    return None


def _tail(found: Contents, sealed: Sequence[Sealed], journal: str | None) -> list[Segment]:
    """The segments with rows that are in no sealed file."""
    covered = max((one.last for one in sealed if one.journal == journal), default=0)
    if not covered:
        return found.segments
    for number, segment in enumerate(found.segments):
        last = number == len(found.segments) - 1
        if last and segment.size <= SEGMENT_HEADER_BYTES:
            return []
        following = measure(segment)[1] if last else found.segments[number + 1].first_sequence
        if following - 1 > covered:
            return found.segments[number:]
    return []


def plan(places: Sequence[str], durable_only: bool = False) -> Plan:
    """What there is in places. Raises :exc:`~sbuslib.errors.JournalError` and :exc:`~sbuslib.errors.StateError`."""
    there = {place: contents(place, durable_only) for place in dict.fromkeys(places)}
    sealed = _without_copies([one for found in there.values() for one in found.sealed])
    tails: dict[str, int] = {}
    for place, found in there.items():
        journal = _identity(found.segments)
        tail = _tail(found, sealed, journal)
        if any(segment.size > SEGMENT_HEADER_BYTES for segment in tail):
            covered = max((one.last for one in sealed if one.journal == journal), default=0)
            tails[place] = max(covered + 1, tail[0].first_sequence)
    return Plan(sealed, tails)


def pieces(place: str, durable_only: bool = False, least: int = 0) -> list[Piece]:
    """What to read for all rows of a journal from number ``least`` on. Raises :exc:`~sbuslib.errors.JournalError`."""
    found = contents(place, durable_only)
    sealed = _without_copies(found.sealed)
    journal = _identity(found.segments)
    if found.segments:
        sealed = [one for one in sealed if one.journal == journal]
    files = [Piece(one.path, 0, one.size, "sealed", None, least, one.journal) for one in sealed if one.last >= least]
    covered = max((one.last for one in sealed), default=0) if found.segments else 0
    return files + tail_pieces(_tail(found, sealed, journal), found.growing, max(least, covered + 1), journal)


def tail_pieces(segments: Sequence[Segment], growing: bool, least: int = 0, journal: str | None = None) -> list[Piece]:
    """The pieces for some segments, the last of which is the last of its journal."""
    found: list[Piece] = []
    for number, segment in enumerate(segments, 1):
        following = segments[number].first_sequence if number < len(segments) else None
        if following is not None and following <= least:
            continue
        end: Literal["mark", "open"] = "open" if following is None and growing else "mark"
        if end == "open" and segment.size <= SEGMENT_HEADER_BYTES:
            continue  # a recorder is about to write its header, or the first block
        found.append(Piece(segment.path, SEGMENT_HEADER_BYTES, segment.size, end, following, least, journal))
    return found


# -- rows -----------------------------------------------------------------------------------------------


def batches(
    some: Sequence[Piece], schema: Any, wanted: Filter, on_corrupt: OnCorrupt = "error", read_bytes: int = READ_BYTES
) -> Iterator[Any]:
    """The rows of some pieces, as record batches of ``schema``. Raises :exc:`~sbuslib.errors.JournalError`."""
    decoder = Decoder(schema, wanted)
    for piece in some:
        if piece.end == "sealed":
            yield from decoder.finish()
            yield from sealed_rows(piece.path, schema, wanted, piece.least)
            continue
        last: Block | None = None
        try:
            for header, item in _read(piece, on_corrupt, read_bytes):
                if isinstance(item, Skipped):
                    began = header.created_ns if header is not None else None
                    yield from decoder.skipped(header, item, began if last is None else int(last.times[-1]))
                elif item.next_sequence > piece.least:
                    assert header is not None
                    yield from decoder.add(header, piece.path, item)
                    last = item
        except _VanishedError as error:
            yield from decoder.finish()
            sealed = _sealed_instead(piece)
            if sealed is None:
                raise JournalError(str(error)) from None
            yield from sealed_rows(sealed.path, schema, wanted, max(piece.least, _first_of(piece)), piece.following)
    yield from decoder.finish()


class _VanishedError(JournalError):
    """A segment was deleted before it was read."""


def _first_of(piece: Piece) -> int:
    return int(piece.path.rpartition("/")[2].partition(".")[0])


def _sealed_instead(piece: Piece) -> Sealed | None:
    """The sealed file with the rows of a segment that has vanished."""
    place, first = piece.path.rpartition("/")[0], _first_of(piece)
    for one in list_sealed(target_of(place), piece.journal):
        if one.first <= first <= one.last and piece.journal is not None and piece.start == SEGMENT_HEADER_BYTES:
            return one
    return None


def _read(
    piece: Piece, on_corrupt: OnCorrupt, read_bytes: int
) -> Iterator[tuple[SegmentHeader | None, Block | Skipped]]:
    """The blocks of a piece and what was skipped, each with the header of the segment.

    Raises :exc:`~sbuslib.errors.CorruptJournalError` and :exc:`_VanishedError`.
    """
    try:
        context = opened(piece.path)
        read_at = context.__enter__()
    except JournalError as error:
        raise _VanishedError(str(error)) from None
    try:
        try:
            header = decode_header(read_at(0, SEGMENT_HEADER_BYTES), piece.path)
        except CorruptJournalError as error:
            if on_corrupt == "error":
                raise
            yield None, Skipped(piece.start, piece.stop - piece.start, None, error.reason)
            return
        expected = header.first_sequence if piece.start == SEGMENT_HEADER_BYTES else None
        at = piece.start
        # A little at a time, so that memory is used again: new memory would double the cost of reading.
        while piece.stop - at > read_bytes:
            begin = at
            for block in sound_blocks(read_at(at, read_bytes), header.salt, expected, at):
                yield header, block
                at, expected = block.end, block.next_sequence
            if at == begin:
                break
        base = at
        data = read_at(base, piece.stop - base)
    finally:
        context.__exit__(None, None, None)
    yield from _read_rest(piece, header, data, base, expected, on_corrupt)


def _read_rest(
    piece: Piece, header: SegmentHeader, data: bytes, base: int, expected: int | None, on_corrupt: OnCorrupt
) -> Iterator[tuple[SegmentHeader, Block | Skipped]]:
    at = base
    try:
        for item in read_blocks(
            data,
            header.salt,
            expected,
            piece.following,
            base=base,
            on_corrupt=on_corrupt,
            growing=piece.end != "mark",
        ):
            at = item.position + item.length
            if not isinstance(item, End):
                yield header, item
        if piece.end == "blocks" and at < piece.stop:
            decode_block(data, at - base, header.salt, at)
            raise AssertionError(f"a whole block at {at} of {piece.path} was not read")
    except CorruptJournalError as error:
        if on_corrupt == "error":
            raise CorruptJournalError(error.reason, error.position, piece.path) from None
        yield header, Skipped(at, piece.stop - at, None, error.reason)


# -- sealed files ---------------------------------------------------------------------------------------


def expression(wanted: Filter, least: int = 0, before: int | None = None) -> Any:
    """What of ``wanted`` can be told from statistics, as a filter of Arrow; ``None`` for all rows."""
    from pyarrow.compute import field

    terms = []
    if wanted.start_ns is not None:
        terms.append(field("time_ns") >= wanted.start_ns)
    if wanted.end_ns is not None:
        terms.append(field("time_ns") < wanted.end_ns)
    if least:
        terms.append((field("sequence") >= least) | field("sequence").is_null())
    if before is not None:
        terms.append((field("sequence") < before) | field("sequence").is_null())
    low, high = wanted.key_range()
    if low:
        of_key = field("key") >= pyarrow.scalar(low, pyarrow.binary())
        if high is not None:
            of_key &= field("key") < pyarrow.scalar(high, pyarrow.binary())
        terms.append(of_key | field("key").is_null())
    found = None
    for term in terms:
        found = term if found is None else found & term
    return found


def sealed_rows(path: str, schema: Any, wanted: Filter, least: int = 0, before: int | None = None) -> Iterator[Any]:
    """The rows of a sealed file with numbers from ``least`` to ``before``, as record batches of ``schema``.

    Raises :exc:`~sbuslib.errors.JournalError`, which names the file.
    """
    import pyarrow.dataset

    filesystem, inside = filesystem_of(path)
    names = [*dict.fromkeys([*schema.names, *(["key", "kind"] if wanted.by_key else [])])]
    try:
        source = pyarrow.dataset.dataset(inside, filesystem=filesystem, format=parquet_format())
        for batch in source.to_batches(columns=names, filter=expression(wanted, least, before), batch_size=32_768):
            rows = chosen(batch, wanted)
            if rows.num_rows:
                yield rows.select(schema.names).cast(schema)
    except FileNotFoundError:
        raise JournalError(f"{path}: this sealed file was deleted before it was read") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise CorruptJournalError(" ".join(str(error).split()), 0, path) from None


def parquet_format() -> Any:
    """How sealed files are read by Arrow: each page has a checksum."""
    import pyarrow.dataset  # here, as it loads pandas, which the workers of Spark can do without

    options = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    return pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=options)


def chosen(rows: Any, wanted: Filter, separator: bytes = SEPARATOR) -> Any:
    """The rows of a table or a record batch whose keys are wanted, and all gaps."""
    if not wanted.by_key or not rows.num_rows:
        return rows
    columns = [rows.column("key")]
    chunks = columns[0].chunks if isinstance(columns[0], pyarrow.ChunkedArray) else columns
    masks = []
    for chunk in chunks:
        keys = chunk.dictionary_encode()
        known = [key is not None and wanted.wants(key, separator) for key in keys.dictionary.to_pylist()]
        by_key = numpy.array([*known, True], numpy.bool_)  # the last one stands for no key
        masks.append(by_key[keys.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)])
    return rows.filter(pyarrow.array(numpy.concatenate(masks)))
