"""Misbehaviour, told once."""

from __future__ import annotations

from sbuslib.core.violations import Violations


def test_the_first_of_each_reason_and_user() -> None:
    violations = Violations(10)
    assert violations.note("empty packet", 1000) is True
    assert violations.note("empty packet", 1000) is False
    assert violations.note("empty packet", 1001) is True
    assert violations.note("unknown verb", 1000) is True
    assert violations.counts == {"empty packet": 3, "unknown verb": 1}


def test_remembered_violations_are_bounded() -> None:
    violations = Violations(3)
    assert [violations.note("x", uid) for uid in range(5)] == [True, True, True, False, False]
    assert violations.counts["x"] == 5
