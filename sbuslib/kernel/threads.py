"""Native threads, also where gevent has patched the standard library."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Any


def runs_asyncio() -> bool:
    """Return whether the calling thread runs an event loop of asyncio: nothing else may wait in it."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def unpatched(module: str, name: str) -> Any:
    """Return the standard library's own object of this name, also where gevent has replaced it. Never loads gevent."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None:
        return monkey.get_original(module, name)
    return getattr(__import__(module), name)


def in_a_thread(function: Callable[..., object], *arguments: object) -> None:
    """Call a function in a new native thread, where it may take its time.

    Raises :exc:`OSError` if the process can have no more.
    """
    try:
        unpatched("_thread", "start_new_thread")(function, arguments)
    except RuntimeError:
        raise OSError(errno.EAGAIN, "the process can have no more threads") from None
