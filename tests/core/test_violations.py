"""Misbehaviour, told once."""

from __future__ import annotations

from sbuslib.core.violations import Violations


def test_the_first_of_each_reason_and_user() -> None:
    breaches = Violations(10)
    assert breaches.note("empty packet", 1000) is True
    assert breaches.note("empty packet", 1000) is False
    assert breaches.note("empty packet", 1001) is True
    assert breaches.note("unknown verb", 1000) is True
    assert breaches.counts == {"empty packet": 3, "unknown verb": 1}


def test_what_is_remembered_is_bounded() -> None:
    breaches = Violations(3)
    assert [breaches.note("x", uid) for uid in range(5)] == [True, True, True, False, False]
    assert breaches.counts["x"] == 5
