"""Memory given back to the system once a flood is over, or many clients have left.

The C library keeps what is freed for what comes next, so a hub in which megabytes waited for a moment would stay that
large for good, and so would one in which a thousand clients came and went. glibc gives it back when asked, by
``malloc_trim(3)``, which takes some milliseconds, and longer in a large process; so it is asked only once much was
freed since the last time, no more than half of that waits still, and the last time is long past beside what it took.
Other C libraries do without.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..limits import Limits

__all__ = ["Trimmer", "give_back"]

_TRIM: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> bool:
    """Ask the C library to return to the system what is free; whether there was anything."""
    return bool(_TRIM is not None and _TRIM(ctypes.c_size_t(0)))


class Trimmer:
    """Gives memory back some time after much was freed; ``waiting()`` tells how many bytes wait in queues."""

    def __init__(self, loop: Any, limits: Limits, waiting: Callable[[], int]) -> None:
        self._loop = loop
        self._limits = limits
        self._waiting = waiting
        self._freed = 0
        self._pause = limits.trim_pause
        self._timer: Any = None

    def freed(self, size: int) -> None:
        """``size`` bytes, about, were freed: had waited, or were held for somebody who has left."""
        self._freed += size
        if self._freed >= self._limits.trimmed_bytes and self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._timer = self._loop.timer(self._pause)
        self._timer.start(self._look)

    def _look(self) -> None:
        self.close()
        if self._waiting() * 2 <= self._freed:
            self._freed = 0
            began = monotonic()
            give_back()
            took = monotonic() - began
            self._pause = max(self._limits.trim_pause, took / self._limits.trim_share)
        else:
            self._wait()

    def close(self) -> None:
        """Wait no longer."""
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None
