"""Selections of rows: by time, and by the range of keys that a pattern may match."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.errors import UsageError
from sbuslib.journal.read.selection import Selection, nanoseconds
from sbuslib.matcher import matches

PARTS = [b"a", b"ab", b"a/b", b"*", b"a/*", b"a*", b"\xff", b"\xff\xff/x"]

PATTERNS = st.lists(st.sampled_from(PARTS), max_size=3).map(b"/".join)


@given(st.lists(PATTERNS, min_size=1, max_size=3))
def test_the_range_of_keys_leaves_out_no_wanted_key(patterns: list[bytes]) -> None:
    wanted = Selection(patterns=tuple(patterns))
    low, high = wanted.key_range()
    for key in (b"a", b"ab", b"a/b", b"a/c/d", b"b", b"*", b"\xff", b"\xff\xff/x", b"\xff\xff/xy", *patterns):
        is_wanted = any(matches(pattern, key) for pattern in patterns)
        assert wanted.wants(key, b"/") is is_wanted
        if is_wanted:
            assert key >= low
            assert high is None or key < high


def test_times_are_from_the_start_to_before_the_end() -> None:
    wanted = Selection(start_ns=10, end_ns=20)
    assert [time for time in range(30) if wanted.has(time)] == [*range(10, 20)]
    assert [start for start in range(30) if wanted.overlaps(start, start + 5)] == [*range(6, 20)]
    assert [start for start in range(30) if wanted.covers(start, start + 5)] == [*range(10, 16)]


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2001, 9, 9, 1, 46, 40),
        datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC),
        datetime(2001, 9, 9, 3, 46, 40, tzinfo=timezone(timedelta(hours=2))),
        "2001-09-09T03:46:40+02:00",
        str(10**18),
        10**18,
    ],
)
def test_a_time_is_in_utc_unless_it_says(moment: datetime | str | int) -> None:
    assert nanoseconds("start", moment) == 10**18


def test_a_time_may_be_before_1970_or_none_but_not_another_text() -> None:
    assert (nanoseconds("start", "1969-12-31T23:59:59"), nanoseconds("start", None)) == (-1_000_000_000, None)
    for text in ("noon", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}"):
        with pytest.raises(UsageError, match="end is a time such as"):
            nanoseconds("end", text)
