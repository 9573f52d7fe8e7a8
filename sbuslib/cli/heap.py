"""Gives memory back to the system after many clients or peers have left, or much has waited.

The C library keeps what a program frees, for what the program asks for next. So a hub that queued megabytes for a
moment, or served a thousand clients, would keep its size; a peer over TCP likewise. glibc gives free memory back when
it is asked, by ``malloc_trim(3)``. That takes milliseconds, so a :class:`HeapTrimmer` asks only when nothing waits and
something has probably been freed. With another C library it does nothing.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from ..core.context import Context

__all__ = ["HeapTrimmer", "give_back", "trimmer_of"]

LOOK_SECONDS: Final = 3.0
"""Seconds between two looks at the hub. A look takes some twenty microseconds."""

SHARE: Final = 0.001
"""Share of the time that may go into giving memory back. That takes long in a large process: the next time is later."""

GONE: Final = 100
"""Clients and patterns that have gone, together, from which on it is worth asking. They held some 200 KiB."""

GROWN: Final = 1024 * 1024
"""Bytes by which the process has grown, from which on it is worth asking: they may have been freed again."""

_PAGE: Final = os.sysconf("SC_PAGESIZE")
_TRIM: Final[Any] = getattr(ctypes.CDLL(None), "malloc_trim", None)


def trimmer_of(context: Context) -> HeapTrimmer:
    """For a hub that is started, with this context."""
    quotas = context.quotas

    def held() -> int:
        return sum(account.connections + account.patterns for account in quotas.accounts())

    return HeapTrimmer(context.loop, held, quotas.waiting)


def give_back() -> None:
    """Ask the C library to give the memory that is free back to the system."""
    if _TRIM is not None:
        _TRIM(ctypes.c_size_t(0))


def resident_bytes() -> int:
    """The memory that this process takes; 0 where ``/proc`` does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


class HeapTrimmer:
    """Looks at what a program holds every :data:`LOOK_SECONDS`, until it is closed.

    :param loop: the event loop, as gevent has it.
    :param held: how many things with some memory each, such as clients and patterns, are there.
    :param waiting: bytes that wait for clients that are slow.
    """

    def __init__(self, loop: Any, held: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._held = held
        self._waiting = waiting
        self._most = 0  # things seen at one look since memory was given back
        self._resident = resident_bytes()  # what was left when memory was given back
        self._not_before = 0.0  # no memory is given back before, by the monotonic clock
        #: For the next look.
        self._timer: Any = loop.timer(LOOK_SECONDS, LOOK_SECONDS)
        self._timer.start(self.look)

    def close(self) -> None:
        """Look no more."""
        self._timer.stop()
        self._timer.close()

    def look(self) -> None:
        """Give memory back if nothing waits and something has probably been freed."""
        held = self._held()
        self._most = max(self._most, held)
        began = monotonic()
        if began < self._not_before or self._waiting():
            return
        if self._most - held < GONE and resident_bytes() - self._resident < GROWN:
            return
        give_back()
        self._not_before = began + (monotonic() - began) / SHARE
        self._most, self._resident = held, resident_bytes()
