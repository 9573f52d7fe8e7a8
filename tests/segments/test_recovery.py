"""The end of a journal is repaired after a crash."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from segments.journals import EXAMPLE, records_of, write

from sbuslib.errors import CorruptJournalError
from sbuslib.segments.layout import SEGMENT_HEADER_BYTES
from sbuslib.segments.recovery import recover

ROWS = [record for blocks in EXAMPLE for rows in blocks for record in rows]
IDENTITY = "0123456789abcdef"
END_BYTES = 32
"""Of an end mark."""


def test_a_journal_that_was_closed_is_left_as_it_is(journal: str) -> None:
    paths = write(journal, *EXAMPLE)
    before = [Path(path).read_bytes() for path in paths]
    assert recover(journal) == (IDENTITY, 10)
    assert [Path(path).read_bytes() for path in paths] == before


def test_an_empty_directory_gets_an_identity(folder: str) -> None:
    identity, first = recover(folder)
    assert (len(identity), first) == (16, 1)
    assert recover(folder)[0] != identity


@pytest.mark.parametrize("torn", [0, 1, 23, 24, 100])
def test_what_follows_the_last_whole_block_is_cut_off(
    journal: str, torn: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(write(journal, *EXAMPLE)[-1])
    data = path.read_bytes()
    path.write_bytes(data[:-END_BYTES] + data[SEGMENT_HEADER_BYTES : SEGMENT_HEADER_BYTES + torn])
    with caplog.at_level(logging.WARNING, "sbuslib"):
        assert recover(journal) == (IDENTITY, 10)
    assert (f"cut {torn} bytes at {len(data) - END_BYTES}" in caplog.text) is (torn > 0)
    assert path.read_bytes() == data


@pytest.mark.parametrize("size", [0, 50, SEGMENT_HEADER_BYTES])
def test_a_segment_without_rows_is_removed(journal: str, size: int) -> None:
    path = Path(write(journal, *EXAMPLE)[-1])
    path.write_bytes(path.read_bytes()[:size])
    assert recover(journal) == (IDENTITY, 4)
    assert not path.exists()
    assert records_of(journal) == ROWS[:3]


def test_a_segment_of_zeros_is_removed(journal: str) -> None:
    path = Path(write(journal, *EXAMPLE)[-1])
    path.write_bytes(bytes(path.stat().st_size))
    assert recover(journal) == (IDENTITY, 4)
    assert len(os.listdir(journal)) == 1


def test_damage_before_the_end_is_left_as_it_is(journal: str, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(write(journal, *EXAMPLE)[-1])
    data = bytearray(path.read_bytes()[:-END_BYTES])
    data[SEGMENT_HEADER_BYTES + 18] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "sbuslib"):
        assert recover(journal) == (IDENTITY, 10)
    assert f"damaged bytes at {SEGMENT_HEADER_BYTES}" in caplog.text
    assert path.read_bytes()[:-END_BYTES] == data


def test_a_damaged_header_of_the_last_segment_is_an_error(journal: str) -> None:
    path = Path(write(journal, *EXAMPLE)[-1])
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptJournalError, match=str(path)):
        recover(journal)
    assert path.read_bytes() == data
