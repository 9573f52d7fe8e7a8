"""Journals as streams: where a batch begins and ends.

An offset maps each place to ``{"segment": name, "position": byte}``, a place between two blocks. Once a segment has
its end mark and was read to the end, the offset stands at the start of the next, whose name the mark tells, even while
there is no such file yet: so what retention deletes after it was read is not missed, and what it deletes before it was
read fails the stream.

A recorder appends whole blocks in order, so the headers of the blocks, which are all that is read here, tell how far
the whole ones reach. The blocks are checked when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..errors import CorruptJournalError, JournalError
from ..segments.layout import SEGMENT_HEADER_BYTES, End, first_sequence_of, segment_name
from ..segments.reading import decode_block, read_blocks, walk
from .limits import SparkLimits
from .places import Segment, decode_header, list_segments, opened
from .reader import Options, Piece, arrow_schema, group, read_partition

__all__ = ["JournalStreamReader", "Position", "advance", "pieces_between"]


class Position(NamedTuple):
    """A place between two blocks: ``position`` bytes into the segment of this name; ``""`` before the first one."""

    segment: str
    position: int


_NOWHERE = Position("", 0)


def _remaining(place: str, start: Position) -> list[Segment]:
    """The segments from ``start`` on. Raises :exc:`~sbuslib.errors.JournalError` when that of ``start`` is gone."""
    segments = [segment for segment in list_segments(place) if segment.name >= start.segment]
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
) -> tuple[Position, int]:
    """How far a batch reaches that begins at ``start``, and how many rows it has.

    It ends after ``most`` rows or a few less, though at least one block further, and in any case at ``target``. Raises
    :exc:`~sbuslib.errors.JournalError` when a segment was deleted too early or is damaged.
    """
    rows = 0
    at = start
    segments = _remaining(place, start)
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
            # Whatever stands between the last whole block and the next segment is for the reader to judge.
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
    """As :func:`advance`, in one segment; and whether a limit stopped it there."""
    if segment.size < SEGMENT_HEADER_BYTES:
        return start, 0, False
    at, rows, size = start.position, 0, segment.size
    if target is not None and target.segment == segment.name:
        size = min(size, target.position)
    if at > segment.size:
        raise JournalError(
            f"{segment.place}/{segment.name}: it ends at byte {segment.size}, and was read up to byte {at} before: "
            "its end was lost"
        )
    with opened(segment.place, segment.name) as read_at:
        for extent in walk(read_at, size, at):
            if extent.rows is None:
                salt = decode_header(read_at, segment.place, segment.name).salt
                mark = decode_block(read_at(at, extent.length), 0, salt, at)
                assert isinstance(mark, End)
                return Position(segment_name(mark.next_sequence), SEGMENT_HEADER_BYTES), rows, False
            if most is not None and rows + extent.rows > most and not (first and not rows):
                return Position(segment.name, at), rows, True
            at = extent.end
            rows += extent.rows
        if target is not None and target.segment == segment.name:
            at = size  # where whole blocks end was found out before; a damage in between is for the reader to judge
        elif at < size:
            # A block that is being written; or damage, if whole blocks come after it.
            header = decode_header(read_at, segment.place, segment.name)
            try:
                for item in read_blocks(
                    read_at(at, size - at), header.salt, None, base=at, on_corrupt=on_corrupt, growing=True
                ):
                    at = item.position + item.length
            except CorruptJournalError as error:
                raise CorruptJournalError(error.reason, error.position, f"{segment.place}/{segment.name}") from None
    return Position(segment.name, at), rows, False


def pieces_between(place: str, start: Position, end: Position) -> Iterator[Piece]:
    """What has to be read. Raises :exc:`~sbuslib.errors.JournalError` when a segment was deleted before it was."""
    if end in (start, _NOWHERE):
        return
    segments = [segment for segment in _remaining(place, start) if (segment.name, SEGMENT_HEADER_BYTES) < end]
    if not segments:
        name = start.segment or end.segment
        raise JournalError(f"{place}/{name}: this segment was deleted before it was read")
    for number, segment in enumerate(segments, 1):
        begin = start.position if segment.name == start.segment else SEGMENT_HEADER_BYTES
        if segment.size < (end.position if segment.name == end.segment else begin):
            raise JournalError(f"{place}/{segment.name}: it ends at byte {segment.size}: its end was lost")
        if segment.name == end.segment:
            yield Piece(place, segment.name, begin, end.position, "blocks", None)
            return
        following = segments[number].first_sequence if number < len(segments) else first_sequence_of(end.segment)
        yield Piece(place, segment.name, begin, segment.size, "mark", following)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads journals from their oldest segment on, and goes on with what is recorded."""

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
        """The positions in an offset; of a journal that was added since, its start."""
        return {
            place: Position(**offset[place]) if place in offset else self._oldest(place)
            for place in self._options.places
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the option ``maxRecordsPerBatch`` says."""
        most = self._options.max_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember how far whole blocks reach now: the stream is to end there."""
        self._target = {
            place: advance(place, self._oldest(place), on_corrupt=self._options.on_corrupt)[0]
            for place in self._options.places
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where a batch from ``start`` on ends. Raises :exc:`~sbuslib.errors.JournalError`."""
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        positions = self._positions(start)
        reached: dict[str, Position] = {}
        for number, (place, position) in enumerate(positions.items()):
            share = None if left is None else -(-left // (len(positions) - number))
            target = self._target[place] if self._target is not None else None
            if share == 0 or target == _NOWHERE:
                reached[place] = position
                continue
            reached[place], rows = advance(place, position, share, target, self._options.on_corrupt)
            if left is not None:
                left = max(0, left - rows)
        return self._offset(reached)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What lies between two offsets, grouped to tasks. Raises :exc:`~sbuslib.errors.JournalError`."""
        before = self._positions(start)
        pieces = [
            piece
            for place, position in self._positions(end).items()
            for piece in pieces_between(place, before[place], position)
        ]
        return [*group(pieces, SparkLimits())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of one task."""
        return read_partition(partition, self._schema, self._options)
