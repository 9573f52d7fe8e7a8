"""Record batches of blocks: columns, filters, limits, and wrong blocks. No Spark is started."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow
import pytest
from journal.format.journals import SALT, SENDER, START_NS, Row, rows

from sbuslib.errors import CorruptJournalError
from sbuslib.journal.format.decoding import decode_block
from sbuslib.journal.format.encoding import encode_block
from sbuslib.journal.format.layout import NULL, Block, SegmentHeader, pack
from sbuslib.journal.read.arrow_batches import Decoder
from sbuslib.journal.read.schema import SCHEMA
from sbuslib.journal.read.selection import EVERYTHING, Selection
from sbuslib.matcher import matches

HEADER = SegmentHeader("0123456789abcdef", "hub-1", b"/", START_NS, 1, SALT)


def decoded(
    *blocks: bytes | bytearray, schema: Any = SCHEMA, wanted: Selection = EVERYTHING, **limits: int
) -> list[Any]:
    """The record batches of some blocks of one segment."""
    decoder = Decoder(schema, wanted, **limits)
    batches: list[Any] = []
    for data in blocks:
        block = decode_block(data, 0, SALT)
        assert isinstance(block, Block)
        batches += decoder.add(HEADER, "segment", block)
    return [*batches, *decoder.finish()]


def encoded(first: int, messages: list[Row], **columns: Any) -> bytes | bytearray:
    """A block. ``columns`` replaces columns, also by wrong ones."""
    names = [*dict.fromkeys([row.key for row in messages]), SENDER]
    count = len(messages)
    made: dict[str, Any] = {
        "times": pack("q", [row.time_ns for row in messages]),
        "gids": pack("q", [row.ids[0] for row in messages]),
        "uids": pack("q", [row.ids[1] for row in messages]),
        "pids": pack("q", [row.ids[2] for row in messages]),
        "keys": pack("i", [names.index(row.key) for row in messages]),
        "senders": pack("i", [len(names) - 1] * count),
    } | columns
    names = made.pop("names", names)
    payloads = made.pop("payloads", [row.payload for row in messages])
    return encode_block(SALT, first, made, names, payloads, made.pop("sizes", None))


def test_a_message_has_every_column() -> None:
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


def test_an_unknown_sender_is_null() -> None:
    senders = pack("i", [NULL, 7, NULL])
    (batch,) = decoded(encoded(1, rows(3), senders=senders, names=[b"room/%d/temp" % n for n in range(7)] + [SENDER]))
    assert batch.column("sender").to_pylist() == [None, SENDER, None]


@pytest.mark.parametrize("pattern", [b"", b"room/1/temp", b"room/", b"room/*/temp", b"*/", b"hall", b"room/*"])
def test_a_filter_by_pattern_keeps_matching_keys(pattern: bytes) -> None:
    messages = [*rows(20), Row(b"hall", b"", START_NS), Row(b"", b"", START_NS), Row(b"room/", b"", START_NS)]
    batches = decoded(encoded(1, messages[:9]), encoded(10, messages[9:]), wanted=Selection(patterns=(pattern,)))
    got = [key for batch in batches for key in batch.column("key").to_pylist()]
    assert got == [row.key for row in messages if matches(pattern, row.key)]


def test_rows_with_long_keys_are_divided_among_batches() -> None:
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
def test_a_reference_to_a_missing_name_is_an_error(lie: dict[str, Any]) -> None:
    with pytest.raises(CorruptJournalError, match=r"segment: byte 0: a row refers to a name that is not there"):
        decoded(encoded(1, rows(3, keys=3), **lie))


@pytest.mark.parametrize("at", ["payload_offsets", "name_offsets"])
@pytest.mark.parametrize("values", [(0, 5, 2), (1, 2, 3), (0, 1, 99), (0, -1, 2)])
def test_wrong_offsets_are_an_error(at: str, values: tuple[int, int, int]) -> None:
    block = decode_block(encoded(1, rows(2, keys=1)), 0, SALT)
    assert isinstance(block, Block)
    decoder = Decoder(SCHEMA, EVERYTHING)
    lying: Any = {at: memoryview(array("i", values))}
    list(decoder.add(HEADER, "segment", block._replace(**lying)))
    with pytest.raises(CorruptJournalError, match="offsets"):
        list(decoder.finish())
