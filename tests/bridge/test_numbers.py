"""The numbers of messages against a model: which are repeats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.bridge import numbers
from sbuslib.bridge.broker import Origin
from sbuslib.bridge.numbers import Arrivals, Numbers


def origin(count: int, bridge: str = "b") -> Origin:
    return Origin(bridge, count, "bus", b"host/1/2")


def test_each_key_is_counted_from_one_and_a_long_key_is_a_key_of_its_own() -> None:
    made = Numbers("b")
    long = b"k" * 10_000
    assert [made.next(key) for key in (b"a", b"b", b"a", long, long + b"x", long)] == [
        ("b.0", 1), ("b.0", 1), ("b.0", 2), ("b.0", 1), ("b.0", 1), ("b.0", 2),
    ]  # fmt: skip


def test_with_too_many_keys_counting_starts_anew_as_another_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_KEYS", 2)
    made = Numbers("b")
    assert [made.next(key) for key in (b"a", b"b", b"a", b"c", b"a")] == [
        ("b.0", 1), ("b.0", 1), ("b.0", 2), ("b.1", 1), ("b.1", 1),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from(["x", "y"]), st.integers(1, 12))))
def test_without_repeats_by_the_broker_what_is_not_newer_is_a_repeat(came: list[tuple[bytes, str, int]]) -> None:
    arrivals = Arrivals(keeps=False)
    last: dict[tuple[bytes, str], int] = {}
    for key, bridge, count in came:
        assert arrivals.is_new(key, origin(count, bridge)) is (count > last.get((key, bridge), 0))
        last[key, bridge] = max(count, last.get((key, bridge), 0))


@given(st.lists(st.integers(1, 12)))
def test_with_repeats_by_the_broker_each_number_is_taken_once_however_late_it_comes(came: list[int]) -> None:
    arrivals = Arrivals(keeps=True)
    taken: set[int] = set()
    for count in came:
        assert arrivals.is_new(b"k", origin(count)) is (count not in taken)
        taken.add(count)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_bounded_number_of_keys_is_remembered(monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    monkeypatch.setattr(numbers, "_KEYS", 4)
    arrivals = Arrivals(keeps)
    for number in range(100):
        assert arrivals.is_new(b"%d" % number, origin(1))
    assert max(len(arrivals._last), len(arrivals._newest)) <= 4
