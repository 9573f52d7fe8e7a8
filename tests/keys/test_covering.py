"""Which pattern covers which, proven against brute force."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from sbuslib.keys.covering import covers, narrow, overlap
from sbuslib.matcher import matches

ALPHABET = (b"*", b"/", b"a", b"b")


def texts(longest: int, alphabet: tuple[bytes, ...] = ALPHABET) -> list[bytes]:
    return [b"".join(text) for size in range(longest + 1) for text in itertools.product(alphabet, repeat=size)]


def test_covers_equals_brute_force_over_small_patterns() -> None:
    patterns = texts(4, (b"*", b"/", b"a"))
    keys = texts(6, (b"*", b"/", b"a")) + texts(5)
    matched = {pattern: frozenset(n for n, key in enumerate(keys) if matches(pattern, key)) for pattern in patterns}
    for p, q in itertools.product(patterns, repeat=2):
        assert covers(p, q, b"/") == (matched[q] <= matched[p]), (p, q)


segment = st.text("*ab", max_size=4).map(str.encode)
pattern = st.lists(segment, max_size=4).map(b"/".join)


@settings(max_examples=300)
@given(
    st.binary(max_size=6), st.binary(max_size=6), st.binary(max_size=8), st.sampled_from([b"/", b".", b"\xff", b"\1"])
)
def test_covers_is_sound_for_all_bytes(p: bytes, q: bytes, key: bytes, separator: bytes) -> None:
    if covers(p, q, separator) and matches(q, key, separator):
        assert matches(p, key, separator)
    if matches(p, key, separator) and matches(q, key, separator):
        assert overlap(p, q, separator)
    assert covers(p, p, separator)
    assert covers(b"", p, separator)


@settings(max_examples=300)
@given(pattern, st.lists(pattern, max_size=3), pattern)
def test_narrowed_patterns_ask_for_enough_and_for_nothing_outside(p: bytes, bounds: list[bytes], key: bytes) -> None:
    asked = narrow(p, bounds, b"/")
    if matches(p, key) and any(matches(bound, key) for bound in bounds):
        assert any(matches(one, key) for one in asked)
    assert all(any(covers(bound, one, b"/") for bound in bounds) for one in asked)
    assert narrow(p, None, b"/") == [p]
