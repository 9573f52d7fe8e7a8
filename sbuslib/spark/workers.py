"""What a worker of Spark, a process in Python that does one task after the other, does for its own speed."""

from __future__ import annotations

import gc
from functools import lru_cache

from pyspark import TaskContext

__all__ = ["settle", "settle_once"]


def settle() -> None:
    """Have the collector of garbage leave out what there is now, if this process is a worker.

    Spark collects after every task, and looks at all that was ever imported: some 20 ms, while the next task waits. To
    be called once for what stays as long as the process does; what is garbage just now stays, too.
    """
    if TaskContext.get() is not None:
        gc.freeze()


@lru_cache(maxsize=1)
def settle_once() -> None:
    """The same when a worker begins to do something for the first time."""
    settle()
