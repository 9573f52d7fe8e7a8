"""Names, headers and blocks of segments, and the lock of their directory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segments.journals import EXAMPLE, SALT, SENDER, block, gap, write
from support import python

from sbuslib.errors import CorruptJournalError, JournalInUseError
from sbuslib.segments.decoding import decode_block
from sbuslib.segments.directory import DirectoryLock, durable_sequence, is_recorded
from sbuslib.segments.layout import (
    SEGMENT_HEADER_BYTES,
    Block,
    Record,
    SegmentHeader,
    first_sequence_of,
    segment_name,
)

# -- Names and headers of segments, and blocks whose rows are read back


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


@settings(max_examples=40)
@given(rows, st.integers(1, 2**62), st.integers(-1, 21), st.integers(-1, 21))
def test_messages_are_read_back_all_or_a_part_of_them(
    given: list[tuple[bytes, bytes, tuple[int | None, int | None, int | None]]], first: int, start: int, end: int
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
    part = read.between(first + start, first + end)
    found = list(part.records()) if part is not None else []
    assert found == [one for one in records if first + start <= one.sequence < first + end]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.text(max_size=9), st.none() | st.integers(0, 2**62)), min_size=1, max_size=9))
def test_gaps_are_read_back(given: list[tuple[str, int | None]]) -> None:
    records = [gap(number, cause, lost) for number, (cause, lost) in enumerate(given, 1)]
    read = decode_block(block(records), 0, SALT)
    assert isinstance(read, Block)
    assert list(read.records()) == records


# -- Blocks that are made of columns

SAMPLE = Path(__file__).parent / "sample"


def test_the_sample_is_written_as_it_is_stored(journal: str) -> None:
    """A new version of the format writes other bytes, and gets a sample of its own."""
    for path in write(journal, *EXAMPLE):
        assert Path(path).read_bytes() == (SAMPLE / os.path.basename(path)).read_bytes()


# -- Directories of segments: the lock


def test_the_last_durable_row_stays_known_while_the_next_recorder_starts(folder: str) -> None:
    lock = DirectoryLock(folder)
    assert durable_sequence(folder) == 0
    lock.write_note(b"%020d" % 12)
    lock.close()
    lock = DirectoryLock(folder)
    assert durable_sequence(folder) == 12
    lock.close()


def test_a_directory_has_one_recorder(folder: str) -> None:
    lock = DirectoryLock(folder)
    assert is_recorded(folder)
    for _ in range(2):
        with pytest.raises(JournalInUseError, match=f"already by process {os.getpid()}$"):
            DirectoryLock(folder)
    code = f"""
from sbuslib.segments.directory import DirectoryLock, is_recorded
print(is_recorded({folder!r}))
try:
    DirectoryLock({folder!r})
except Exception as error:
    print(type(error).__name__)
"""
    assert python("-c", code).split() == ["True", "JournalInUseError"]
    lock.close()
    lock.close()
    assert not is_recorded(folder)
    DirectoryLock(folder).close()
    assert (os.stat(os.path.join(folder, "recorder.lock")).st_mode & 0o777) == 0o600


def test_who_asks_whether_a_journal_is_recorded_keeps_no_recorder_from_starting(folder: str) -> None:
    DirectoryLock(folder).close()
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            is_recorded(folder)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(2_000):
            DirectoryLock(folder).close()
    finally:
        ended.set()
        for reader in readers:
            reader.join()
