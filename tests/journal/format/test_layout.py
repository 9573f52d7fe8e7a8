"""Names and headers of segments."""

from __future__ import annotations

from zlib import crc32

import pytest

from sbuslib.errors import CorruptJournalError
from sbuslib.journal.format.layout import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    first_sequence_of,
    segment_name,
)


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
