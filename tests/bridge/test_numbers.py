"""The numbers of messages against a model: which are repeats, and how many are missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.bridge import numbers
from sbuslib.bridge.engine import Origin
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
def test_without_repeats_by_the_engine_what_is_not_newer_is_a_repeat(came: list[tuple[bytes, str, int]]) -> None:
    """What is taken and what is missing is what was sent, from the first that came to the last."""
    arrivals = Arrivals(keeps=False)
    taken: dict[tuple[bytes, str], list[int]] = {}
    missing = dict.fromkeys([(key, bridge) for key, bridge, _ in came], 0)
    for key, bridge, count in came:
        found = arrivals.note(key, origin(count, bridge))
        if found is not None:
            taken.setdefault((key, bridge), []).append(count)
            missing[key, bridge] += found
    for of, counts in taken.items():
        assert counts == sorted(set(counts))
        assert len(counts) + missing[of] == counts[-1] - counts[0] + 1


@given(st.lists(st.integers(1, 12)))
def test_with_repeats_by_the_engine_each_number_is_taken_once_however_late_it_comes(came: list[int]) -> None:
    arrivals = Arrivals(keeps=True)
    taken: list[int] = []
    missing = 0
    for count in came:
        found = arrivals.note(b"k", origin(count))
        assert (found is None) is (count in taken)
        if found is not None:
            taken.append(count)
            missing += found
    if taken:
        first = taken[0]
        assert missing == len(set(range(first, max(taken) + 1)) - set(taken))


def test_a_repeat_is_known_by_its_number_when_too_much_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_KEYS", 4)
    arrivals = Arrivals(keeps=True)
    assert [arrivals.note(b"k", origin(count)) for count in range(1, 20)] == [0] * 19
    assert [arrivals.note(b"k", origin(count)) for count in range(1, 20)] == [None] * 19
    assert [arrivals.note(b"k", origin(count)) for count in (22, 20, 21, 23, 24, 25, 26, 20)] == [
        2, -1, -1, 0, 0, 0, 0, None,
    ]  # fmt: skip


def test_what_was_missing_before_a_change_is_no_gap_after_it() -> None:
    arrivals = Arrivals(keeps=False)
    assert arrivals.note(b"k", origin(1)) == 0
    arrivals.forget()
    assert arrivals.note(b"k", origin(9)) == 0
    assert arrivals.note(b"k", origin(11)) == 1


def test_a_bounded_number_of_keys_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_KEYS", 4)
    arrivals = Arrivals(keeps=True)
    for number in range(100):
        assert arrivals.note(b"%d" % number, origin(1)) == 0
    assert max(len(arrivals._seen), len(arrivals._newest)) <= 4
