"""Reads journals into Spark: the options, the division into tasks, and the rows of a task.

It holds the reader of batches, and what that shares with the reader of streams. Spark plans in one process and reads in
others: it calls ``partitions`` once, and ``read`` once for each task. The interface is that of
:mod:`pyspark.sql.datasource` in Spark 4.3.

Filters are options (``startTime``, ``pattern``, ...). ``pushFilters`` is left out on purpose: with it, Spark 4.3 gives
wrong answers when a frame is used twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, NamedTuple, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ..errors import CorruptJournalError, UsageError
from ..segments.directory import decode_header
from ..segments.layout import SEGMENT_HEADER_BYTES, Block, End, SegmentHeader, Skipped
from ..segments.reading import decode_block, read_blocks, sound_blocks
from .decode import SCHEMA, Decoder, Filter
from .limits import SparkLimits
from .places import absolute, opened, snapshot
from .workers import settle_once

__all__ = ["JournalPartition", "JournalReader", "Options", "Piece", "arrow_schema", "group", "read_partition"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _nanoseconds(name: str, text: str) -> int:
    """The time in an option: nanoseconds since the epoch, or ISO 8601, which is in UTC unless it has an offset."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{name} is a time such as 2026-03-01T12:00:00+01:00, or nanoseconds since 1970, not {text!r}"
        ) from None
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1) * 1000


@dataclass(frozen=True)
class Options:
    """The arguments of ``option(...)`` and ``load(...)`` when reading."""

    places: tuple[str, ...]
    wanted: Filter
    on_corrupt: Literal["error", "skip"]
    max_records: int | None
    durable_only: bool = False

    NAMES: ClassVar = (
        "path",
        "paths",
        "startTime",
        "endTime",
        "keyPrefix",
        "pattern",
        "onCorrupt",
        "maxRecordsPerBatch",
        "durableOnly",
    )

    @classmethod
    def read(cls, options: MutableMapping[str, str]) -> Options:
        """Check and parse options. As in Spark, their names may have any case.

        Raises :exc:`~sbuslib.errors.UsageError`.
        """
        unknown = {name.lower() for name in options} - {name.lower() for name in cls.NAMES}
        if unknown:
            raise UsageError(f"no such option: {', '.join(sorted(unknown))}; there are {', '.join(cls.NAMES[2:])}")
        given = {name: options[name] for name in cls.NAMES if name in options}
        paths = json.loads(given["paths"]) if "paths" in given else []
        if "path" in given:
            paths = [given["path"], *paths]
        if not paths:
            raise UsageError("which journal? Name its directory: load('/var/lib/sbus/journal')")
        on_corrupt = given.get("onCorrupt", "error")
        if on_corrupt not in ("error", "skip"):
            raise UsageError(f"onCorrupt is 'error' or 'skip', not {on_corrupt!r}")
        most = given.get("maxRecordsPerBatch")
        if most is not None and not (most.isascii() and most.isdigit() and int(most) > 0):
            raise UsageError(f"maxRecordsPerBatch is a positive whole number, not {most!r}")
        durable_only = given.get("durableOnly", "false").lower()
        if durable_only not in ("true", "false"):
            raise UsageError(f"durableOnly is 'true' or 'false', not {durable_only!r}")
        wanted = Filter(
            start_ns=_nanoseconds("startTime", given["startTime"]) if "startTime" in given else None,
            end_ns=_nanoseconds("endTime", given["endTime"]) if "endTime" in given else None,
            key_prefix=given["keyPrefix"].encode() if "keyPrefix" in given else None,
            pattern=given["pattern"].encode() if "pattern" in given else None,
        )
        places = tuple(dict.fromkeys(map(absolute, paths)))
        policy = cast(Literal["error", "skip"], on_corrupt)
        return cls(places, wanted, policy, int(most) if most else None, durable_only == "true")


