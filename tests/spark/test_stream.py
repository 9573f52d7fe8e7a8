"""Streams of journals: where batches begin and end, limits, and deleted segments. No Spark is started."""

from __future__ import annotations

import json
from importlib import import_module
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from journal.format.journals import SALT, message_block, rows, segment
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sbuslib import read
from sbuslib.errors import CorruptJournalError, JournalError
from sbuslib.journal.format.encoding import encode_end
from sbuslib.journal.format.layout import SEGMENT_HEADER_BYTES
from sbuslib.journal.format.recovery import NUMBERS_LEFT_OUT
from sbuslib.journal.read.schema import SCHEMA
from sbuslib.journal.read.sealing import ingest, seal
from sbuslib.spark.reader import Options, read_partition
from sbuslib.spark.source import JournalSource
from sbuslib.spark.stream import JournalStreamReader

JOURNAL = "0123456789abcdef"


def reader(*journals: Path, **options: str) -> JournalStreamReader:
    """The reader that Spark makes for ``readStream``."""
    chosen = Options.read({"paths": json.dumps([*map(str, journals)]), **options})
    return JournalStreamReader(chosen, JournalSource({}).schema())


def numbers(stream: JournalStreamReader, start: dict[str, Any], end: dict[str, Any], **options: str) -> list[int]:
    """The sequences of the rows between two offsets."""
    chosen = Options.read({"path": "/", **options})
    return [
        number
        for partition in stream.partitions(start, end)
        for batch in read_partition(partition, SCHEMA, chosen)
        for number in batch.column("sequence").to_pylist()
    ]


def rest(stream: JournalStreamReader, position: dict[str, Any], most: int = 1_000) -> list[list[int]]:
    """The numbers of the rows in each batch that there is from an offset on."""
    found = []
    while (end := stream.latestOffset(position, ReadMaxRows(most))) != position:
        found.append(numbers(stream, position, end))
        position = end
    return found


def test_a_batch_reaches_from_the_oldest_row_to_the_last_whole_block(journal: Path) -> None:
    segment(journal, 101, rows(5), rows(5, 6))
    last = segment(journal, 111, rows(3), sealed=False)
    whole = last.stat().st_size
    with last.open("ab") as file:
        file.write(message_block(114, rows(4))[:-9])
    stream = reader(journal)
    start = stream.initialOffset()
    assert start == {JOURNAL: 101}
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end == {JOURNAL: 114}
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
    batches = rest(stream, stream.initialOffset(), 12)
    assert [number for batch in batches for number in batch] == list(range(1, 38))
    assert [len(batch) for batch in batches] == [10, 10, 10, 7]
    seal(journal)
    assert [len(batch) for batch in rest(reader(journal), {}, 12)] == [12, 12, 6, 7], "a sealed file ends anywhere"
    assert reader(journal).getDefaultReadLimit() == ReadAllAvailable()


def test_several_journals_share_a_limit(tmp_path: Path) -> None:
    one, other, empty = tmp_path / "one", tmp_path / "other", tmp_path / "empty"
    for n in range(10):
        segment(one, 1 + 4 * n, rows(4))
        segment(other, 1 + 4 * n, rows(4), journal="fedcba9876543210")
    empty.mkdir()
    stream = reader(one, other, empty)
    position = stream.initialOffset()
    assert position == {JOURNAL: 1, "fedcba9876543210": 1}
    sizes = [len(batch) for batch in rest(stream, position, 24)]
    assert sum(sizes) == 80
    assert max(sizes) <= 24
    end = stream.latestOffset(position, ReadAllAvailable())
    segment(empty, 1, rows(4), journal="e" * 16)
    assert rest(stream, end) == [[1, 2, 3, 4]]


def test_available_now_ends_where_the_journal_ended_at_the_start(journal: Path) -> None:
    segment(journal, 1, rows(5))
    last = segment(journal, 6, rows(5), sealed=False)
    stream = reader(journal)
    stream.prepareForTriggerAvailableNow()
    with last.open("ab") as file:
        file.write(message_block(11, rows(5)) + encode_end(SALT, 16))
    segment(journal, 16, rows(5))
    assert [*chain(*rest(stream, stream.initialOffset(), 3))] == list(range(1, 11))


