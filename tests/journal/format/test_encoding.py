"""Blocks whose rows are read back as they were written."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from journal.format.journals import EXAMPLE, SALT, SENDER, block, gap, write

from sbuslib.journal.format.decoding import decode_block
from sbuslib.journal.format.layout import (
    Block,
    Record,
)

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


SAMPLE = Path(__file__).parent / "sample"


def test_the_sample_is_written_as_it_is_stored(journal: str) -> None:
    """A new version of the format writes other bytes, and gets a sample of its own."""
    for path in write(journal, *EXAMPLE):
        assert Path(path).read_bytes() == (SAMPLE / os.path.basename(path)).read_bytes()
