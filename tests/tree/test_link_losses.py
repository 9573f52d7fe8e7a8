"""Messages that one link lost, counted and reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from worlds import FAST

from sbuslib.tree.link_losses import LinkLosses

SOON = msgspec.structs.replace(FAST, link_notices=0.01)


def test_losses_are_told_once_and_in_a_while() -> None:
    calls: list[Callable[[], None]] = []
    told: list[tuple[str, int, float]] = []

    class Later:
        limits = SOON

        @property
        def running(self) -> Later:
            return self

        def after(self, seconds: float, function: Callable[[], None]) -> None:
            assert seconds == SOON.link_notices
            calls.append(function)

    later: Any = Later()
    losses = LinkLosses(later, lambda lost: told.append((lost.cause, lost.count, lost.since)))
    losses.note("upstream", 1, 5.0)
    losses.note("upstream", 1, 6.0)
    losses.add("uncertain", 0, 7.0)
    losses.add("uncertain", 5, 8.0)
    assert (losses.lost, losses.uncertain, losses.certain_unreported, len(calls), told) == (
        {"upstream": 2},
        5,
        2,
        1,
        [],
    )
    calls[0]()
    assert told == [("upstream", 2, 5.0), ("uncertain", 5, 8.0)]
    assert losses.certain_unreported == 0
    losses.report()
    losses.note("another", 1, 9.0)
    assert (losses.total.total(), losses.certain_unreported, len(calls), len(told)) == (8, 1, 2, 2)