def test_rows_that_were_deleted_before_they_were_read_are_a_gap(journal: Path) -> None:
    first = segment(journal, 1, rows(5))
    second = segment(journal, 6, rows(5))
    segment(journal, 11, rows(5))
    stream = reader(journal)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    first.unlink()
    assert numbers(stream, start, end) == [5, *range(6, 16)]
    second.unlink()
    for _ in range(2):
        assert rest(stream, {JOURNAL: 4}) == [[10, *range(11, 16)]]
        seal(journal)
    assert rest(reader(journal), {}) == [[*range(11, 16)]], "what was deleted before the first row is not told"


def test_a_stream_that_was_away_goes_on_with_sealed_files_and_lakes(journal: Path, tmp_path: Path) -> None:
    segment(journal, 1, rows(5), rows(5, 6), sealed=False)
    (end,) = [reader(journal).latestOffset({}, ReadMaxRows(5))]
    assert end == {JOURNAL: 6}
    segment(journal, 1, rows(5), rows(5, 6))
    for first in range(11, 60, 10):
        segment(journal, first, rows(10, first))
    seal(journal)
    ingest([journal], tmp_path / "lake")
    for place in (journal, tmp_path / "lake"):
        assert rest(reader(place), end) == [[*range(6, 61)]]
        assert [*chain(*rest(reader(place), end, 7))] == [*range(6, 61)]


def test_a_segment_that_is_sealed_between_listing_and_measuring_is_looked_for_again(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sealed_meanwhile(module: str, name: str) -> None:
        """Let the next plan of a module have a segment that is sealed, and deleted, right after it."""
        plan = getattr(import_module(module), name)

        def planned(*arguments: Any, **options: Any) -> Any:
            monkeypatch.undo()
            found = plan(*arguments, **options)
            segment(journal, 1, rows(5))
            segment(journal, 6, rows(5, 6))
            seal(journal)
            return found

        rmtree(f"{journal}/sealed", ignore_errors=True)
        segment(journal, 1, rows(5), sealed=False)
        monkeypatch.setattr(f"{module}.{name}", planned)

    sealed_meanwhile("sbuslib.spark.stream", "plan")
    assert [*chain(*rest(reader(journal), {}))] == [*range(1, 11)]
    sealed_meanwhile("sbuslib.journal.read.units", "plan_of")
    ingest([journal], tmp_path / "lake")
    assert read(tmp_path / "lake").column("sequence").to_pylist() == [*range(1, 11)]


def test_numbers_that_a_crash_left_out_end_no_batch(journal: Path) -> None:
    """A limit counts rows, not their numbers: else four thousand million of them would be empty batches."""
    path = segment(journal, 1, rows(10), sealed=False)
    path.write_bytes(path.read_bytes() + encode_end(SALT, 11, 11 + NUMBERS_LEFT_OUT))
    segment(journal, 11 + NUMBERS_LEFT_OUT, rows(10))
    expected = [*range(1, 11), *range(11 + NUMBERS_LEFT_OUT, 21 + NUMBERS_LEFT_OUT)]
    for _ in range(2):
        found = rest(reader(journal), {}, 5)
        assert [*chain(*found)] == expected
        assert len(found) <= 4
        seal(journal)


def test_a_checkpoint_of_another_version_is_refused(journal: Path) -> None:
    segment(journal, 1, rows(5))
    with pytest.raises(JournalError, match="checkpoint is of another version"):
        reader(journal).latestOffset({str(journal): {"segment": "x", "position": 1}}, ReadAllAvailable())  # type: ignore[dict-item]


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
    assert got == [1, 2, 3, 4, 5, 10, *range(11, 21 if sealed else 16)]
    assert skipping.latestOffset(end, ReadAllAvailable()) == end
