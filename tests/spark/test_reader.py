"""How journals are divided among tasks and read by them. No Spark is started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lake.journals import SALT, START_NS, Row, message_block, rows, segment
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from support import python

from sbuslib.errors import CorruptJournalError, JournalError, UsageError
from sbuslib.lake.pieces import READ_BYTES, Piece
from sbuslib.lake.rows import SCHEMA
from sbuslib.segments.directory import DirectoryLock, read_records
from sbuslib.segments.encoding import encode_end
from sbuslib.spark.reader import JournalReader, Options, arrow_schema, group, read_partition

LIMITS = pytest.mark.parametrize("limits", [READ_BYTES, 1_000, 1])
"""Sizes with which a segment is read at once, a block at a time, and in parts smaller than a block."""


def read(directory: Path, *pieces: Piece, limits: int = READ_BYTES, **options: str) -> list[Any]:
    """The rows of pieces of segments."""
    chosen = Options.read({"path": str(directory), **options})
    return [
        row
        for partition in group(list(pieces))
        for batch in read_partition(partition, SCHEMA, chosen, limits)
        for row in batch.to_pylist()
    ]


def reader(*journals: Path, **options: str) -> JournalReader:
    """The reader that Spark makes of these journals and options."""
    chosen = Options.read({"paths": json.dumps([str(journal) for journal in journals]), **options})
    return JournalReader(chosen, from_arrow_schema(SCHEMA))


def values(column: str, *journals: Path, **options: str) -> list[Any]:
    """A column of all rows of some journals."""
    whole = reader(*journals, **options)
    return [
        value
        for partition in whole.partitions()
        for batch in whole.read(partition)
        for value in batch.column(column).to_pylist()
    ]


@pytest.fixture
def lock(journal: Path) -> Iterator[DirectoryLock]:
    """A recorder is at work in the journal."""
    journal.mkdir()
    held = DirectoryLock(journal)
    yield held
    held.release()


def test_a_block_that_is_cut_is_allowed_where_a_recorder_is_at_work(journal: Path, lock: DirectoryLock) -> None:
    segment(journal, 1, rows(3))
    growing = segment(journal, 4, rows(3), sealed=False)
    with growing.open("ab") as file:
        file.write(message_block(7, rows(5))[:-8])
    (journal / "00000000000000000012.sbj").write_bytes(b"")
    with pytest.raises(JournalError, match="a block is cut"):
        values("sequence", journal)  # it is not the last segment
    (journal / "00000000000000000012.sbj").unlink()
    assert values("sequence", journal) == [1, 2, 3, 4, 5, 6]
    lock.release()
    with pytest.raises(JournalError, match="a block is cut"):
        values("sequence", journal)


@pytest.mark.parametrize("cut", [1, 33, 200, 1_000])
def test_both_readers_say_the_same_of_a_segment_that_was_cut_short(journal: Path, cut: int) -> None:
    """Nobody records into it: what is missing may never come."""
    path = segment(journal, 1, rows(10), rows(10, 11))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CorruptJournalError, match=rf"{path.name}: byte \d+: ") as spark:
        values("sequence", journal)
    with pytest.raises(CorruptJournalError) as plain:
        list(read_records(journal))
    assert str(spark.value) == str(plain.value)


def test_only_durable_rows_are_read_if_asked_for(journal: Path, lock: DirectoryLock) -> None:
    segment(journal, 1, rows(3))
    segment(journal, 4, rows(3), rows(3, 7), sealed=False)
    lock.tell(8)
    assert values("sequence", journal, durableOnly="true") == [*range(1, 7)]
    assert values("sequence", journal) == [*range(1, 10)]


def test_a_missing_segment_is_an_error_or_a_gap(journal: Path) -> None:
    segment(journal, 1, rows(3))
    segment(journal, 4, rows(3)).unlink()
    segment(journal, 7, rows(3))
    with pytest.raises(JournalError, match=r"rows 4 to 6 are missing"):
        values("sequence", journal)
    assert values("sequence", journal, onCorrupt="skip") == [1, 2, 3, None, 7, 8, 9]


def test_one_task_reads_many_small_segments(journal: Path) -> None:
    for n in range(50):
        segment(journal, 1 + 3 * n, rows(3))
    (partition,) = reader(journal).partitions()
    assert len(partition.value) == 50
    assert values("sequence", journal) == list(range(1, 151))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-06-15T15:06:40", START_NS),
        ("2025-06-15 17:06:40.000001+02:00", START_NS + 1_000),
        (str(START_NS + 7), START_NS + 7),
        ("1969-12-31T23:59:59", -1_000_000_000),
    ],
)
def test_time_options_are_iso_8601_or_nanoseconds(text: str, expected: int) -> None:
    assert Options.read({"path": "j", "startTime": text}).wanted.start_ns == expected


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "which journal"),
        ({"path": "j", "startime": "1"}, "no such option: startime; there are startTime"),
        ({"path": "j", "endTime": "noon"}, "endTime is a time such as"),
        ({"path": "j", "onCorrupt": "ignore"}, "onCorrupt is 'error' or 'skip', not 'ignore'"),
        ({"path": "j", "maxRecordsPerBatch": "0"}, "a positive whole number"),
        ({"path": "j", "maxRecordsPerBatch": "many"}, "a positive whole number"),
        ({"path": "j", "durableOnly": "yes"}, "durableOnly is 'true' or 'false', not 'yes'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Options.read(options)


@pytest.mark.parametrize(
    ("name", "kind", "match"), [("sizes", "long", "no column 'sizes'"), ("key", "string", "of type binary")]
)
def test_wrong_columns_are_refused(name: str, kind: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        arrow_schema(StructType().add(name, kind))


def test_keys_and_payloads_are_any_bytes(journal: Path) -> None:
    key, payload = bytes(range(1, 256)), b"\0\xff" * 9
    segment(journal, 1, [Row(key, payload, START_NS)])
    assert (values("key", journal), values("payload", journal)) == ([key], [payload])


def test_a_filter_by_key_keeps_gap_rows(journal: Path) -> None:
    path = segment(journal, 1, rows(3), (START_NS + 7, "overflow", 41), rows(2, 5))
    piece = Piece(str(path), 112, path.stat().st_size, "mark", None)
    got = read(journal, piece, pattern="room/1/temp")
    assert [(row["sequence"], row["kind"], row["payload"], row["lost"], row["cause"]) for row in got] == [
        (1, "message", b"1", None, None),
        (4, "gap", None, 41, "overflow"),
    ]
    assert got[1]["time_ns"] == START_NS + 7


def test_the_error_for_a_deleted_segment_names_it(journal: Path) -> None:
    path = segment(journal, 1, rows(3))
    piece = Piece(str(path), 112, path.stat().st_size, "mark", None)
    path.unlink()
    with pytest.raises(Exception, match=rf"{path.name}: this segment was deleted before it was read"):
        read(journal, piece)


@pytest.mark.parametrize("size", [1, 100, 1_000, 1_500, 2_000, 3_000, 5_000])
def test_rows_do_not_depend_on_how_much_is_read_at_once(journal: Path, size: int) -> None:
    path = segment(journal, 1, rows(10), (START_NS + 7, "overflow", 41), rows(40, 12), rows(1, 52), rows(9, 53))
    piece = Piece(str(path), 112, path.stat().st_size, "mark", None)
    got = read(journal, piece, limits=size)
    assert [row["sequence"] for row in got] == [*range(1, 62)]
    assert got == read(journal, piece)


@LIMITS
@pytest.mark.parametrize(("again", "wrong"), [(21, "rows 11 to 20 are missing"), (1, "rows come twice")])
def test_missing_and_repeated_rows_are_errors(journal: Path, limits: int, again: int, wrong: str) -> None:
    path = segment(journal, 1, rows(10), sealed=False)
    at = path.stat().st_size
    with path.open("ab") as file:
        file.write(message_block(again, rows(10, again)))
        file.write(encode_end(SALT, again + 10))
    piece = Piece(str(path), 112, path.stat().st_size, "mark", None)
    with pytest.raises(CorruptJournalError, match=rf"byte {at}: {wrong}"):
        read(journal, piece, limits=limits)


def test_reading_does_not_load_pandas(journal: Path) -> None:
    path = segment(journal, 1, rows(10), (START_NS + 7, "overflow", 41), [rows(1, 12)[0]._replace(sender=None)])
    code = f"""
