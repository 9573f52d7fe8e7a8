"""Reading the blocks of a segment: changed, cut, missing and forged bytes are found."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Literal
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal.format.journals import EXAMPLE, SALT, block, message, records_of, segment_of, write

from sbuslib.errors import CorruptJournalError
from sbuslib.journal.format import decoding
from sbuslib.journal.format.decoding import OnCorrupt, decode_block, read_segment, walk
from sbuslib.journal.format.encoding import encode_block, encode_end
from sbuslib.journal.format.layout import (
    SEGMENT_HEADER_BYTES,
    WIDE,
    Block,
    End,
    Record,
    Skipped,
    pack,
    segment_name,
)
from sbuslib.journal.read.blocks import read_records

ROWS = [record for blocks in EXAMPLE for rows in blocks for record in rows]
SAMPLE = Path(__file__).parent / "sample"


def test_the_sample_of_version_1_is_read() -> None:
    assert records_of(str(SAMPLE)) == ROWS


def resealed(data: bytearray) -> bytearray:
    """The block with a CRC that fits its contents, as an attacker would make it."""
    data[8:12] = bytes(4)
    data[8:12] = crc32(data[24:], crc32(data[:24], SALT)).to_bytes(4, "little")
    return data


def numbered(first: int) -> bytearray:
    data = block([message(1, b"k", b"v")])
    data[40:48] = pack("q", [first])
    return resealed(data)


def test_impossible_numbers_of_rows_are_refused() -> None:
    for first in (-1, 0, 2**63 - 1):
        with pytest.raises(CorruptJournalError, match="row numbers"):
            decode_block(numbered(first), 0, SALT)
        with pytest.raises(CorruptJournalError, match="end mark"):
            decode_block(encode_end(SALT, first), 0, SALT)


def read_blocks(data: bytes | bytearray, on_corrupt: OnCorrupt = "error") -> list[Block | End | Skipped]:
    """The blocks of the last segment of a journal, which are all of ``data``."""
    return list(
        read_segment(lambda at, length: bytes(data[at : at + length]), len(data), SALT, 1, at=0, on_corrupt=on_corrupt)
    )


FIVES = pack("q", [5] * 3)
COLUMN = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 4), min_size=3, max_size=3)


@settings(max_examples=40)
@given(COLUMN, COLUMN, COLUMN, st.integers(0, 40), st.sampled_from(["message", "gap"]))
def test_forged_columns_that_do_not_agree_are_an_error_or_rows(
    keys: list[int], senders: list[int], sizes: list[int], payloads: int, kind: Literal["message", "gap"]
) -> None:
    data = encode_block(
        SALT,
        1,
        dict.fromkeys(WIDE, FIVES) | {"keys": pack("i", keys), "senders": pack("i", senders)},
        [b"name", b"sender"],
        [bytes(payloads)],
        pack("i", [payloads, 0, 0]),
        kind,
    )
    at = len(data) - (payloads + 7 & ~7) - 16 - 16 - 16  # the payloads, names, their offsets, those of the payloads
    data[at : at + 16] = pack("i", [0, *sizes])
    read = decode_block(resealed(data), 0, SALT)
    assert isinstance(read, Block)
    with suppress(CorruptJournalError):
        assert len(list(read.records())) == 3


def test_walk_finds_the_end_of_each_block() -> None:
    data = segment_of(EXAMPLE[1])
    extents = list(walk(lambda at, length: data[at : at + length], len(data), 4))
    assert [(extent.rows, extent.first) for extent in extents] == [(1, 4), (3, 5), (2, 8), (None, 10)]
    assert extents[-1].end == len(data)
    for size in range(len(data)):
        whole = [extent for extent in extents if extent.end <= size]
        assert list(walk(lambda at, length: data[at : at + length], size, 4)) == whole


# -- damage -------------------------------------------------------------------------------------------


def skipped_in(journal: str) -> tuple[list[Record], list[Skipped]]:
    """The rows that are read, without those that stand in no file, and what was skipped."""
    skipped: list[Skipped] = []
    found = read_records(journal, on_corrupt="skip", on_skip=lambda path, one: skipped.append(one))
    return [row for row in found if row.cause not in ("damaged", "cut", "deleted")], skipped


def check_damaged(journal: str, path: str, position: int) -> tuple[int, int | None]:
    """Reading raises an error with the position, or counts skipped bytes and, if known, rows. It gives no wrong row."""
    with pytest.raises(CorruptJournalError) as caught:
        records_of(journal)
    assert caught.value.path == path
    assert f"{path}: byte {caught.value.position}: " in str(caught.value)
    assert caught.value.position <= position, "the block in which it is: no later than the byte itself"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.path, again.position, again.reason) == (path, caught.value.position, caught.value.reason)
    found, skipped = skipped_in(journal)
    assert [record for record in ROWS if record in found] == found
    unknown = any(one.rows is None for one in skipped)
    rows = sum(one.rows or 0 for one in skipped)
    assert unknown or rows + len(found) == len(ROWS)
    return sum(one.length for one in skipped), None if unknown else rows


@pytest.fixture(params=[1 << 20, 400], ids=["at once", "in pieces"])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much of a segment is read at once: all of it, or little more than a block."""
    monkeypatch.setattr(decoding, "WINDOW_BYTES", request.param)


