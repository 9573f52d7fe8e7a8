"""Names and headers of segments, and blocks whose rows are read back."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments.journals import SALT, SENDER, block, gap

from sbuslib.errors import CorruptJournalError
from sbuslib.segments.layout import (
    SEGMENT_HEADER_BYTES,
    Block,
    Record,
    SegmentHeader,
    first_sequence_of,
    segment_name,
)
from sbuslib.segments.reading import decode_block


def test_names_of_segments_are_parsed() -> None:
    assert segment_name(17) == "00000000000000000017.sbj"
    assert first_sequence_of(segment_name(2**62)) == 2**62
    for name in (
        segment_name(2**63),
        "\N{ARABIC-INDIC DIGIT ONE}" * 20 + ".sbj",
        "17.sbj",
        "00000000000000000017",
        "recorder.lock",
        "0000000000000000001x.sbj",
        ".sbj",
    ):
        assert first_sequence_of(name) is None


def test_a_header_is_read_back() -> None:
    header = SegmentHeader("0" * 16, "ab" * 8, b".", 5, 6, 7)
    assert len(header.encode()) == SEGMENT_HEADER_BYTES
    assert SegmentHeader.decode(header.encode()) == header
    long = header._replace(hub="x" * 100)
    assert SegmentHeader.decode(long.encode()).hub == "x" * 32


def test_a_later_version_is_refused() -> None:
    data = bytearray(SegmentHeader("0" * 16, "", b"/", 5, 6, 7).encode())
    data[8] = 2
    data[12:16] = bytes(4)
    data[12:16] = crc32(data).to_bytes(4, "little")
    with pytest.raises(CorruptJournalError, match="version 2"):
        SegmentHeader.decode(data)


@pytest.mark.parametrize(
    "header",
    [
        SegmentHeader("0" * 16, "", b"/", -1, 6, 7),
        SegmentHeader("0" * 16, "", b"/", 5, -6, 7),
        SegmentHeader("0" * 16, "", b"/", 5, 2**63 - 1, 7),
        SegmentHeader("short", "", b"/", 5, 6, 7),
        SegmentHeader("\xff" * 8, "", b"/", 5, 6, 7),
        SegmentHeader("0" * 16, "", b"\0", 5, 6, 7),
        SegmentHeader("0" * 16, "", b"7", 5, 6, 7),
    ],
)
def test_an_impossible_header_is_refused(header: SegmentHeader) -> None:
    with pytest.raises(CorruptJournalError):
        SegmentHeader.decode(header.encode())


rows = st.lists(
    st.tuples(
        st.binary(max_size=12),
        st.binary(max_size=40),
        st.tuples(*[st.none() | st.integers(0, 2**32)] * 3),
    ),
    min_size=1,
    max_size=20,
)


@given(rows, st.integers(1, 2**62))
def test_messages_are_read_back(
    given: list[tuple[bytes, bytes, tuple[int | None, int | None, int | None]]], first: int
) -> None:
    records = [
        Record(number, first + number, "message", key, payload, SENDER, gid, uid, pid)
        for number, (key, payload, (gid, uid, pid)) in enumerate(given)
    ]
    data = block(records)
    assert len(data) % 8 == 0
    read = decode_block(data, 0, SALT)
    assert isinstance(read, Block)
    assert list(read.records()) == records
    assert (read.end, read.next_sequence) == (len(data), first + len(records))


@given(st.lists(st.tuples(st.text(max_size=9), st.none() | st.integers(0, 2**62)), min_size=1, max_size=9))
def test_gaps_are_read_back(given: list[tuple[str, int | None]]) -> None:
    records = [gap(number, cause, lost) for number, (cause, lost) in enumerate(given, 1)]
    read = decode_block(block(records), 0, SALT)
    assert isinstance(read, Block)
    assert list(read.records()) == records


@given(rows, st.integers(0, 22), st.integers(0, 22))
def test_a_part_of_a_block_has_its_rows(
    given: list[tuple[bytes, bytes, tuple[int | None, int | None, int | None]]], first: int, before: int
) -> None:
    records = [
        Record(number, number, "message", key, payload, SENDER, gid, uid, pid)
        for number, (key, payload, (gid, uid, pid)) in enumerate(given, 1)
    ]
    read = decode_block(block(records), 0, SALT)
    assert isinstance(read, Block)
    part = read.between(first, before)
    found = list(part.records()) if part is not None else []
    assert found == [one for one in records if first <= one.sequence < before]
