"""Blocks to record batches: every column, filters, limits, and blocks that lie. No Spark is started."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from spark.journals import SALT, SENDER, START_NS, Row, message_block, rows, segment
from support import python

from sbuslib.errors import CorruptJournalError
from sbuslib.matcher import matches
from sbuslib.segments.encoding import encode_block, encode_end
from sbuslib.segments.layout import NULL, Block, SegmentHeader, pack
from sbuslib.segments.reading import decode_block
from sbuslib.spark.decode import SCHEMA, Decoder, Filter
from sbuslib.spark.limits import SparkLimits
from sbuslib.spark.reader import Options, Piece, read_partition
from sbuslib.spark.reader import group as grouped

HEADER = SegmentHeader("0123456789abcdef", "hub-1", b"/", START_NS, 1, SALT)
EVERYTHING = Filter()


def decoded(*blocks: bytes | bytearray, schema: Any = SCHEMA, wanted: Filter = EVERYTHING, **limits: int) -> list[Any]:
    """The record batches of some blocks of one segment."""
    decoder = Decoder(schema, wanted, SparkLimits(**limits))
    batches: list[Any] = []
    for data in blocks:
        block = decode_block(data, 0, SALT)
        assert isinstance(block, Block)
        batches += decoder.add(HEADER, "segment", block)
    return [*batches, *decoder.finish()]


def encoded(first: int, messages: list[Row], **columns: Any) -> bytes | bytearray:
    """A block whose columns may say anything."""
    names = [*dict.fromkeys([row.key for row in messages]), SENDER]
    count = len(messages)
    made: dict[str, Any] = {
        "times": pack("q", [row.time_ns for row in messages]),
        "gids": pack("q", [row.ids[0] for row in messages]),
        "uids": pack("q", [row.ids[1] for row in messages]),
        "pids": pack("q", [row.ids[2] for row in messages]),
        "keys": pack("i", [names.index(row.key) for row in messages]),
        "senders": pack("i", [len(names) - 1] * count),
        "names": names,
        "payloads": [row.payload for row in messages],
    }
    return encode_block(SALT, first, **made | columns)


def test_every_column() -> None:
    (batch,) = decoded(encoded(5, [Row(b"a/b", b"xyz", 1_234_567, ids=(1, NULL, 3))]))
    assert batch.schema == SCHEMA
    assert batch.to_pylist() == [
        {
            "time": batch.column("time")[0].as_py(),
            "time_ns": 1_234_567,
            "journal": "0123456789abcdef",
            "hub": "hub-1",
            "sequence": 5,
            "kind": "message",
            "key": b"a/b",
            "payload": b"xyz",
            "size": 3,
            "sender": SENDER,
            "gid": 1,
            "uid": None,
            "pid": 3,
            "lost": None,
            "cause": None,
        }
    ]
    assert batch.column("time").cast(pyarrow.int64()).to_pylist() == [1_234]


def test_small_blocks_are_merged() -> None:
    blocks = [encoded(1 + 10 * n, rows(10, 1 + 10 * n)) for n in range(7)]
    batches = decoded(*blocks, batch_rows=30)
    assert [batch.num_rows for batch in batches] == [30, 30, 10]
    whole = pyarrow.Table.from_batches(batches)
    assert whole["sequence"].to_pylist() == list(range(1, 71))
    assert whole["payload"].to_pylist() == [row.payload for row in rows(70)]
    assert whole["key"].to_pylist() == [row.key for row in rows(70)]
    assert whole["time_ns"].to_pylist() == [row.time_ns for row in rows(70)]


def test_only_what_is_asked_for() -> None:
    schema = pyarrow.schema([("size", pyarrow.int64()), ("key", pyarrow.binary())])
    (batch,) = decoded(encoded(1, rows(3)), schema=schema)
    assert batch.to_pylist() == [{"size": 1, "key": row.key} for row in rows(3)]


def test_a_message_whose_sender_is_not_known() -> None:
    senders = pack("i", [NULL, 7, NULL])
    (batch,) = decoded(encoded(1, rows(3), senders=senders, names=[b"room/%d/temp" % n for n in range(7)] + [SENDER]))
    assert batch.column("sender").to_pylist() == [None, SENDER, None]


@pytest.mark.parametrize("pattern", [b"", b"room/1/temp", b"room/", b"room/*/temp", b"*/", b"hall", b"room/*"])
def test_a_pattern_lets_through_what_it_matches(pattern: bytes) -> None:
    messages = [*rows(20), Row(b"hall", b"", START_NS), Row(b"", b"", START_NS), Row(b"room/", b"", START_NS)]
    batches = decoded(encoded(1, messages[:9]), encoded(10, messages[9:]), wanted=Filter(pattern=pattern))
    got = [key for batch in batches for key in batch.column("key").to_pylist()]
    assert got == [row.key for row in messages if matches(pattern, row.key)]


def test_filters_together() -> None:
    wanted = Filter(START_NS + 3_000_000_000, START_NS + 11_000_000_000, key_prefix=b"room/3", pattern=b"room/*/temp")
    batches = decoded(encoded(1, rows(30)), wanted=wanted)
    assert [payload for batch in batches for payload in batch.column("payload").to_pylist()] == [b"3", b"10"]
    assert decoded(encoded(1, rows(30)), wanted=Filter(key_prefix=b"x")) == []


def test_more_keys_than_are_remembered() -> None:
    messages = [Row(b"k%d" % n, b"", START_NS) for n in range(100)]
    batches = decoded(encoded(1, messages), wanted=Filter(key_prefix=b"k1"), known_keys=3)
    assert sum(batch.num_rows for batch in batches) == 11


def test_a_long_key_of_many_rows_comes_in_pieces() -> None:
    messages = [Row(b"k" * 10_000, b"", START_NS) for _ in range(100)]
    batches = decoded(encoded(1, messages), batch_bytes=100_000)
    assert all(batch.column("key").nbytes < 110_000 for batch in batches)
    assert [key for batch in batches for key in batch.column("key").to_pylist()] == [row.key for row in messages]
    assert [n for batch in batches for n in batch.column("sequence").to_pylist()] == list(range(1, 101))


@pytest.mark.parametrize(
    "lie",
    [
        {"keys": pack("i", [0, 1, 99])},
        {"keys": pack("i", [0, -1, 1])},
        {"senders": pack("i", [0, 1, 4])},
        {"senders": pack("i", [0, 1, -2])},
    ],
)
def test_a_block_that_names_what_is_not_there(lie: dict[str, Any]) -> None:
    with pytest.raises(CorruptJournalError, match=r"segment: byte 0: a row refers to a name that is not there"):
        decoded(encoded(1, rows(3, keys=3), **lie))


@pytest.mark.parametrize("at", ["payload_offsets", "name_offsets"])
@pytest.mark.parametrize("values", [(0, 5, 2), (1, 2, 3), (0, 1, 99), (0, -1, 2)])
def test_offsets_that_lie(at: str, values: tuple[int, int, int]) -> None:
    block = decode_block(encoded(1, rows(2, keys=1)), 0, SALT)
    assert isinstance(block, Block)
    decoder = Decoder(SCHEMA, EVERYTHING, SparkLimits())
    lying: Any = {at: memoryview(array("i", values))}
    list(decoder.add(HEADER, "segment", block._replace(**lying)))
    with pytest.raises(CorruptJournalError, match="offsets"):
        list(decoder.finish())


LIMITS = pytest.mark.parametrize("limits", [SparkLimits(), SparkLimits(read_bytes=1_000), SparkLimits(read_bytes=1)])
"""A segment is read at once, a block at a time, and in pieces of which none holds a block."""


def read(directory: Path, *pieces: Piece, limits: SparkLimits | None = None, **options: str) -> list[Any]:
    """The rows of pieces of segments."""
    chosen = Options.read({"path": str(directory), **options})
    return [
        row
        for partition in grouped(list(pieces), SparkLimits())
        for batch in read_partition(partition, SCHEMA, chosen, limits)
        for row in batch.to_pylist()
    ]


def test_gaps_are_rows_whatever_key_is_asked_for(journal: Path) -> None:
    path = segment(journal, 1, rows(3), (START_NS + 7, "overflow", 41), rows(2, 5))
    piece = Piece(str(path), 112, path.stat().st_size, "mark", None)
    got = read(journal, piece, pattern="room/1/temp")
    assert [(row["sequence"], row["kind"], row["payload"], row["lost"], row["cause"]) for row in got] == [
        (1, "message", b"1", None, None),
        (4, "gap", None, 41, "overflow"),
    ]
    assert got[1]["time_ns"] == START_NS + 7


def test_a_segment_that_was_deleted_is_named(journal: Path) -> None:
    path = segment(journal, 1, rows(3))
    piece = Piece(str(path), 112, path.stat().st_size, "mark", None)
    path.unlink()
    with pytest.raises(Exception, match=rf"{path.name}: this segment was deleted before it was read"):
        read(journal, piece)


@pytest.mark.parametrize("size", [1, 100, 1_000, 1_500, 2_000, 3_000, 5_000])
def test_a_segment_is_read_in_pieces_of_any_size(journal: Path, size: int) -> None:
    path = segment(journal, 1, rows(10), (START_NS + 7, "overflow", 41), rows(40, 12), rows(1, 52), rows(9, 53))
    piece = Piece(str(path), 112, path.stat().st_size, "mark", None)
    got = read(journal, piece, limits=SparkLimits(read_bytes=size))
    assert [row["sequence"] for row in got] == [*range(1, 62)]
    assert got == read(journal, piece)


@LIMITS
@pytest.mark.parametrize(("again", "wrong"), [(21, "rows 11 to 20 are missing"), (1, "rows come twice")])
def test_rows_that_are_missing_or_come_twice(journal: Path, limits: SparkLimits, again: int, wrong: str) -> None:
    path = segment(journal, 1, rows(10), sealed=False)
    at = path.stat().st_size
    with path.open("ab") as file:
        file.write(message_block(again, rows(10, again)))
        file.write(encode_end(SALT, again + 10))
    piece = Piece(str(path), 112, path.stat().st_size, "mark", None)
    with pytest.raises(CorruptJournalError, match=rf"byte {at}: {wrong}"):
        read(journal, piece, limits=limits)


def test_a_worker_need_not_load_pandas(journal: Path) -> None:
    path = segment(journal, 1, rows(10), (START_NS + 7, "overflow", 41), [rows(1, 12)[0]._replace(sender=None)])
    code = f"""
