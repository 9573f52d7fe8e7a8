"""What the hub above wants, and how much of it is kept apart."""

from __future__ import annotations

import pytest

from sbuslib.core.quotas import Quotas
from sbuslib.core.router import Router
from sbuslib.limits import Limits
from sbuslib.tree.demand import Demand


def new_demand(**numbers: int) -> tuple[Demand, list[tuple[bytes, bool]]]:
    limits = Limits(**numbers)
    told: list[tuple[bytes, bool]] = []
    router: Router[str] = Router(limits, Quotas(limits, 100))
    return Demand(router, limits, None, lambda pattern, wanted: told.append((pattern, wanted))), told


def test_an_announced_pattern_is_wanted_until_it_is_removed() -> None:
    demand, told = new_demand()
    demand.announce(b"*/a")
    demand.announce(b"*/a")
    assert demand.wants(b"1/a")
    assert not demand.wants(b"1/b")
    demand.take_back(b"*/a")
    assert not demand.wants(b"1/a")
    assert told == [(b"*/a", True), (b"*/a", False)]
    assert demand._shapes.steps == 0


@pytest.mark.parametrize("pattern", [b"**/a", b"x" * 21, b"a/b/c/d"])
def test_a_pattern_beyond_the_limits_of_a_user_counts_as_the_empty_pattern(pattern: bytes) -> None:
    demand, told = new_demand(user_pattern_steps=3, pattern_bytes=20, pattern_segments=3)
    demand.announce(b"*/a")
    demand.announce(pattern)
    assert demand.wants(b"anything")
    assert told == [(b"*/a", True), (b"", True)]
    assert len(demand) == 1


def test_the_bytes_of_announced_patterns_are_bounded() -> None:
    demand, told = new_demand(user_pattern_bytes=20)
    for _ in range(5):
        demand.announce(b"x" * 15)
        demand.take_back(b"x" * 15)
    demand.take_back(b"never announced, so that nothing is taken off")
    demand.announce(b"y" * 15)
    assert not demand.wants(b"anything")
    demand.announce(b"z" * 6)
    assert demand.wants(b"anything")
    assert told[-1] == (b"", True)
