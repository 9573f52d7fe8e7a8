"""Blocks that are made of columns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from segments.journals import EXAMPLE, SALT, block, message, write

from sbuslib.segments.encoding import encode_block, widened
from sbuslib.segments.layout import (
    Block,
    pack,
)
from sbuslib.segments.reading import decode_block

SAMPLE = Path(__file__).parent / "sample"


def test_the_sample_is_written_as_it_is_stored(journal: str) -> None:
    """A new version of the format writes other bytes, and gets a sample of its own."""
    for path in write(journal, *EXAMPLE):
        assert Path(path).read_bytes() == (SAMPLE / os.path.basename(path)).read_bytes()


@pytest.mark.parametrize("count", [1, 255, 256, 257, 5000])
def test_blocks_of_any_length_are_read_back(count: int) -> None:
    records = [message(number, b"k", b"same") for number in range(1, count + 1)]
    read = decode_block(block(records), 0, SALT)
    assert isinstance(read, Block)
    assert list(read.records()) == records


def test_payloads_may_lie_together() -> None:
    ids = pack("q", [5, 5])
    numbers = pack("i", [0, 0])
    apart = encode_block(SALT, 1, ids, ids, ids, ids, numbers, numbers, [b"k"], [b"one", b"four"])
    together = encode_block(SALT, 1, ids, ids, ids, ids, numbers, numbers, [b"k"], [b"onefour"], pack("i", [3, 4]))
    assert apart == together


def test_numbers_of_one_byte_are_widened() -> None:
    assert widened(bytes([0, 7, 255])) == pack("i", [0, 7, 255])
