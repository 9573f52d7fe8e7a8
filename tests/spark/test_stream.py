"""Streams of journals: where batches begin and end, limits, and deleted segments; with and without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lake.journals import SALT, START_NS, message_block, rows, segment
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sbuslib.errors import CorruptJournalError, JournalError
from sbuslib.lake.rows import SCHEMA
from sbuslib.segments.encoding import encode_end
from sbuslib.segments.layout import SEGMENT_HEADER_BYTES, segment_name
from sbuslib.spark.reader import Options, read_partition
from sbuslib.spark.source import JournalSource
from sbuslib.spark.stream import JournalStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reader(*journals: Path, **options: str) -> JournalStreamReader:
    """The reader that Spark makes for ``readStream``."""
    source = JournalSource({})
    chosen = Options.read({"paths": str([str(journal) for journal in journals]).replace("'", '"'), **options})
    return JournalStreamReader(chosen, source.schema())


def numbers(stream: JournalStreamReader, start: dict[str, Any], end: dict[str, Any], **options: str) -> list[int]:
    """The sequences of the rows between two offsets."""
    chosen = Options.read({"path": "/", **options})
    return [
        number
        for partition in stream.partitions(start, end)
        for batch in read_partition(partition, SCHEMA, chosen)
        for number in batch.column("sequence").to_pylist()
    ]


def at(journal: Path, first: int, position: int = SEGMENT_HEADER_BYTES) -> dict[str, Any]:
    return {str(journal): {"segment": segment_name(first), "position": position}}


def test_a_batch_reaches_from_the_oldest_segment_to_the_last_whole_block(journal: Path) -> None:
    segment(journal, 101, rows(5), rows(5, 6))
    last = segment(journal, 111, rows(3), sealed=False)
    whole = last.stat().st_size
    with last.open("ab") as file:
        file.write(message_block(114, rows(4))[:-9])
    stream = reader(journal)
    start = stream.initialOffset()
    assert start == at(journal, 101)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end == at(journal, 111, whole)
    assert numbers(stream, start, end) == list(range(101, 114))
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    assert stream.partitions(end, end) == []
    with last.open("r+b") as file:
        file.seek(whole)
        file.write(message_block(114, rows(4)))
    more = stream.latestOffset(end, ReadAllAvailable())
    assert numbers(stream, end, more) == [114, 115, 116, 117]


def test_batches_have_at_most_so_many_rows(journal: Path) -> None:
    segment(journal, 1, rows(5), rows(5), rows(5))
    segment(journal, 16, rows(5), rows(5))
    segment(journal, 26, rows(5), rows(7), sealed=False)
    stream = reader(journal, maxRecordsPerBatch="12")
    assert stream.getDefaultReadLimit() == ReadMaxRows(12)
    position = stream.initialOffset()
    batches = []
    while (end := stream.latestOffset(position, ReadMaxRows(12))) != position:
        batches.append(numbers(stream, position, end))
        position = end
    assert [number for batch in batches for number in batch] == list(range(1, 38))
    assert [len(batch) for batch in batches] == [10, 10, 10, 7]
    assert reader(journal).getDefaultReadLimit() == ReadAllAvailable()


def test_a_block_larger_than_the_limit_is_one_batch(journal: Path) -> None:
    segment(journal, 1, rows(30), rows(30))
    stream = reader(journal)
    start = stream.initialOffset()
    middle = stream.latestOffset(start, ReadMaxRows(7))
    assert numbers(stream, start, middle) == list(range(1, 31))


def test_several_journals_share_a_limit(tmp_path: Path) -> None:
    one, other, empty = tmp_path / "one", tmp_path / "other", tmp_path / "empty"
    for n in range(10):
        segment(one, 1 + 4 * n, rows(4))
        segment(other, 1 + 4 * n, rows(4), journal="fedcba9876543210")
    empty.mkdir()
    stream = reader(one, other, empty)
    position = stream.initialOffset()
    assert position[str(empty)] == {"segment": "", "position": 0}
    sizes = []
    while (end := stream.latestOffset(position, ReadMaxRows(24))) != position:
        sizes.append(len(numbers(stream, position, end)))
        position = end
    assert sum(sizes) == 80
    assert max(sizes) <= 24
    segment(empty, 1, rows(4))
    end = stream.latestOffset(position, ReadAllAvailable())
    assert numbers(stream, position, end) == [1, 2, 3, 4]


def test_a_journal_that_is_added_is_read_from_its_start(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    segment(one, 1, rows(4))
    segment(other, 1, rows(3))
    before = reader(one)
    position = before.latestOffset(before.initialOffset(), ReadAllAvailable())
    stream = reader(one, other)
    end = stream.latestOffset(position, ReadAllAvailable())
    assert numbers(stream, position, end) == [1, 2, 3]


def test_available_now_ends_where_the_journal_ended_at_the_start(journal: Path) -> None:
    segment(journal, 1, rows(5))
    last = segment(journal, 6, rows(5), sealed=False)
    stream = reader(journal)
    stream.prepareForTriggerAvailableNow()
    with last.open("ab") as file:
        file.write(message_block(11, rows(5)) + encode_end(SALT, 16))
    segment(journal, 16, rows(5))
    position, got = stream.initialOffset(), []
    while (end := stream.latestOffset(position, ReadMaxRows(3))) != position:
        got += numbers(stream, position, end)
        position = end
    assert got == list(range(1, 11))


def test_a_segment_deleted_before_it_was_read_is_an_error(journal: Path) -> None:
    first = segment(journal, 1, rows(5))
    segment(journal, 6, rows(5))
    stream = reader(journal)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    first.unlink()
    for call in (lambda: stream.partitions(start, end), lambda: stream.latestOffset(start, ReadAllAvailable())):
        with pytest.raises(JournalError, match=rf"{first.name}: this segment was deleted before it was read"):
            call()


def test_a_segment_deleted_after_it_was_read_is_not_missed(journal: Path) -> None:
    first = segment(journal, 1, rows(5))
    stream = reader(journal)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert end == at(journal, 6), "the start of the segment that will follow"
    first.unlink()
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    segment(journal, 6, rows(5))
    more = stream.latestOffset(end, ReadAllAvailable())
    assert numbers(stream, end, more) == [6, 7, 8, 9, 10]


def test_a_next_segment_that_was_deleted_is_an_error(journal: Path) -> None:
    segment(journal, 1, rows(5))
    stream = reader(journal)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    segment(journal, 11, rows(5))
    with pytest.raises(JournalError, match=r"0006.sbj: this segment was deleted before it was read"):
        stream.latestOffset(end, ReadAllAvailable())


def test_a_segment_that_became_shorter_is_an_error(journal: Path) -> None:
    path = segment(journal, 1, rows(5), rows(5), sealed=False)
    stream = reader(journal)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(JournalError, match="its end was lost"):
        stream.latestOffset(end, ReadAllAvailable())


@pytest.mark.parametrize("sealed", [True, False])
def test_damage_in_the_middle_is_an_error_or_a_gap(journal: Path, sealed: bool) -> None:
    path = segment(journal, 1, rows(5), rows(5), rows(5), sealed=sealed)
    data = bytearray(path.read_bytes())
    second = SEGMENT_HEADER_BYTES + len(message_block(1, rows(5)))
    data[second + 4] ^= 0x40  # the length that its header tells
    path.write_bytes(data)
    if sealed:
        segment(journal, 16, rows(5))
    stream = reader(journal)
    start = stream.initialOffset()
    with pytest.raises(CorruptJournalError, match=rf"{path.name}: byte {second}: "):
        numbers(stream, start, stream.latestOffset(start, ReadAllAvailable()))
    skipping = reader(journal, onCorrupt="skip")
    skipping.prepareForTriggerAvailableNow()
    end = skipping.latestOffset(start, ReadAllAvailable())
    got = numbers(skipping, start, end, onCorrupt="skip")
    assert got == [1, 2, 3, 4, 5, None, *range(11, 21 if sealed else 16)]
    assert skipping.latestOffset(end, ReadAllAvailable()) == end


# -- with Spark ---------------------------------------------------------------------------------------


def test_a_query_goes_on_from_its_checkpoint(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    segment(journal, 1, rows(6), rows(6, 7), rows(6, 13), (START_NS, "overflow", 3))
    got: list[list[int]] = []

    def run(**options: str) -> None:
        stream = spark.readStream.format("sbus").schema("sequence BIGINT, key BINARY").options(**options)
        query = (
            stream.load(str(journal))
            .writeStream.foreachBatch(lambda frame, batch: got.append([row.sequence for row in frame.collect()]))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(50)

    run(maxRecordsPerBatch="8")
    assert got == [[*range(1, 7)], [*range(7, 13)], [*range(13, 20)]]
    segment(journal, 20, rows(4, 20))
    run()
    assert got[3:] == [[20, 21, 22, 23]]


def test_a_query_fails_with_the_name_of_the_segment(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    segment(journal, 1, rows(6))
    lost = segment(journal, 7, rows(6))
    segment(journal, 13, rows(6))
    stream = spark.readStream.format("sbus").option("maxRecordsPerBatch", 6).load(str(journal))
    query = (
        stream.writeStream.foreachBatch(lambda frame, batch: lost.unlink())
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match=rf"{lost.name}: this segment was deleted before it was read"):
        query.awaitTermination(50)
