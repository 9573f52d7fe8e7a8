"""Which nodes of an index a look-up visits: for tests of what it may cost, in steps and not in seconds."""

from __future__ import annotations

from typing import Any

from sbuslib.matcher import Subscriptions, _Node


def count_visits(index: Subscriptions[Any]) -> set[int]:
    """A set to which the number of each node is added that is visited from now on. The index must be empty as yet."""
    visited: set[int] = set()

    class Counted(_Node[Any]):
        """A node that notes when somebody looks whose pattern ends in it, which each visit does."""

        __slots__ = ("_below", "_here")

        @property
        def below(self) -> dict[Any, None] | None:
            visited.add(id(self))
            return self._below

        @below.setter
        def below(self, subscribers: dict[Any, None] | None) -> None:
            self._below = subscribers

        @property
        def here(self) -> dict[Any, None] | None:
            visited.add(id(self))
            return self._here

        @here.setter
        def here(self, subscribers: dict[Any, None] | None) -> None:
            self._here = subscribers

    assert not index._root.children
    index._root = Counted()
    return visited
