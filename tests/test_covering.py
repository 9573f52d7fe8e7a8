"""Which pattern covers which, proven against brute force."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from sbuslib.covering import covers, narrow, overlap
from sbuslib.matcher import matches

ALPHABET = (b"*", b"/", b"a", b"b")


def texts(longest: int, alphabet: tuple[bytes, ...] = ALPHABET) -> list[bytes]:
    return [b"".join(text) for size in range(longest + 1) for text in itertools.product(alphabet, repeat=size)]


def witness(p: bytes, q: bytes, separator: bytes = b"/") -> bytes | None:
    """A key that q matches and p does not, sought where it would have to be: none means that p covers q.

    Every star of q may stand for a run of stars, for something that neither pattern names, and for what p has
    in its place; a pattern that ends in the separator goes on for more segments than either has.
    """
    pieces = [b"", b"x", b"*", b"**", b"***", b"*x", b"**x", b"***x", b"a", b"b", b"ax", b"*a", b"**a", b"a*", b"a*x"]
    segments = q.split(separator)
    below = not segments[-1]
    choices: list[list[bytes]] = []
    for segment in segments[:-1] if below else segments:
        stem = segment.rstrip(b"*")
        choices.append([segment, *(stem + piece for piece in pieces)] if stem != segment else [segment])
    tails = [b""]
    if below:
        tails = [
            separator.join(tail) for size in range(1, 5) for tail in itertools.product([b"", b"x", b"***"], repeat=size)
        ]
    for head in itertools.product(*choices):
        for tail in tails:
            key = separator.join([*head, tail]) if below else separator.join(head)
            if matches(q, key, separator) and not matches(p, key, separator):
                return key
    return None


def test_covers_equals_brute_force_over_small_patterns() -> None:
    patterns = texts(4, (b"*", b"/", b"a"))
    keys = texts(6, (b"*", b"/", b"a")) + texts(5)
    matched = {pattern: frozenset(n for n, key in enumerate(keys) if matches(pattern, key)) for pattern in patterns}
    for p, q in itertools.product(patterns, repeat=2):
        assert covers(p, q) == (matched[q] <= matched[p]), (p, q)


segment = st.text("*ab", max_size=4).map(str.encode)
pattern = st.lists(segment, max_size=4).map(b"/".join)


@settings(max_examples=1_000)
@given(pattern, pattern)
def test_covers_means_that_there_is_no_witness_against_it(p: bytes, q: bytes) -> None:
    assert covers(p, q) == (witness(p, q) is None)


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
    asked = narrow(p, bounds)
    if matches(p, key) and any(matches(bound, key) for bound in bounds):
        assert any(matches(one, key) for one in asked)
    assert all(any(covers(bound, one) for bound in bounds) for one in asked)
    assert narrow(p, None) == [p]
