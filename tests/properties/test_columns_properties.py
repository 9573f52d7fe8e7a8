"""Columns against the lists of messages that they stand for."""

from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sbuslib.wire.batches import Batch
from sbuslib.wire.columns import Columns, lengths
from sbuslib.wire.packets import encode_message

KEYS = st.sampled_from([b"", b"a", b"a/b", b"b" * 30])
PAIRS = st.lists(st.tuples(KEYS, st.binary(max_size=12)), min_size=1, max_size=40)
ALIKE = st.lists(st.tuples(KEYS, st.binary(min_size=3, max_size=3)), min_size=1, max_size=200)
NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 9), min_size=1, max_size=20)


def columns_of(pairs: list[tuple[bytes, bytes]]) -> Columns:
    names = [b"nobody's", *dict.fromkeys(key for key, _ in pairs)]
    numbers = struct.pack(f"<{len(pairs)}i", *(names.index(key) for key, _ in pairs))
    sizes = struct.pack(f"<{len(pairs)}I", *(len(payload) for _, payload in pairs))
    (columns,) = Columns.grouped(names, numbers, sizes, b"".join(payload for _, payload in pairs))
    return columns


def opened(columns: Columns, messages: int, most: int) -> list[bytes]:
    found: list[bytes] = []
    for packet, count in columns.pack(messages, most):
        found += [packet] if count == 1 else Batch.parse(packet).plain
    return found


@given(PAIRS | ALIKE, st.integers(1, 50), st.integers(1, 400), st.data())
def test_nothing_is_lost_or_moved(
    pairs: list[tuple[bytes, bytes]], messages: int, most: int, data: st.DataObject
) -> None:
    columns = columns_of(pairs)
    plain = [encode_message(key, payload) for key, payload in pairs]
    assert columns.packets() == opened(columns, messages, most) == plain
    mask = bytes(data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs))))
    chosen = [packet for packet, wanted in zip(plain, mask, strict=True) if wanted]
    some = columns.select(mask)
    assert some.packets() == opened(some, messages, most) == chosen
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pairs)), max_size=5)))
    parts = [columns.part(start, stop) for start, stop in pairwise([0, *cuts, len(pairs)]) if start < stop]
    joined = Columns.joined(parts)
    assert joined is not None
    assert joined.packets() == opened(joined, messages, most) == plain


@given(NUMBERS | NUMBERS.map(sorted))
def test_lengths_are_differences_or_an_error(offsets: list[int]) -> None:
    expected = [end - start for start, end in pairwise(offsets)]
    try:
        found = lengths(struct.pack(f"<{len(offsets)}i", *offsets))
    except ValueError:
        assert offsets[0] < 0 or min(expected, default=0) < 0
    else:
        assert min(offsets) >= 0
        assert list(struct.unpack(f"<{len(expected)}I", found)) == expected
