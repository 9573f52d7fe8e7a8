"""Reads journals as streams: where a batch begins and ends.

An offset maps the place of each journal to ``{"segment": name, "position": byte}``, which is between two blocks. When a
segment with an end mark was read to its end, the offset is the start of the next segment. The mark tells the name of
that segment, whose file need not be there yet. So retention may delete segments that were read. If it deletes a segment
that was not read, the stream fails.

A recorder appends whole blocks in order, so their headers tell where the last whole block ends. Only headers are read
here. The task that reads a block checks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..errors import CorruptJournalError, JournalError
from ..lake.pieces import Piece
from ..lake.places import list_segments, opened, snapshot
from ..segments.directory import Position, Segment, decode_header
from ..segments.layout import SEGMENT_HEADER_BYTES, End, first_sequence_of, segment_name
from ..segments.reading import decode_block, read_blocks, walk
from .reader import Options, arrow_schema, group, read_partition

__all__ = ["JournalStreamReader", "advance", "pieces_between"]


_NOWHERE = Position("", 0)
"""The position in a journal without segments."""


def _remaining(place: str, start: Position, durable_only: bool = False) -> list[Segment]:
    """The segments from ``start`` on. Raises :exc:`~sbuslib.errors.JournalError` if the segment there was deleted."""
    segments = [segment for segment in snapshot(place, durable_only)[0] if segment.name >= start.segment]
    if start.segment and segments and segments[0].name != start.segment:
        raise JournalError(f"{place}/{start.segment}: this segment was deleted before it was read")
    if start.position > SEGMENT_HEADER_BYTES and not segments:
        raise JournalError(f"{place}/{start.segment}: this segment was deleted before it was read to its end")
    return segments


def advance(
    place: str,
    start: Position,
    most: int | None = None,
    target: Position | None = None,
    on_corrupt: Literal["error", "skip"] = "error",
    durable_only: bool = False,
) -> tuple[Position, int]:
    """The end of a batch that begins at ``start``, and how many rows it has.

    The batch has whole blocks: at most ``most`` rows, but at least one block, and none beyond ``target``. Raises
    :exc:`~sbuslib.errors.JournalError` when a segment was deleted before it was read, or is damaged.
    """
    rows = 0
    at = start
    segments = _remaining(place, start, durable_only)
    for number, segment in enumerate(segments):
        if target is not None and (segment.name, SEGMENT_HEADER_BYTES) >= target:
            break
        at = at if at.segment == segment.name else Position(segment.name, SEGMENT_HEADER_BYTES)
        following = segments[number + 1] if number + 1 < len(segments) else None
        whole = following is not None and (target is None or target.segment > segment.name)
        if whole and following is not None and at.position == SEGMENT_HEADER_BYTES:
            held = following.first_sequence - segment.first_sequence
            if most is None or rows + held <= most:
                rows += held
                at = Position(following.name, SEGMENT_HEADER_BYTES)
                continue
        at, more, stopped = _within(segment, at, None if most is None else most - rows, rows == 0, target, on_corrupt)
        rows += more
        if stopped or (target is not None and target.segment == segment.name):
            break
        if following is not None:
            # Any bytes between the last whole block and the next segment are damage, which the reader finds.
            at = Position(following.name, SEGMENT_HEADER_BYTES)
    if target is not None and at < target and not rows:
        raise JournalError(f"{place}/{at.segment or target.segment}: this segment was deleted before it was read")
    return at, rows


def _within(
    segment: Segment,
    start: Position,
    most: int | None,
    first: bool,
    target: Position | None,
    on_corrupt: Literal["error", "skip"],
) -> tuple[Position, int, bool]:
    """The end of a batch within one segment, its rows, and whether ``most`` ended it there.

    :param first: the batch has no rows before this segment, so it gets at least one block.
    """
    if segment.size < SEGMENT_HEADER_BYTES:
        return start, 0, False
    at, rows, size = start.position, 0, segment.size
    if target is not None and target.segment == segment.name:
        size = min(size, target.position)
    if at > segment.size:
        raise JournalError(
            f"{segment.path}: it ends at byte {segment.size}, and was read up to byte {at} before: its end was lost"
        )
    with opened(segment.path) as read_at:
        for extent in walk(read_at, size, at):
            if extent.rows is None:
                salt = decode_header(read_at(0, SEGMENT_HEADER_BYTES), segment.path).salt
                mark = decode_block(read_at(at, extent.length), 0, salt, at)
                assert isinstance(mark, End)
                return Position(segment_name(mark.next_sequence), SEGMENT_HEADER_BYTES), rows, False
            if most is not None and rows + extent.rows > most and not (first and not rows):
                return Position(segment.name, at), rows, True
            at = extent.end
            rows += extent.rows
        if target is not None and target.segment == segment.name:
            at = size  # a whole block ends at the target; the reader finds damage before it
        elif at < size:
            # A block that is being written, or damage, if whole blocks come after it.
            header = decode_header(read_at(0, SEGMENT_HEADER_BYTES), segment.path)
            try:
                for item in read_blocks(
                    read_at(at, size - at), header.salt, None, base=at, on_corrupt=on_corrupt, growing=True
                ):
                    at = item.position + item.length
            except CorruptJournalError as error:
                raise CorruptJournalError(error.reason, error.position, segment.path) from None
    return Position(segment.name, at), rows, False


def pieces_between(place: str, start: Position, end: Position) -> Iterator[Piece]:
    """The pieces between two positions. Raises :exc:`~sbuslib.errors.JournalError` if one of them was deleted."""
    if end in (start, _NOWHERE):
        return
    segments = [segment for segment in _remaining(place, start) if (segment.name, SEGMENT_HEADER_BYTES) < end]
    if not segments:
        name = start.segment or end.segment
        raise JournalError(f"{place}/{name}: this segment was deleted before it was read")
    for number, segment in enumerate(segments, 1):
        begin = start.position if segment.name == start.segment else SEGMENT_HEADER_BYTES
        if segment.size < (end.position if segment.name == end.segment else begin):
            raise JournalError(f"{segment.path}: it ends at byte {segment.size}: its end was lost")
        if segment.name == end.segment:
            yield Piece(segment.path, begin, end.position, "blocks", None)
            return
        following = segments[number].first_sequence if number < len(segments) else first_sequence_of(end.segment)
        yield Piece(segment.path, begin, segment.size, "mark", following)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads journals from their oldest segment on, and goes on while they grow."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._target: dict[str, Position] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The start of the oldest segment of each journal."""
        return self._offset({place: self._oldest(place) for place in self._options.places})

    @staticmethod
    def _oldest(place: str) -> Position:
        segments = list_segments(place)
        return Position(segments[0].name, SEGMENT_HEADER_BYTES) if segments else _NOWHERE

    @staticmethod
    def _offset(positions: dict[str, Position]) -> dict[str, Any]:
        return {place: position._asdict() for place, position in sorted(positions.items())}

    def _positions(self, offset: dict[str, Any]) -> dict[str, Position]:
        """The positions in an offset. A journal that is not in the offset is read from its start."""
        return {
            place: Position(**offset[place]) if place in offset else self._oldest(place)
            for place in self._options.places
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit that the option ``maxRecordsPerBatch`` sets."""
        most = self._options.max_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the stream end where the whole blocks end now."""
        self._target = {
            place: self._advance(place, self._oldest(place), None, None)[0] for place in self._options.places
        }

    def _advance(self, place: str, start: Position, most: int | None, target: Position | None) -> tuple[Position, int]:
        return advance(place, start, most, target, self._options.on_corrupt, self._options.durable_only)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of a batch that begins at ``start``. Raises :exc:`~sbuslib.errors.JournalError`."""
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        positions = self._positions(start)
        reached: dict[str, Position] = {}
        for number, (place, position) in enumerate(positions.items()):
            share = None if left is None else -(-left // (len(positions) - number))
            target = self._target[place] if self._target is not None else None
            if share == 0 or target == _NOWHERE:
                reached[place] = position
                continue
            reached[place], rows = self._advance(place, position, share, target)
            if left is not None:
                left = max(0, left - rows)
        return self._offset(reached)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The pieces between two offsets, divided among tasks. Raises :exc:`~sbuslib.errors.JournalError`."""
        before = self._positions(start)
        pieces = [
            piece
            for place, position in self._positions(end).items()
            for piece in pieces_between(place, before[place], position)
        ]
        return [*group(pieces)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of one task."""
        return read_partition(partition, self._schema, self._options)
