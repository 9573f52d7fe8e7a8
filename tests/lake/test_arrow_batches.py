"""Places, selections and record batches of blocks."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments.journals import SALT, SENDER, START_NS, Row, rows, segment

from sbuslib.errors import CorruptJournalError, JournalError, UsageError
from sbuslib.lake.arrow_batches import Decoder
from sbuslib.lake.journal_files import absolute, list_sealed, list_segments, opened, sealed_name
from sbuslib.lake.read_plan import contents
from sbuslib.lake.schema import SCHEMA
from sbuslib.lake.selection import EVERYTHING, Selection, nanoseconds
from sbuslib.matcher import matches
from sbuslib.segments.decoding import decode_block
from sbuslib.segments.encoding import encode_block
from sbuslib.segments.layout import NULL, Block, SegmentHeader, pack

# -- Record batches of blocks: columns, filters, limits, and wrong blocks. No Spark is started

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


# -- Places of journals: paths and URIs, sealed files beside segments, and directories that are not journals

JOURNAL = "0123456789abcdef"


def test_an_absolute_place_does_not_depend_on_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("journal/") == absolute("file:./journal") == f"{tmp_path}/journal"
    assert absolute("s3://bucket/journal/") == "s3://bucket/journal"


def test_segments_are_listed_and_read_by_path_and_by_uri(journal: Path) -> None:
    later, first = segment(journal, 4, rows(2)), segment(journal, 1, rows(3))
    (journal / "recorder.lock").touch()
    for place in (str(journal), journal.as_uri()):
        found = list_segments(place)
        assert [(one.first_sequence, one.size) for one in found] == [
            (1, first.stat().st_size),
            (4, later.stat().st_size),
        ]
        with opened(found[0].path) as read_at:
            assert read_at(8, 4_096) == first.read_bytes()[8:4_104]
    first.unlink()
    with (
        pytest.raises(JournalError, match=rf"{first.name}: this file was deleted before it was read"),
        opened(str(first)),
    ):
        pass


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for place, said in (("bogus://x", "bogus://x: "), (str(tmp_path / "nothing"), "no such directory")):
        with pytest.raises(JournalError, match=said):
            list_segments(place)
    assert list_sealed(str(tmp_path / "nothing")) == []


def test_sealed_files_are_found_by_their_names(journal: Path) -> None:
    segment(journal, 1, rows(3))
    folder = journal / "sealed"
    folder.mkdir()
    second = 1_000_000_000
    names = [sealed_name(JOURNAL, n, n + 9, (n * second + 5, n * second + 7), n) for n in (11, 1)]
    assert names[1] == f"{JOURNAL}-{1:020d}-{10:020d}-19700101T000001-19700101T000001-00000001.parquet"
    names.append(names[0].replace("T0000", "T9900"))
    for name in (*names, f"{JOURNAL}-{31:020d}-{40:020d}.parquet", "notes.parquet", f"_{JOURNAL}-{21:020d}.new"):
        (folder / name).write_bytes(b"x")
    found = contents(str(journal))
    assert [one[1:] for one in found.sealed] == [
        (JOURNAL, 1, 10, second, 2 * second, 1, 1),
        (JOURNAL, 11, 20, 11 * second, 12 * second, 11, 1),
    ]
    assert [one.name for one in found.sealed] == names[1::-1]
    assert (len(found.segments), found.is_growing, found.journal) == (1, False, JOURNAL)
    with pytest.raises(JournalError, match="the identity"):
        sealed_name("../../etc/passwd", 1, 2, (0, 0), 0)


# -- Which of the recorded rows are wanted

PARTS = [b"a", b"ab", b"a/b", b"*", b"a/*", b"a*", b"\xff", b"\xff\xff/x"]

PATTERNS = st.lists(st.sampled_from(PARTS), max_size=3).map(b"/".join)


@given(st.lists(PATTERNS, min_size=1, max_size=3))
def test_the_range_of_keys_leaves_out_no_wanted_key(patterns: list[bytes]) -> None:
    wanted = Selection(patterns=tuple(patterns))
    low, high = wanted.key_range()
    for key in (b"a", b"ab", b"a/b", b"a/c/d", b"b", b"*", b"\xff", b"\xff\xff/x", b"\xff\xff/xy", *patterns):
        is_wanted = any(matches(pattern, key) for pattern in patterns)
        assert wanted.wants(key, b"/") is is_wanted
        if is_wanted:
            assert key >= low
            assert high is None or key < high


def test_times_are_from_the_start_to_before_the_end() -> None:
    wanted = Selection(start_ns=10, end_ns=20)
    assert [time for time in range(30) if wanted.has(time)] == [*range(10, 20)]
    assert [start for start in range(30) if wanted.overlaps(start, start + 5)] == [*range(6, 20)]
    assert [start for start in range(30) if wanted.covers(start, start + 5)] == [*range(10, 16)]


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2001, 9, 9, 1, 46, 40),
        datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC),
        datetime(2001, 9, 9, 3, 46, 40, tzinfo=timezone(timedelta(hours=2))),
        "2001-09-09T03:46:40+02:00",
        str(10**18),
        10**18,
    ],
)
def test_a_time_is_in_utc_unless_it_says(moment: datetime | str | int) -> None:
    assert nanoseconds("start", moment) == 10**18


def test_a_time_may_be_before_1970_or_none_but_not_another_text() -> None:
    assert (nanoseconds("start", "1969-12-31T23:59:59"), nanoseconds("start", None)) == (-1_000_000_000, None)
    for text in ("noon", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}"):
        with pytest.raises(UsageError, match="end is a time such as"):
            nanoseconds("end", text)