@pytest.mark.parametrize("number", [0, 1])
def test_any_changed_byte_is_found(journal: str, number: int, window: None) -> None:
    path = write(journal, *EXAMPLE)[number]
    data = Path(path).read_bytes()
    last = number == len(EXAMPLE) - 1
    for at in range(number, len(data), 3):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        Path(path).write_bytes(changed)
        if last and at >= len(data) - 32:  # as if its recorder had been killed while it wrote the mark
            assert [row.cause for row in records_of(journal)[-1:]] == ["cut"]
            assert records_of(journal)[:-1] == ROWS
            continue
        length, rows = check_damaged(journal, path, at)
        assert length > 0
        if not last:
            assert rows in (0, 3)  # the next segment tells how many there were
        elif at >= SEGMENT_HEADER_BYTES:
            assert rows in (1, 2, 3)


@pytest.mark.parametrize("number", [0, 1])
def test_a_cut_at_any_byte_is_found(journal: str, number: int, window: None) -> None:
    """In the last segment it is what a kill leaves; before, it is damage."""
    path = write(journal, *EXAMPLE)[number]
    data = Path(path).read_bytes()
    for at in range(number, len(data), 3):
        Path(path).write_bytes(data[:at])
        if number == 0:
            _, rows = check_damaged(journal, path, at)
            assert rows in (0, 3)
            continue
        *whole, gap = records_of(journal)
        assert whole == ROWS[: len(whole)]
        assert (gap.sequence, gap.cause, gap.lost) == (len(whole) + 1, "cut", None)
        ends = [0, *(sum(map(len, map(block, EXAMPLE[1][:n]))) + SEGMENT_HEADER_BYTES for n in (1, 2, 3))]
        assert len(whole) == [3, 4, 7, 9][sum(at >= end for end in ends) - 1]


def test_missing_and_repeated_blocks_and_more_after_the_end_are_found(journal: str, window: None) -> None:
    (path,) = write(journal, [[message(number, b"k", b"%d" % number * 100)] for number in range(1, 9)])
    data = Path(path).read_bytes()
    third = bytes(block([message(3, b"k", b"3" * 100)]))
    at = data.index(third)
    for spoilt, position, skipped in (
        (data.replace(third, b""), at, Skipped(at, 0, 1, "rows 3 to 3 are missing")),
        (data.replace(third, third * 2), at + len(third), Skipped(at + len(third), len(third), 0, "rows come twice")),
        (data + b"more", len(data), Skipped(len(data), 4, 0, "bytes after the end mark")),
    ):
        Path(path).write_bytes(spoilt)
        with pytest.raises(CorruptJournalError, match=skipped.reason) as caught:
            records_of(journal)
        assert (caught.value.path, caught.value.position) == (path, position)
        read, found = skipped_in(journal)
        assert [one.sequence for one in read] == [n for n in range(1, 9) if n != 3 or not skipped.rows]
        assert found == [skipped]


def test_a_segment_under_another_name_is_refused(journal: str) -> None:
    (second,) = write(journal, EXAMPLE[1])
    os.rename(second, os.path.join(journal, segment_name(5)))
    with pytest.raises(CorruptJournalError, match=r"name should be 0+4\.sbj"):
        records_of(journal)


def test_a_payload_is_never_taken_for_a_block() -> None:
    """An attacker publishes a payload that would be a block under the salt that the attacker guesses."""
    forged = block([message(2, b"admin/pay", b"forged"), message(3, b"admin/pay", b"forged")], salt=0)
    after = block([message(2, b"a", b"b")]) + encode_end(SALT, 3)
    for n in range(8):
        data = block([message(1, b"k", b"v" * n + bytes(forged))])
        data[4] ^= 1  # so that a reader looks for the next block
        skipped, found, _ = read_blocks(data + after, "skip")
        assert skipped == Skipped(0, len(data), 1, "the header of a block is damaged")
        assert isinstance(found, Block)
        assert [record.payload for record in found.records()] == [b"b"]
