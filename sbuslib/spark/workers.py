"""Makes garbage collection cheap in the workers of Spark, the Python processes that run one task after the other."""

from __future__ import annotations

import gc
from functools import lru_cache

from pyspark import TaskContext

__all__ = ["settle_once"]


@lru_cache(maxsize=1)
def settle_once() -> None:
    """In a worker, at the first call, exclude all objects that exist now from garbage collection.

    Spark collects after every task. That takes some 20 ms for all imported modules, while the next task waits. Call it
    after making objects that are needed as long as the process lives. Current garbage is never freed, either.
    """
    if TaskContext.get() is not None:
        gc.freeze()
