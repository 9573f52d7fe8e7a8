"""Time and chance of a world: what the product asks of ``time``, ``random`` and ``os.urandom`` comes from here.

:func:`install` has to run before ``sbuslib`` is imported, whose modules bind these functions by name. While no world is
played (:data:`played` is ``None``), all of them are the system's own.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Final

START: Final = 1_000.0
"""The monotonic clock when a world begins, in seconds."""

WALL: Final = 1_700_000_000.0
"""Seconds since 1970 when the monotonic clock is 0. A step may change it: see :attr:`Clock.wall_offset`."""

TICK: Final = 1e-6
"""Seconds that pass whenever somebody looks at a clock: whoever waits for a time without a pause gets there."""

TURN_COSTS: Final = (0.0, 0.0, 1e-6, 1e-5, 1e-4, 5e-4)
"""Seconds of CPU, one of which a thread has used since it last asked."""


class Clock:
    """The clocks of one world, and its random bytes, drawn from the seed in the order in which they are read."""

    def __init__(self, seed: int) -> None:
        self.now = START  # the monotonic clock
        self.wall_offset = WALL  # what the wall clock has more than the monotonic one
        self._cpu = 0.0  # seconds that all threads have used
        self._costs = random.Random(f"{seed} cpu")  # of turns
        self._bytes = random.Random(f"{seed} bytes")  # for secrets and ids

    def monotonic(self) -> float:
        self.now += TICK
        return self.now

    def wall(self) -> float:
        return self.monotonic() + self.wall_offset

    def thread_time(self) -> float:
        self._cpu += self._costs.choice(TURN_COSTS)
        return self._cpu

    def random_bytes(self, count: int) -> bytes:
        return self._bytes.randbytes(count)


played: Clock | None = None
"""The clock of the world that this process plays."""


def begin(seed: int) -> Clock:
    """Let the clocks of this process be those of a world, from now on."""
    global played
    played = Clock(seed)
    random.seed(seed)  # pauses are drawn from it
    return played


def install() -> None:
    """Put functions in place of the system's, which follow the world that is played, if any."""
    for name, of_world in (
        ("monotonic", Clock.monotonic),
        ("perf_counter", Clock.monotonic),
        ("thread_time", Clock.thread_time),
        ("process_time", Clock.thread_time),
        ("time", Clock.wall),
    ):
        setattr(time, name, _follow(of_world, getattr(time, name)))
        if hasattr(time, f"{name}_ns"):
            setattr(time, f"{name}_ns", _in_nanoseconds(getattr(time, name)))

    os.urandom = _random_bytes
    random._urandom = _random_bytes  # type: ignore[attr-defined]  # bound there by name, for ``secrets``


def _follow(of_world: Callable[[Clock], float], of_system: Callable[[], float]) -> Callable[[], float]:
    return lambda: of_system() if played is None else of_world(played)


def _in_nanoseconds(seconds: Callable[[], float]) -> Callable[[], int]:
    return lambda: int(seconds() * 1e9)


_system_bytes = os.urandom


def _random_bytes(count: int) -> bytes:
    return _system_bytes(count) if played is None else played.random_bytes(count)
