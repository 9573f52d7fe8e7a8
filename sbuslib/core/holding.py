"""Publishers that one receiver holds back, because it asked for ``block``.

Holding a publisher is nothing more than stopping the watcher of its socket, so it alone waits. A receiver that holds
anybody for longer than :attr:`~sbuslib.limits.Limits.block_timeout` is disconnected as misbehaving.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .protocols import Holdable, Holder

__all__ = ["Holding"]


class Holding:
    """Whom a receiver holds. Made when it first holds somebody: most never do."""

    def __init__(self, receiver: Holder, start_timer: Callable[[], Any], cancel: Callable[[Any], None]) -> None:
        self._receiver = receiver
        self._start_timer = start_timer
        self._cancel = cancel
        self._timer: Any = None
        self.publishers: set[Holdable] = set()

    def hold(self, publisher: Holdable) -> None:
        """Stop reading from a publisher."""
        self.publishers.add(publisher)
        publisher.hold(self._receiver)
        if self._timer is None:
            self._timer = self._start_timer()

    def release(self, may_go: Callable[[Holdable], bool]) -> None:
        """Let those publishers go on of whom ``may_go`` says so."""
        for publisher in [*self.publishers]:
            if may_go(publisher):
                self.forget(publisher)
                publisher.let_go(self._receiver)

    def forget(self, publisher: Holdable) -> None:
        """A publisher that was held has gone."""
        self.publishers.discard(publisher)
        if not self.publishers and self._timer is not None:
            self._cancel(self._timer)
            self._timer = None