class Piece(NamedTuple):
    """Part of a segment's file: the bytes from ``start``, where a block begins, to ``stop``.

    ``end`` says what must come before ``stop``: the end mark of the segment (``"mark"``), a whole block (``"blocks"``),
    or anything, as a recorder may be at work (``"open"``). The next segment begins with row ``following``.
    """

    path: str
    start: int
    stop: int
    end: Literal["mark", "blocks", "open"]
    following: int | None


class JournalPartition(InputPartition):
    """The pieces that one task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(pieces)


def group(pieces: list[Piece], limits: SparkLimits) -> list[JournalPartition]:
    """Divide pieces among tasks, in order. A task reads at most ``partition_bytes``, or one piece."""
    partitions: list[JournalPartition] = []
    some: list[Piece] = []
    size = 0
    for piece in pieces:
        if some and size + piece.stop - piece.start > limits.partition_bytes:
            partitions.append(JournalPartition(some))
            some, size = [], 0
        some.append(piece)
        size += piece.stop - piece.start
    if some:
        partitions.append(JournalPartition(some))
    return partitions


def _read_piece(
    piece: Piece, on_corrupt: Literal["error", "skip"], limits: SparkLimits
) -> Iterator[tuple[SegmentHeader | None, Block | Skipped]]:
    """The blocks of a piece and what was skipped, each with the header of the segment.

    Raises :exc:`~sbuslib.errors.JournalError`.
    """
    with opened(piece.path) as read_at:
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
        while piece.stop - at > limits.read_bytes:
            begin = at
            for block in sound_blocks(read_at(at, limits.read_bytes), header.salt, expected, at):
                yield header, block
                at, expected = block.end, block.next_sequence
            if at == begin:
                break
        base = at
        data = read_at(base, piece.stop - base)
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


def read_partition(
    partition: InputPartition, schema: Any, options: Options, limits: SparkLimits | None = None
) -> Iterator[Any]:
    """The record batches of one task, with the columns of the Arrow ``schema``.

    Raises :exc:`~sbuslib.errors.JournalError`.
    """
    if not isinstance(partition, JournalPartition):
        return  # Spark makes a partition of its own when there are none
    settle_once()
    limits = limits or SparkLimits()
    decoder = Decoder(schema, options.wanted, limits)
    for piece in partition.value:
        last: Block | None = None
        for header, item in _read_piece(piece, options.on_corrupt, limits):
            if isinstance(item, Block):
                assert header is not None
                yield from decoder.add(header, piece.path, item)
                last = item
            else:
                time = int(last.times[-1]) if last is not None else header.created_ns if header is not None else None
                yield from decoder.skipped(header, item, time)
    yield from decoder.finish()


def arrow_schema(schema: StructType) -> Any:
    """The Arrow schema of these columns. Raises :exc:`~sbuslib.errors.UsageError` for unknown columns and types."""
    known = from_arrow_schema(SCHEMA)
    for field in schema.fields:
        if field.name not in known.names:
            raise UsageError(f"there is no column {field.name!r}: there are {', '.join(known.names)}")
        if field.dataType != known[field.name].dataType:
            expected, given = known[field.name].dataType.simpleString(), field.dataType.simpleString()
            raise UsageError(f"the column {field.name} is of type {expected}, not {given}")
    return to_arrow_schema(schema, timezone="UTC")


class JournalReader(DataSourceReader):
    """Reads journals as they are when Spark plans the reading."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """The segments of all journals, divided among tasks. Raises :exc:`~sbuslib.errors.JournalError`."""
        pieces: list[Piece] = []
        for place in self._options.places:
            segments, growing = snapshot(place, self._options.durable_only)
            for number, segment in enumerate(segments, 1):
                following = segments[number].first_sequence if number < len(segments) else None
                end: Literal["mark", "open"] = "open" if following is None and growing else "mark"
                if end == "open" and segment.size <= SEGMENT_HEADER_BYTES:
                    continue  # a recorder is about to write its header
                pieces.append(Piece(segment.path, SEGMENT_HEADER_BYTES, segment.size, end, following))
        return [*group(pieces, SparkLimits())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of one task."""
        return read_partition(partition, self._schema, self._options)