import sys
from sbuslib.lake.rows import SCHEMA
from sbuslib.lake.pieces import Piece
from sbuslib.spark.reader import Options, group, read_partition
piece = Piece({str(path)!r}, 112, {path.stat().st_size}, "mark", None)
(task,) = group([piece])
chosen = Options.read({{"path": {str(journal)!r}, "keyPrefix": "room/1"}})
rows = [row for batch in read_partition(task, SCHEMA, chosen) for row in batch.column("sequence").to_pylist()]
print(rows, "pandas" in sys.modules)
"""
    assert python("-c", code) == "[1, 8, 11] False\n"


@LIMITS
def test_damage_is_an_error_or_a_gap_with_the_count_of_lost_rows(journal: Path, limits: int) -> None:
    path = segment(journal, 1, rows(10), rows(5, 11), rows(10, 16))
    data = bytearray(path.read_bytes())
    block = len(data) // 2
    data[block] ^= 1
    path.write_bytes(data)
    piece = Piece(str(path), 112, len(data), "mark", None)
    with pytest.raises(CorruptJournalError, match=rf"{path.name}: byte \d+: a block is damaged"):
        read(journal, piece, limits=limits)
    got = read(journal, piece, limits=limits, onCorrupt="skip")
    missing = [row for row in got if row["kind"] == "gap"]
    assert [row["cause"] for row in missing] == ["corrupt"]
    assert missing[0]["time_ns"] is not None
    assert missing[0]["lost"] + sum(row["kind"] == "message" for row in got) == 25


def test_a_segment_with_a_damaged_header_is_an_error_or_one_gap(journal: Path) -> None:
    path = segment(journal, 1, rows(10))
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    piece = Piece(str(path), 112, len(data), "mark", None)
    with pytest.raises(CorruptJournalError, match=rf"{path.name}: byte 0: the segment's header is damaged"):
        read(journal, piece)
    (row,) = read(journal, piece, onCorrupt="skip")
    assert (row["kind"], row["cause"], row["journal"], row["time_ns"]) == ("gap", "corrupt", None, None)


@LIMITS
def test_a_piece_must_end_with_a_whole_block_if_its_end_is_blocks(journal: Path, limits: int) -> None:
    path = segment(journal, 1, rows(10), rows(5, 11), sealed=False)
    size = path.stat().st_size
    piece = Piece(str(path), 112, size, "blocks", None)
    assert len(read(journal, piece, limits=limits)) == 15
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptJournalError, match="a block is damaged"):
        read(journal, piece, limits=limits)
    skipped = read(journal, piece, limits=limits, onCorrupt="skip")
    assert [row["cause"] for row in skipped[10:]] == ["corrupt"]
    path.write_bytes(data[: size - 8])
    with pytest.raises(CorruptJournalError, match="a block is cut"):
        read(journal, piece, limits=limits)


def test_pieces_are_divided_among_tasks_by_size() -> None:
    pieces = [Piece(f"{n}", 0, size, "mark", None) for n, size in enumerate([10, 20, 30, 500, 1, 1])]
    tasks = group(pieces, 60)
    assert [[piece.path for piece in task.value] for task in tasks] == [["0", "1", "2"], ["3"], ["4", "5"]]
    assert group([]) == []
