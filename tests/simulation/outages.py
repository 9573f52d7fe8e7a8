"""Times at which hubs were away: killed and not back, or stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import inf
from typing import Final

RECOVERY: Final = 60.0
"""Seconds after an outage of a hub within which its tree is as if there had been none."""


class Outages:
    """The outages of all hubs."""

    def __init__(self) -> None:
        self._of: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)  # from when to when, by hub
        self._open: dict[str, float] = {}  # since when, by hub that is away
        self._kills: defaultdict[str, list[float]] = defaultdict(list)  # when, by hub

    def begin(self, hub: str, now: float, is_kill: bool) -> None:
        self._open.setdefault(hub, now)
        if is_kill:
            self._kills[hub].append(now)

    def end(self, hub: str, now: float) -> None:
        """A hub is back, or begins."""
        self._of[hub].append((self._open.pop(hub, now), now))

    def _between(self, hubs: Iterable[str], begin: float, end: float, after: float) -> list[tuple[float, float]]:
        """The outages that these hubs had, or had ended less than ``after`` seconds before."""
        found = [outage for hub in hubs for outage in self._of[hub]]
        found += [(self._open[hub], inf) for hub in hubs if hub in self._open]
        return [(since, until) for since, until in found if since <= end and until + after >= begin]

    def is_calm(self, hubs: Iterable[str], begin: float, end: float) -> bool:
        """Whether these hubs were up and quiet all the time."""
        return not self._between(hubs, begin, end, RECOVERY)

    def any_longer(self, hubs: Iterable[str], seconds: float, begin: float, end: float) -> bool:
        """Whether one of these hubs was away for so long."""
        return any(until - since > seconds for since, until in self._between(hubs, begin, end, 0.0))

    def is_away(self, hub: str, begin: float, end: float) -> bool:
        """Whether a hub was away at any time between these."""
        return bool(self._between([hub], begin, end, 0.0))

    def was_killed(self, hub: str, since: float) -> bool:
        """Whether a hub was killed at that time or later."""
        return any(at >= since for at in self._kills[hub])

    @property
    def none_but_beginnings(self) -> bool:
        """Whether each hub began, and then was always there."""
        return not self._open and all(len(of_one) == 1 for of_one in self._of.values())
