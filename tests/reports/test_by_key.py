"""What is told by key: levels, patterns, and which patterns cover others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports.rows import gap, in_memory, message
from support import vectors

from sbuslib.covering import covers
from sbuslib.errors import UsageError
from sbuslib.matcher import matches
from sbuslib.reports.by_key import KeyCount, _witness, by_key, by_level, by_pattern, coverage


def counts(*keys: bytes) -> list[KeyCount]:
    """One message of two bytes under each key."""
    return [KeyCount(key, 1, 2, 2) for key in keys]


def test_rows_are_counted_by_key() -> None:
    rows = [message(b"a\xff", b"123"), message(b"b"), message(b"a\xff", b"12345"), gap(3, "overflow"), message(b"")]
    with in_memory(rows) as recorded:
        assert sorted(by_key(recorded)) == [(b"", 1, 0, 0), (b"a\xff", 2, 8, 5), (b"b", 1, 0, 0)]


def test_levels_are_bytes_up_to_a_separator() -> None:
    keys = [b"a/b/c", b"a/b", b"a/\xff\xfe/d", b"a", b"", b"/x", b"$1/*/'\\"]
    found = {(level, prefix): keys for level, prefix, _, _, keys, _ in by_level(counts(*keys), 2)}
    assert found == {
        (1, b"a/"): 3,
        (1, b"a"): 1,
        (1, b""): 1,
        (1, b"/"): 1,
        (1, b"$1/"): 1,
        (2, b"a/b/"): 1,
        (2, b"a/b"): 1,
        (2, b"a/\xff\xfe/"): 1,
        (2, b"/x"): 1,
        (2, b"$1/*/"): 1,
    }


def test_levels_come_busiest_first_with_another_separator() -> None:
    rows = [KeyCount(b"b.x", 1, 1, 1), KeyCount(b"a.x", 1, 1, 1), KeyCount(b"b.y", 1, 3, 3)]
    assert by_level(rows, 1, b".") == [(1, b"b.", 2, 4, 2, 3), (1, b"a.", 1, 1, 1, 1)]
    with pytest.raises(UsageError, match="levels"):
        by_level(rows, 0)
    with pytest.raises(UsageError, match="separator"):
        by_level(rows, 1, b"7")


def test_matches_are_those_of_the_matcher() -> None:
    """For the keys and patterns of the protocol's vectors, all at once."""
    cases = [case for case in vectors() if not case[2].startswith(b"!/")]
    patterns, keys = sorted({pattern for _, pattern, _ in cases})[::5], {key for _, _, key in cases}
    assert len(patterns) * len(keys) > 3_000
    for pattern, messages, size, distinct in by_pattern(counts(*keys), patterns):
        assert messages == distinct == size // 2 == sum(matches(pattern, key) for key in keys), pattern


def test_every_pattern_has_a_row_the_busiest_first() -> None:
    keys = [KeyCount(b"room/1/temp", 2, 5, 4), KeyCount(b"room/2/temp", 1, 0, 0), KeyCount(b"x", 1, 0, 0)]
    patterns = [b"room/*/temp", b"", b"room/1/", b"nothing/here", b"\xff"]
    assert by_pattern(keys, patterns) == [
        (b"", 4, 5, 3),
        (b"room/*/temp", 3, 5, 2),
        (b"room/1/", 2, 5, 1),
        (b"nothing/here", 0, 0, 0),
        (b"\xff", 0, 0, 0),
    ]
    assert by_pattern([], [b"b/", b"a"]) == [(b"a", 0, 0, 0), (b"b/", 0, 0, 0)]


def test_secret_keys_match_nothing() -> None:
    assert by_pattern(counts(b"!/cred/1/2/3/x", b"!x"), [b"", b"!/"]) == [(b"", 1, 2, 1), (b"!/", 0, 0, 0)]
    assert by_pattern(counts(b"!.cred.1", b"!/x"), [b""], b".") == [(b"", 1, 2, 1)]


def test_coverage_agrees_with_covers() -> None:
    patterns = sorted({pattern for _, pattern, _ in vectors()})[::8]
    assert len(patterns) > 100
    found = coverage([b"", *patterns])
    for narrow in patterns:
        assert found[narrow] == [wide for wide in patterns if wide and wide != narrow and covers(wide, narrow)]
    assert any(found.values())


def test_the_empty_pattern_does_not_mark_all_others_as_covered() -> None:
    assert coverage([b"", b"a/b", b"a/"]) == {b"": [], b"a/b": [b"a/"], b"a/": []}


@given(st.lists(st.sampled_from(b"a*/"), max_size=9).map(bytes))
def test_a_witness_is_a_key_that_the_pattern_matches(pattern: bytes) -> None:
    assert matches(pattern, _witness(pattern, b"/"))
