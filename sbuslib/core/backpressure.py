"""Backpressure: publishers that one receiver has paused, because it asked for ``block``.

Pausing a publisher is nothing more than stopping the watcher of its socket, so it alone waits. A receiver that
holds any publisher for longer than :attr:`~sbuslib.limits.Limits.block_timeout` is disconnected as misbehaving.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from .context import Context
from .protocols import Pausable, Pauser


class Backpressure:
    """The publishers that a receiver holds. Made when it first holds one: most receivers never do.

    :param on_timeout: called when one of them has been held for too long.
    """

    def __init__(self, receiver: Pauser, context: Context, on_timeout: Callable[[], None]) -> None:
        self._receiver = receiver
        self._context = context
        self._on_timeout = on_timeout
        self._timer: Any = None  # while any is held
        self.publishers: dict[Pausable, float] = {}
        """Each publisher, and since when it is held; the one that is held for longest comes first."""

    def pause(self, publisher: Pausable, since: float | None = None) -> None:
        """Hold a publisher, as from now on, or as since a time of the monotonic clock."""
        now = monotonic()
        since = self.publishers.setdefault(publisher, now if since is None else since)
        publisher.pause(self._receiver)
        if self._timer is None:
            self._timer = self._context.running.after(
                max(0.0, since + self._context.limits.block_timeout - now), self._on_time
            )

    def _on_time(self) -> None:
        # The publisher for which the timer was started may have been released meanwhile.
        since = next(iter(self.publishers.values()))
        left = since + self._context.limits.block_timeout - monotonic()
        if left > 0:
            self._timer = self._context.running.after(left, self._on_time)
        else:
            self._on_timeout()

    def resume(self, may_go: Callable[[Pausable], bool]) -> None:
        """Read again from the publishers for which ``may_go`` returns true."""
        for publisher in [*self.publishers]:
            if may_go(publisher):
                self.forget(publisher)
                publisher.resume(self._receiver)

    def forget(self, publisher: Pausable) -> None:
        self.publishers.pop(publisher, None)
        if not self.publishers and self._timer is not None:
            self._context.running.cancel(self._timer)
            self._timer = None
