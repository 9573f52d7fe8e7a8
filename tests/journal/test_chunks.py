"""Chunks of messages become the rows and blocks of a journal."""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbuslib.journal.chunks import Chunk, columns_of, parts_of
from sbuslib.wire.batches import coalesce
from sbuslib.wire.columns import Columns
from sbuslib.wire.packets import encode_message

# -- The columns of a block that are made of messages, in any mixture of columns and packets

Pairs = list[tuple[bytes, bytes]]

KEYS = st.sampled_from([b"", b"a", b"a/b", b"c" * 30])

PARCELS = st.lists(
    st.tuples(st.booleans(), st.lists(st.tuples(KEYS, st.binary(max_size=9)), min_size=1, max_size=20)),
    min_size=1,
    max_size=12,
)


def chunk(is_batch: bool, pairs: Pairs) -> Chunk:
    packets = [encode_message(key, payload) for key, payload in pairs]
    batch = coalesce(packets) if is_batch else None
    return Chunk(1, b"me", None, None, None, Columns(*batch.columns) if batch is not None else packets)


def pairs_of(chunks: list[Chunk]) -> Pairs:
    names, keys, sizes, payloads = columns_of(chunks)
    assert len(set(names)) == len(names)
    rows = len(sizes) // 4
    joined = b"".join(payloads)
    ends = accumulate(struct.unpack(f"<{rows}i", sizes), initial=0)
    found = [joined[start:end] for start, end in pairwise(ends)]
    assert sum(map(len, found)) == len(joined)
    return list(zip([names[number] for number in struct.unpack(f"<{rows}i", keys)], found, strict=True))


@settings(max_examples=40)
@given(PARCELS)
def test_any_mixture_of_chunks_becomes_the_same_rows(given_chunks: list[tuple[bool, Pairs]]) -> None:
    chunks = [chunk(is_batch, pairs) for is_batch, pairs in given_chunks]
    expected = [pair for _, pairs in given_chunks for pair in pairs]
    assert pairs_of(chunks) == expected
    assert [packet for part in parts_of(chunks) for packet in part.packets()] == [
        encode_message(key, payload) for key, payload in expected
    ]


@pytest.mark.parametrize("kinds", [255, 256, 257])
@pytest.mark.parametrize("bundled", [(True,), (False, False, True)])
def test_chunks_of_many_keys_become_one_block(kinds: int, bundled: tuple[bool, ...]) -> None:
    pairs = [(b"k/%d" % (number * 7 % kinds), b"%d" % number) for number in range(3_000)]
    chunks = [
        chunk(bundled[number % len(bundled)], pairs[start : start + 100])
        for number, start in enumerate(range(0, len(pairs), 100))
    ]
    assert pairs_of(chunks) == pairs
