"""Which of the recorded rows are wanted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.errors import UsageError
from sbuslib.lake.rows import Filter, nanoseconds
from sbuslib.matcher import matches


@given(st.lists(st.sampled_from([b"a", b"ab", b"a/b", b"*", b"a/*", b"a*", b"\xff", b"\xff\xff/x"]), max_size=3))
def test_the_range_of_keys_leaves_out_no_wanted_key(parts: list[bytes]) -> None:
    pattern = b"/".join(parts)
    low, high = Filter(pattern=pattern).key_range()
    for key in (b"a", b"ab", b"a/b", b"a/c/d", b"b", b"*", b"\xff", b"\xff\xff/x", b"\xff\xff/xy", pattern):
        if matches(pattern, key):
            assert key >= low
            assert high is None or key < high


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


def test_a_time_that_is_none_is_refused() -> None:
    assert nanoseconds("start", None) is None
    with pytest.raises(UsageError, match="end is a time such as"):
        nanoseconds("end", "noon")
