"""Remembered headers in groups: what a pattern matches is always among its candidates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbuslib.core.header_groups import HeaderGroups
from sbuslib.matcher import cut, matches
from sbuslib.wire.packets import message_header

TEXTS = st.lists(st.sampled_from([b"/", b"*", b"a", b"b"]), max_size=7).map(b"".join)


def candidates(groups: HeaderGroups, pattern: bytes) -> list[bytes]:
    found = groups.candidates(*cut(pattern), 1_000)
    assert found is not None
    return found


@given(keys=st.lists(TEXTS), gone=st.lists(TEXTS), patterns=st.lists(TEXTS.filter(bool), min_size=1))
def test_headers_that_a_pattern_matches_are_among_its_candidates(
    keys: list[bytes], gone: list[bytes], patterns: list[bytes]
) -> None:
    groups = HeaderGroups()
    for key in keys:
        groups.add(message_header(key))
    for key in gone:
        groups.discard(message_header(key))
    left = set(keys) - set(gone)
    for pattern in patterns:
        found = candidates(groups, pattern)
        assert len(set(found)) == len(found)
        assert {message_header(key) for key in left if matches(pattern, key)} <= set(found)
        assert set(found) <= {message_header(key) for key in left}
    for key in left:
        groups.discard(message_header(key))
    assert not groups._groups


def test_candidates_begin_as_the_pattern_does() -> None:
    groups = HeaderGroups()
    for key in (b"room/1/temp", b"room/1/light", b"room/2/temp", b"room/1", b"hall/1/temp", b"room", b"hall/1"):
        groups.add(message_header(key))
    assert sorted(candidates(groups, b"room/1/x*")) == [b"MSG room/1/light\0", b"MSG room/1/temp\0"]
    assert sorted(candidates(groups, b"*l/1")) == []  # no star in the middle: that is a segment of its own
    assert sorted(candidates(groups, b"hall/1")) == [b"MSG hall/1\0"]
    assert sorted(candidates(groups, b"*/2/")) == [b"MSG room\0", b"MSG room/2/temp\0"]  # one alone is not looked into
    assert candidates(groups, b"room") == [b"MSG room\0"]
    assert candidates(groups, b"yard/") == []
    assert len(candidates(groups, b"*/")) == 7


def test_more_candidates_than_wanted_are_none() -> None:
    groups = HeaderGroups()
    for number in range(5):
        groups.add(b"MSG room/%d\0" % number)
    assert groups.candidates([b"room"], True, 5) is not None
    assert groups.candidates([b"room"], True, 4) is None
    assert groups.candidates([b"hall"], True, 4) == []