import sys
from sbuslib.spark.decode import SCHEMA
from sbuslib.spark.limits import SparkLimits
from sbuslib.spark.reader import Options, Piece, group, read_partition
piece = Piece({str(path)!r}, 112, {path.stat().st_size}, "mark", None)
(task,) = group([piece], SparkLimits())
chosen = Options.read({{"path": {str(journal)!r}, "keyPrefix": "room/1"}})
rows = [row for batch in read_partition(task, SCHEMA, chosen) for row in batch.column("sequence").to_pylist()]
print(rows, "pandas" in sys.modules)
"""
    assert python("-c", code) == "[1, 8, 11] False\n"


@LIMITS
def test_damage_is_an_error_or_a_gap_that_counts(journal: Path, limits: SparkLimits) -> None:
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


def test_a_damaged_header_skips_the_segment(journal: Path) -> None:
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
def test_a_piece_that_ends_between_blocks_has_to_be_whole(journal: Path, limits: SparkLimits) -> None:
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


def test_pieces_are_grouped_to_tasks() -> None:
    pieces = [Piece(f"{n}", 0, size, "mark", None) for n, size in enumerate([10, 20, 30, 500, 1, 1])]
    tasks = grouped(pieces, SparkLimits(partition_bytes=60))
    assert [[piece.path for piece in task.value] for task in tasks] == [["0", "1", "2"], ["3"], ["4", "5"]]
    assert grouped([], SparkLimits()) == []
