"""The numbers of messages against a model: which are repeats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.bridge import numbers
from sbuslib.bridge.broker import Origin
from sbuslib.bridge.numbers import Arrivals, Numbers


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


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from(["x", "y"]), st.integers(1, 9))))
def test_each_number_is_taken_once_however_late_it_comes(came: list[tuple[bytes, str, int]]) -> None:
    arrivals = Arrivals()
    taken: set[tuple[bytes, str, int]] = set()
    for key, bridge, count in came:
        assert arrivals.is_new(key, Origin(bridge, count, "bus", b"host/1/2")) is ((key, bridge, count) not in taken)
        taken.add((key, bridge, count))


def test_a_bounded_number_of_messages_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_KEYS", 4)
    arrivals = Arrivals()
    for number in range(100):
        assert arrivals.is_new(b"%d" % number, Origin("b", 1, "bus", b"host/1/2"))
    assert len(arrivals._newest) <= 4
